"""Anything that holds Arrow data, as pieces that are read one by one.

Files are a `pyarrow.dataset`: Parquet, Arrow/Feather and CSV, folders with hive partitions (city=paris/...), on any file
system that pyarrow has. Types that differ between files are unified as pyarrow does. Tables, data frames, datasets and
readers are taken as they are. A reader, which can be read only once, is kept in memory or in a temporary file.
"""

from __future__ import annotations

import fnmatch
import glob
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from pathlib import PurePath
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.ipc

from service.tables.types import TableError

FORMATS = {
    "parquet": "parquet", "pq": "parquet", "arrow": "ipc", "feather": "ipc", "ipc": "ipc", "csv": "csv", "tsv": "tsv",
}  # fmt: skip
Result = TypeVar("Result")
ROWS = 1 << 17  # rows of a batch
LIST_ROWS = 1 << 13  # the same where rows hold lists


@dataclass(frozen=True, eq=False)
class Source:
    """A table that can be read more than once: fragments of datasets with one schema."""

    name: str
    schema: pa.Schema
    fragments: tuple[Any, ...]
    files: tuple[tuple[str, int, str], ...] = ()  # path, size and time of change
    kept: Any = field(default=None, repr=False)  # a temporary folder, removed with the source

    @property
    def is_csv(self) -> bool:
        """Whether some of the data are CSV, whose number of rows and types are not known before they are read."""
        return any(_is_csv(each) for each in self.fragments)

    @property
    def rows(self) -> int:
        """How many rows there are; estimated from the size for CSV."""
        sizes = dict(file[:2] for file in self.files)
        return sum(sizes[each.path] // 8 if _is_csv(each) else rows_of(each) for each in self.fragments)

    def pieces(self) -> list[Any]:
        """Fragments that are read on their own: row groups of Parquet, else whole files."""
        split = [f.split_by_row_group() if isinstance(f, ds.ParquetFileFragment) else [f] for f in self.fragments]
        return [piece for pieces in split for piece in pieces]

    def batches(self, columns: Sequence[str], pieces: Sequence[Any] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of some pieces in order (all rows by default), some columns, a bounded number at a time."""
        long = any(pa.types.is_nested(self.schema.field(name).type) for name in columns)
        chosen = self.fragments if pieces is None else pieces
        size = LIST_ROWS if long else ROWS
        options: dict[str, Any] = {"columns": list(columns), "batch_size": size, "batch_readahead": 4}
        kinds = {_suffix(each) for each in chosen}
        if kinds == {"parquet"} and isinstance(chosen[0].filesystem, pa.fs.LocalFileSystem):  # a third of the memory
            options["fragment_scan_options"] = ds.ParquetFragmentScanOptions(pre_buffer=False, use_buffered_stream=True)
        if pieces is None and len(chosen) > 1 and not self.is_csv and len(kinds) == 1 and None not in kinds:
            try:
                with _reading(self.name):
                    whole = ds.FileSystemDataset(list(chosen), self.schema, chosen[0].format, chosen[0].filesystem)
                    yield from whole.scanner(fragment_readahead=2, **options).to_batches()
                return
            except TableError:
                for _ in self.batches(columns, self.pieces()):  # names the file
                    pass
                raise
        for each in chosen:
            with _reading(self._place(each, columns), each):
                options |= {"use_threads": pieces is None}
                yield from each.scanner(schema=self.schema, **options).to_batches()

    def _place(self, fragment: Any, columns: Sequence[str]) -> str:
        if not isinstance(fragment, ds.FileFragment):
            return self.name
        group = ""
        if isinstance(fragment, ds.ParquetFileFragment) and fragment.num_row_groups == 1:
            group = f", row group {fragment.row_groups[0].id}"
        return f"{fragment.path}, column{'s' * (len(columns) > 1)} {', '.join(map(repr, columns))}{group}"


def rows_of(fragment: Any) -> int:
    """The rows of a fragment that is no CSV."""
    if isinstance(fragment, ds.ParquetFileFragment):
        return sum(group.num_rows for group in fragment.row_groups)
    return int(fragment.count_rows())


def _is_csv(fragment: Any) -> bool:
    return isinstance(fragment, ds.FileFragment) and isinstance(fragment.format, ds.CsvFileFormat)


def _suffix(fragment: Any) -> str | None:
    return fragment.format.default_extname if isinstance(fragment, ds.FileFragment) else None


class LateFractionError(TableError):
    """A CSV column began with integers and goes on with other numbers."""

    def __init__(self, message: str, column: str) -> None:
        super().__init__(message)
        self.column = column


def widened(source: Source, work: Callable[[Source], Result]) -> Result:
    """The result of some work; done again with float64 in place of integers where a CSV column calls for it."""
    while True:
        try:
            return work(source)
        except LateFractionError as late:
            column = source.schema.get_field_index(late.column)
            if not pa.types.is_integer(source.schema.field(column).type):
                raise TableError(str(late)) from None
            field_ = source.schema.field(column).with_type(pa.float64())
            source = replace(source, schema=source.schema.set(column, field_))


@contextmanager
def _reading(where: str, fragment: Any = None) -> Iterator[None]:
    """pyarrow's errors as messages that name the file."""
    try:
        yield
    except TableError:
        raise
    except MemoryError:
        raise TableError(
            f"{where}: not enough memory to read it: give less memory= (--memory) or fewer workers"
        ) from None
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        message = f"{where}: cannot be read: {first_line(error)}"
        late = re.search(
            r"In CSV column #(\d+): .*CSV conversion error to int64: invalid value '[-+.\deE]+'", str(error)
        )
        if late and fragment is not None:
            raise LateFractionError(message, fragment.physical_schema.names[int(late[1])]) from None
        raise TableError(message) from None


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def opened(data: Any, memory: int) -> Source:
    """The source behind a path, a glob pattern, a list of them, or an object with Arrow data."""
    paths = [data] if isinstance(data, str | PathLike) else data
    if isinstance(paths, list | tuple) and paths and all(isinstance(each, str | PathLike) for each in paths):
        return _files([fspath(each) for each in paths])
    if isinstance(data, ds.Dataset):
        fragments = tuple(data.get_fragments())
        files = tuple((f.path, 0, "") for f in fragments if isinstance(f, ds.FileFragment))
        return Source("the dataset", data.schema, fragments, files)
    if hasattr(data, "collect") and hasattr(data, "lazy"):  # a lazy frame of polars
        data = data.collect()
    if hasattr(data, "__arrow_c_stream__") and not isinstance(data, pa.Table | pa.RecordBatchReader):
        data = pa.RecordBatchReader.from_stream(data)
    if isinstance(data, pa.RecordBatchReader):
        return _held(data, memory)
    with _reading("the data"):
        if isinstance(data, pa.RecordBatch):
            data = pa.Table.from_batches([data])
        return _in_memory(data if isinstance(data, pa.Table) else pa.table(data))


def _in_memory(table: pa.Table) -> Source:
    return Source("the table", table.schema, tuple(ds.dataset(table).get_fragments()))


def _held(reader: pa.RecordBatchReader, memory: int) -> Source:
    """All rows of a reader, in memory or in a temporary file."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in reader:
        held.append(batch)
        size += batch.nbytes
        if size > memory // 2:
            break
    else:
        return _in_memory(pa.Table.from_batches(held, reader.schema))
    folder = tempfile.TemporaryDirectory(prefix="onnx-median-")
    path = f"{folder.name}/data.arrow"
    with pa.ipc.new_file(path, reader.schema) as writer:
        while held:
            writer.write_batch(held.pop(0))
        for batch in reader:
            writer.write_batch(batch)
    return replace(_files([path]), name="the reader", kept=folder)


def filesystem(path: str) -> tuple[Any, str]:
    """The file system of a path or address, and the path in it."""
    if "://" not in path:
        return pa.fs.LocalFileSystem(), path
    if "@" in urlsplit(path).netloc:
        scheme = path.partition("://")[0]
        raise TableError(
            f"{scheme}://...: an address must not hold a password: set AWS_ACCESS_KEY_ID or the like instead"
        )
    try:
        found: tuple[Any, str] = pa.fs.FileSystem.from_uri(path)
        return found
    except (pa.ArrowException, ValueError, OSError) as error:
        raise TableError(f"{path}: pyarrow has no file system for it: {first_line(error)}") from None


def _format(path: str) -> str | None:
    endings = path.rpartition("/")[2].lower().split(".")[1:]
    return next((FORMATS[each] for each in reversed(endings) if each in FORMATS), None)


def _files(patterns: Sequence[str]) -> Source:
    """The files that paths, folders and patterns name; each of them must name a file."""
    schemas: list[pa.Schema] = []
    fragments: list[Any] = []
    files: dict[str, tuple[str, int, str]] = {}
    for pattern in patterns:
        system, path = filesystem(pattern)
        with _reading(pattern):
            base, infos = _matching(system, path, "://" not in pattern)
        if not infos:
            raise TableError(
                f"{pattern}: there is no such file; give a path, a folder or a pattern such as 'data/*.parquet'"
            )
        infos = [info for info in infos if info.path not in files]
        files.update((info.path, (info.path, info.size or 0, str(info.mtime_ns))) for info in infos)
        for kind in dict.fromkeys(_format(info.path) for info in infos):
            some = [info.path for info in infos if _format(info.path) == kind]
            if kind is None:
                raise TableError(f"{some[0]}: unknown kind of file; known endings are .{', .'.join(FORMATS)}")
            with _reading(pattern):
                schema, own = _dataset(system, some, kind, base)
            schemas.append(schema)
            fragments += own
    name = next(iter(files)) + (f" and {len(files) - 1} more" if len(files) > 1 else "")
    with _reading(name):
        schema = pa.unify_schemas(schemas, promote_options="permissive")
    return Source(name, schema, tuple(fragments), tuple(files.values()))


def _dataset(system: Any, paths: list[str], kind: str, base: str) -> tuple[pa.Schema, list[Any]]:
    """Some files of one format: their schema, types unified, and their fragments."""
    form: Any = ds.CsvFileFormat(pa.csv.ParseOptions(delimiter="\t")) if kind == "tsv" else kind
    partitions = ds.HivePartitioning.discover()
    whole = ds.dataset(paths, filesystem=system, format=form, partitioning=partitions, partition_base_dir=base)
    fragments, schemas = list(whole.get_fragments()), []
    for each in fragments:
        with _reading(each.path):
            schemas.append(each.physical_schema)
    own = {name for schema in schemas for name in schema.names}
    keys = pa.schema([each for each in whole.schema if each.name not in own])
    distinct = list({str(schema): schema for schema in schemas}.values())
    return pa.unify_schemas([*distinct, keys], promote_options="permissive"), fragments


def _matching(system: Any, path: str, local: bool) -> tuple[str, list[Any]]:
    """The files of a path, and the folder below which hive partitions count. A file `a[1].parquet` is no pattern."""
    kinds = pa.fs.FileType
    info = system.get_file_info([path])[0]
    base = path if info.type == kinds.Directory else str(PurePath(path).parent)
    found = [info]
    if info.type == kinds.NotFound and (wild := [path.index(sign) for sign in "*?[" if sign in path]):
        base = path[: min(wild)].rpartition("/")[0] or ("/" if path.startswith("/") else "")
        if local:
            found = system.get_file_info(sorted(glob.glob(path, recursive=True)))
        else:
            inside = system.get_file_info(pa.fs.FileSelector(base, recursive=True))
            found = [each for each in inside if fnmatch.fnmatchcase(each.path, path)]
    files = [each for each in found if each.type == kinds.File]
    for folder in [each.path for each in found if each.type == kinds.Directory]:
        for each in system.get_file_info(pa.fs.FileSelector(folder, recursive=True)):
            hidden = any(part[0] in "_." for part in each.path[len(folder) :].strip("/").split("/"))
            if each.type == kinds.File and _format(each.path) and not hidden:
                files.append(each)
    return base, sorted(files, key=lambda each: each.path)
