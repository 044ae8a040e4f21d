"""Sources of Arrow data, in pieces that are read one by one.

Files are found and described by `pyarrow.dataset`: Parquet, Arrow/Feather and CSV, folders with hive partitions
(city=paris/...), on any file system that pyarrow has. Types that differ between files are unified as pyarrow does. Tables,
data frames and datasets are used directly. A reader can be read only once, so a temporary file keeps its rows.
"""

from __future__ import annotations

import fnmatch
import glob
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike, fspath
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq

from service.tables.scratch import scratch_folder
from service.tables.types import TableError

FORMATS = {
    "parquet": "parquet", "pq": "parquet", "arrow": "ipc", "feather": "ipc", "ipc": "ipc", "csv": "csv", "tsv": "tsv",
}  # fmt: skip
ROWS, LIST_ROWS = 1 << 17, 1 << 13  # rows of a batch, and of a batch of lists
UNREADABLE = (pa.ArrowException, OSError, ValueError, TypeError, MemoryError)


@dataclass(frozen=True, eq=False)
class Source:
    """A table that can be read more than once: fragments of datasets with one schema."""

    name: str
    schema: pa.Schema
    fragments: tuple[Any, ...]
    files: tuple[tuple[str, int, str], ...] = ()  # path, size and time of change
    kept: Any = None  # a temporary folder, which lives as long as the source

    @cached_property
    def is_csv(self) -> bool:
        """True if some data are CSV, whose number of rows and types are unknown before reading."""
        return any(isinstance(getattr(each, "format", None), ds.CsvFileFormat) for each in self.fragments)

    @cached_property
    def rows(self) -> int:
        """The number of rows, estimated from the size for CSV."""
        return sum(size for _, size, _ in self.files) // 8 if self.is_csv else sum(map(rows_of, self.fragments))

    @cached_property
    def pieces(self) -> list[Any]:
        """Fragments that can be read separately: row groups of Parquet, else whole files."""
        groups = [_is_parquet(each) and each.num_row_groups > 1 for each in self.fragments]
        split = [f.split_by_row_group() if g else [f] for f, g in zip(self.fragments, groups, strict=True)]
        return [piece for pieces in split for piece in pieces]

    def batches(self, columns: Sequence[str], pieces: Sequence[Any] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of some pieces in order (all by default), some columns, in batches of bounded size."""
        schema = pa.schema([self.schema.field(name) for name in columns])
        rows = LIST_ROWS if any(map(pa.types.is_nested, schema.types)) else ROWS
        held: list[pa.RecordBatch] = []
        for piece in self.pieces if pieces is None else pieces:
            for batch in self._read(piece, schema, rows):
                held.append(batch)
                if sum(map(len, held)) >= rows:
                    yield _joined(held)
                    held = []
        if held:
            yield _joined(held)

    def _read(self, piece: Any, schema: pa.Schema, rows: int) -> Iterator[pa.RecordBatch]:
        try:
            if _is_parquet(piece):
                yield from _parquet(piece, schema, rows)
            else:
                scanner = piece.scanner(schema=self.schema, columns=schema.names, batch_size=rows, batch_readahead=4)
                yield from scanner.to_batches()
        except UNREADABLE as error:
            late = re.search(r"CSV column #(\d+): .*conversion error to int64: invalid value '[-+.\deE]+'", str(error))
            at = self.schema.get_field_index(piece.physical_schema.names[int(late[1])]) if late else -1
            if at >= 0 and pa.types.is_integer(self.schema.field(at).type):
                wider = self.schema.set(at, self.schema.field(at).with_type(pa.float64()))
                raise LateFractionError(replace(self, schema=wider)) from None
            where = self.name
            if isinstance(piece, ds.FileFragment):
                group = f", row group {piece.row_groups[0].id}" if _is_parquet(piece) else ""
                where = f"{piece.path}, columns {', '.join(map(repr, schema.names))}{group}"
            raise _unreadable(where, error) from None


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Join small batches of small files."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _is_parquet(fragment: Any) -> bool:
    return isinstance(fragment, ds.ParquetFileFragment)


def rows_of(piece: Any) -> int:
    """The number of rows of a fragment or a piece other than CSV."""
    return sum(group.num_rows for group in piece.row_groups) if _is_parquet(piece) else int(piece.count_rows())


def _parquet(piece: Any, schema: pa.Schema, rows: int) -> Iterator[pa.RecordBatch]:
    """Row groups, read by pyarrow.parquet: half the time of a scanner for small files, half the memory for lists."""
    stored = [name for name in schema.names if name in piece.physical_schema.names]
    keys = ds.get_partition_keys(piece.partition_expression)
    with pq.ParquetFile(piece.path, metadata=piece.metadata, filesystem=piece.filesystem, pre_buffer=False) as file:
        groups = [group.id for group in piece.row_groups]
        for read in file.iter_batches(rows, groups, stored, use_threads=len(stored) > 1):
            columns = {name: read.column(name) for name in stored}
            for name in set(schema.names).difference(stored):  # a key of a hive partition, or null
                columns[name] = pa.repeat(pa.scalar(keys.get(name)), read.num_rows)
            yield pa.record_batch([columns[each.name].cast(each.type) for each in schema], schema)


class LateFractionError(Exception):
    """A CSV column starts with integers and continues with other numbers. `source` reads the column as float64."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.source = source


@contextmanager
def _reading(where: str) -> Iterator[None]:
    """Turn pyarrow's errors into messages that name the file."""
    try:
        yield
    except UNREADABLE as error:
        raise _unreadable(where, error) from None


def _unreadable(where: str, error: Exception) -> TableError:
    if isinstance(error, MemoryError):
        return TableError(f"{where}: not enough memory: give less memory= (--memory) or fewer workers")
    return TableError(f"{where}: cannot be read: {first_line(error)}")


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def opened(data: Any) -> Source:
    """The source behind a path, a glob pattern, a list of them, or an object with Arrow data."""
    paths = [data] if isinstance(data, str | PathLike) else data
    if isinstance(paths, list | tuple) and paths and all(isinstance(each, str | PathLike) for each in paths):
        return _files([fspath(each) for each in paths])
    if isinstance(data, pa.RecordBatchReader):
        folder = scratch_folder()
        with _reading("the reader"):
            ds.write_dataset(data, folder.name, format="ipc")
        data = ds.dataset(folder.name, schema=data.schema, format="ipc")
        return Source("the reader", data.schema, tuple(data.get_fragments()), kept=folder)
    with _reading("the data"):
        if hasattr(data, "collect") and hasattr(data, "lazy"):  # a lazy frame of polars
            data = data.collect()
        if not isinstance(data, ds.Dataset):
            data = ds.dataset(data if isinstance(data, pa.Table) else pa.table(data))
    fragments = tuple(data.get_fragments())
    files = tuple((each.path, 0, "") for each in fragments if isinstance(each, ds.FileFragment))
    return Source("the data", data.schema, fragments, files)


def filesystem(path: str) -> tuple[Any, str]:
    """The file system of a path or address, and the path in it."""
    if "://" not in path:
        return pa.fs.LocalFileSystem(), path
    if "@" in urlsplit(path).netloc:
        shown = path.partition("://")[0] + "://..."
        raise TableError(f"{shown}: an address must not hold a password: set AWS_ACCESS_KEY_ID or the like instead")
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
                    f"{pattern}: there is no such file; give a path, a folder or a pattern: 'data/*.parquet'"
                )
            infos = [info for info in infos if info.path not in files]
            files.update((info.path, (info.path, info.size or 0, str(info.mtime_ns))) for info in infos)
            options = ds.FileSystemFactoryOptions(base, partitioning=ds.HivePartitioning.discover())
            kinds = [(_format(info.path), info.path) for info in infos]
            for kind in dict.fromkeys(kind for kind, _ in kinds):
                some = [path for each, path in kinds if each == kind]
                if kind is None:
                    raise TableError(f"{some[0]}: unknown kind of file; known endings are .{', .'.join(FORMATS)}")
                tabs = pa.csv.ParseOptions(delimiter="\t" if kind == "tsv" else ",")
                formats = {"parquet": ds.ParquetFileFormat, "ipc": ds.IpcFileFormat}
                form = formats[kind]() if kind in formats else ds.CsvFileFormat(tabs)
                factory = ds.FileSystemDatasetFactory(system, some, form, options)
                own = list(factory.finish(factory.inspect(fragments=1)).get_fragments())
                stored = [each.physical_schema for each in own]
                schemas += [stored[0], *(each for each in stored if each != stored[0]), factory.inspect(fragments=0)]
                fragments += own
    name = next(iter(files)) + (f" and {len(files) - 1} more" if len(files) > 1 else "")
    with _reading(name):
        schema = pa.unify_schemas(schemas, promote_options="permissive")
    return Source(name, schema, tuple(fragments), tuple(files.values()))


def _matching(system: Any, path: str, local: bool) -> tuple[str, list[Any]]:
    """The files of a path, and the folder below which hive partitions count. A file `a[1].parquet` is no pattern."""
    kinds = pa.fs.FileType
    found = system.get_file_info([path])
    base = path if found[0].type == kinds.Directory else path.rpartition("/")[0]
    if found[0].type == kinds.NotFound and (sign := re.search(r"[*?[]", path)):
        base = path[: sign.start()].rpartition("/")[0] or ("/" if path.startswith("/") else "")
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
