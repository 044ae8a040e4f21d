"""Sources of Arrow data, in pieces that are read one by one.

Files are found and described by `pyarrow.dataset`: Parquet, Arrow/Feather and CSV, folders with hive partitions
(city=paris/...), on any file system that pyarrow has. Types that differ between files are unified as pyarrow does. Tables,
data frames and datasets are used directly. CSV files and readers are read once: a temporary file keeps their rows.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq

from service.tables.types import TableError

TABS = ds.CsvFileFormat(pa.csv.ParseOptions(delimiter="\t"))
FORMATS = {
    "parquet": "parquet", "pq": "parquet", "arrow": "ipc", "feather": "ipc", "ipc": "ipc", "csv": "csv", "tsv": "tsv",
}  # fmt: skip
ROWS, LIST_ROWS = 1 << 17, 1 << 13  # rows of a batch, and of a batch of lists


@dataclass(frozen=True, eq=False)
class Source:
    """A table that can be read more than once: fragments of datasets with one schema."""

    name: str
    schema: pa.Schema
    fragments: Sequence[Any]
    files: Sequence[tuple[str, int, str]] = ()  # path, size and time of change
    kept: Any = None  # a temporary folder, which lives as long as the source

    @cached_property
    def rows(self) -> int:
        return sum(map(rows_of, self.fragments))

    @cached_property
    def pieces(self) -> list[Any]:
        """Fragments that can be read separately: row groups of Parquet, else whole files."""
        groups = [_is_parquet(each) and each.num_row_groups > 1 for each in self.fragments]
        split = [f.split_by_row_group() if g else [f] for f, g in zip(self.fragments, groups, strict=True)]
        return [piece for pieces in split for piece in pieces]

    def batches(self, columns: Sequence[str], pieces: Sequence[Any] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of some pieces in order (all by default), some columns, in one or more batches of bounded size."""
        schema = pa.schema([self.schema.field(name) for name in columns])
        rows = LIST_ROWS if any(map(pa.types.is_nested, schema.types)) else ROWS
        held: list[pa.RecordBatch] = []
        for piece in self.pieces if pieces is None else pieces:
            with reading(self._place(piece, columns)):
                for batch in (_parquet if _is_parquet(piece) else _scanned)(piece, schema, rows):
                    held.append(batch)
                    if sum(map(len, held)) >= rows:
                        yield _joined(held)
                        held = []
        yield _joined(held) if held else pa.RecordBatch.from_pylist([], schema)

    def _place(self, piece: Any, columns: Sequence[str]) -> str:
        """The place of a piece for messages."""
        if self.kept or not isinstance(piece, ds.FileFragment):
            return self.name
        group = f", row group {piece.row_groups[0].id}" if _is_parquet(piece) else ""
        return f"{piece.path}, columns {', '.join(map(repr, columns))}{group}"

    def without_csv(self, columns: Sequence[str]) -> Source:
        """The source with some columns of the CSV files in a temporary file.

        pyarrow takes the types of a CSV file from its first block. If a column of integers continues with other numbers, the
        files are read again with float64.
        """
        files = [each for each in self.fragments if isinstance(getattr(each, "format", None), ds.CsvFileFormat)]
        if not files:
            return self
        kept, schema = Scratch(), pa.schema([self.schema.field(name) for name in dict.fromkeys(columns)])
        with pa.ipc.new_file(f"{kept.path}/rows.arrow", schema) as file:
            for each in files:
                try:
                    for batch in self.batches(schema.names, [each]):
                        file.write_batch(batch)
                except TableError as error:
                    late = re.search(
                        r"CSV column #(\d+): .*conversion error to int64: invalid value '[-+.\deE]+'", str(error)
                    )
                    at = self.schema.get_field_index(each.physical_schema.names[int(late[1])]) if late else -1
                    if at < 0 or not pa.types.is_integer(self.schema.field(at).type):
                        raise
                    wider = self.schema.set(at, self.schema.field(at).with_type(pa.float64()))
                    return replace(self, schema=wider).without_csv(columns)
        others = [each for each in self.fragments if each not in files]
        return replace(self, fragments=[*others, *ds.dataset(kept.path, format="ipc").get_fragments()], kept=kept)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Join small batches of small files."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _is_parquet(fragment: Any) -> bool:
    return isinstance(fragment, ds.ParquetFileFragment)


def rows_of(piece: Any) -> int:
    """The number of rows of a fragment or a piece."""
    return sum(group.num_rows for group in piece.row_groups) if _is_parquet(piece) else int(piece.count_rows())


def _scanned(piece: Any, schema: pa.Schema, rows: int) -> Iterator[pa.RecordBatch]:
    batches: Iterator[pa.RecordBatch] = piece.to_batches(schema=schema, batch_size=rows, batch_readahead=4)
    return batches


def _parquet(piece: Any, schema: pa.Schema, rows: int) -> Iterator[pa.RecordBatch]:
    """Row groups, read by pyarrow.parquet: a fifth of the time of a scanner for small files, half the memory for lists."""
    stored = [name for name in schema.names if name in piece.physical_schema.names]
    keys = ds.get_partition_keys(piece.partition_expression)
    with pq.ParquetFile(piece.path, metadata=piece.metadata, filesystem=piece.filesystem, pre_buffer=False) as file:
        groups = [group.id for group in piece.row_groups]
        for read in file.iter_batches(rows, groups, stored, use_threads=len(stored) > 1):
            columns = {name: read.column(name) for name in stored}
            for name in set(schema.names).difference(stored):  # a key of a hive partition, or null
                columns[name] = pa.repeat(pa.scalar(keys.get(name)), read.num_rows)
            yield pa.record_batch([columns[each.name].cast(each.type) for each in schema], schema)


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Turn pyarrow's errors into messages that name the file."""
    try:
        yield
    except MemoryError:
        raise TableError(f"{where}: not enough memory: give less memory= (--memory) or fewer workers") from None
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise TableError(f"{where}: cannot be read: {first_line(error)}") from None


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


SCRATCH = f"onnx-median-{os.getpid()}-"


class Scratch:
    """A folder for rows that do not fit in memory, removed with this object or when a signal ends the process."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix=SCRATCH)
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def remove_scratch() -> None:
    """Remove all scratch folders of this process."""
    for folder in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
        shutil.rmtree(folder, ignore_errors=True)


def opened(data: Any) -> Source:
    """The source behind a path, a glob pattern, a list of them, or an object with Arrow data."""
    paths = [data] if isinstance(data, str | PathLike) else data
    if isinstance(paths, list | tuple) and paths and all(isinstance(each, str | PathLike) for each in paths):
        return _files([fspath(each) for each in paths])
    kept = None
    with reading("the data"):
        if isinstance(data, pa.RecordBatchReader):
            kept = Scratch()
            ds.write_dataset(data, kept.path, format="ipc", use_threads=False)
            data = ds.dataset(kept.path, schema=data.schema, format="ipc")
        if hasattr(data, "collect") and hasattr(data, "lazy"):  # a lazy frame of polars
            data = data.collect()
        if not isinstance(data, ds.Dataset):
            data = ds.dataset(data if isinstance(data, pa.Table) else pa.table(data))
    fragments = list(data.get_fragments())
    files = [(each.path, 0, "") for each in fragments if isinstance(each, ds.FileFragment)]
    return Source("the data", data.schema, fragments, files, kept)


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
    schemas, fragments = list[pa.Schema](), list[Any]()
    files: dict[str, tuple[str, int, str]] = {}
    for pattern in patterns:
        system, path = filesystem(pattern)
        with reading(pattern):
            base, infos = _matching(system, path, "://" not in pattern)
            if not infos:
                remedy = "give a path, a folder or a pattern: 'data/*.parquet'"
                raise TableError(f"{pattern}: there is no such file; {remedy}")
            infos = [info for info in infos if info.path not in files]
            files.update((info.path, (info.path, info.size or 0, str(info.mtime_ns))) for info in infos)
            kinds: dict[str | None, list[str]] = {}
            for info in infos:
                kinds.setdefault(_format(info.path), []).append(info.path)
            for kind, some in kinds.items():
                if kind is None:
                    raise TableError(f"{some[0]}: unknown kind of file; known endings are .{', .'.join(FORMATS)}")
                data = ds.dataset(some, None, TABS if kind == "tsv" else kind, system, "hive", base)
                own = list(data.get_fragments())
                stored = [each.physical_schema for each in own]
                schemas += [*(each for each in stored if each != stored[0]), data.schema]
                fragments += own
    name = next(iter(files)) + (f" and {len(files) - 1} more" if len(files) > 1 else "")
    with reading(name):
        schema = pa.unify_schemas(schemas, promote_options="permissive")
    return Source(name, schema, fragments, list(files.values()))


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
            hidden = re.search("/[._]", each.path[len(folder.rstrip("/")) :])
            if each.type == kinds.File and _format(each.path) and not hidden:
                files.append(each)
    return base, sorted(files, key=lambda each: each.path)
