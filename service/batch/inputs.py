"""Tables as they come: files in three formats, the pieces they are read in, and numbers out of them.

A piece is what one process reads without the others: a row group of Parquet, a record batch of Arrow, a CSV file. Whatever
is wrong is said with file, column and row group.
"""

from __future__ import annotations

import fnmatch
import glob
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.fs
import pyarrow.ipc
import pyarrow.parquet as pq

from exporter.errors import UserError
from service.scaling import Floats

Format = Literal["parquet", "arrow", "csv"]
SUFFIXES: dict[str, Format] = {
    "parquet": "parquet", "pq": "parquet", "arrow": "arrow", "feather": "arrow", "ipc": "arrow", "csv": "csv", "tsv": "csv",
}  # fmt: skip
ROWS = 1 << 17  # of a batch, unless they are long
BATCH = 1 << 24  # bytes of a batch, about
BUFFER = 1 << 22


class TableError(UserError):
    """A table that cannot be read or answered; the message says where."""


@dataclass(frozen=True)
class Source:
    """A file: a local path, or an address that pyarrow has a file system for."""

    path: str
    size: int
    changed: str

    @property
    def format(self) -> Format:
        for suffix in reversed(_suffixes(self.path)):
            if suffix[1:].lower() in SUFFIXES:
                return SUFFIXES[suffix[1:].lower()]
        raise TableError(f"{self.path}: its name does not say what it is; the ends known are .{', .'.join(SUFFIXES)}")


@dataclass(frozen=True)
class Piece:
    """A part of a file that is read on its own; `rows` is None where only reading tells."""

    path: str
    format: Format
    number: int | None = None
    rows: int | None = None

    def place(self, *columns: str) -> str:
        """Where something is, for messages."""
        within = "" if self.number is None else f", {_PIECE[self.format]} {self.number}"
        return f"{self.path}, column{'s' * (len(columns) > 1)} {', '.join(map(repr, columns))}{within}"


_PIECE = {"parquet": "row group", "arrow": "record batch", "csv": "file"}


def _opened(path: str) -> tuple[Any, str]:
    """The file system of a path, and the path in it."""
    if "://" in path:
        if "@" in urlsplit(path).netloc:
            raise TableError(
                f"{path.partition('://')[0]}://...: a name and password in an address would be written into the plan: "
                "set them in the environment, such as AWS_ACCESS_KEY_ID"
            )
        try:
            found: tuple[Any, str] = pa.fs.FileSystem.from_uri(path)
            return found
        except (pa.ArrowException, ValueError, OSError) as error:
            raise TableError(f"{path}: no file system for it: {_line(error)}") from None
    return pa.fs.LocalFileSystem(), path


def _suffixes(path: str) -> list[str]:
    return Path(urlsplit(path).path if "://" in path else path).suffixes


def _address(pattern: str, inner: str) -> str:
    """The address of a file that was found by another: host and options are the same."""
    parts = urlsplit(pattern)
    host = parts.netloc if inner.startswith("/") else ""  # else it is a bucket, and part of the path
    return f"{parts.scheme}://{host}{inner}{'?' * bool(parts.query)}{parts.query}"


def find(patterns: Sequence[str]) -> list[Source]:
    """All files that paths, folders and patterns name, in order; each must be there."""
    found: dict[str, Source] = {}
    for pattern in patterns:
        files = _matching(pattern)
        if not files:
            raise TableError(
                f"{pattern}: there is no such file; give a path, a folder or a pattern such as 'data/*.parquet'"
            )
        found.update((source.path, source) for source in files)
    return list(found.values())


def _matching(pattern: str) -> list[Source]:
    system, path = _opened(pattern)
    local = "://" not in pattern
    wild = any(sign in path for sign in "*?[")
    with _reading(pattern):
        if local:
            infos = system.get_file_info(sorted(glob.glob(path, recursive=True)) if wild else [path])
        elif wild:
            fixed = path[: min(path.index(sign) for sign in "*?[" if sign in path)].rpartition("/")[0]
            inside = system.get_file_info(pa.fs.FileSelector(fixed, recursive="**" in path))
            infos = [info for info in inside if fnmatch.fnmatchcase(info.path, path)]
        else:
            infos = system.get_file_info([path])
        files = []
        for info in infos:
            if info.type == pa.fs.FileType.Directory:
                below = system.get_file_info(pa.fs.FileSelector(info.path, recursive=True))
                known = [each for each in below if Path(each.path).suffix[1:].lower() in SUFFIXES]
                files += [each for each in known if not each.base_name.startswith(("_", "."))]
            elif info.type == pa.fs.FileType.File:
                files.append(info)
    files.sort(key=lambda info: info.path)
    return [
        Source(info.path if local else _address(pattern, info.path), info.size or 0, str(info.mtime_ns))
        for info in files
    ]


@contextmanager
def _reading(where: str) -> Iterator[None]:
    """What pyarrow says of a file that it cannot read, as a message."""
    try:
        yield
    except MemoryError:
        raise TableError(f"{where}: there is no memory to read it: give fewer --workers") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise TableError(f"{where}: it cannot be read: {_line(error)}") from None


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


@lru_cache(maxsize=2)
def _parquet(path: str) -> Any:
    system, inner = _opened(path)
    file = system.open_input_file(inner)
    return pq.ParquetFile(file, pre_buffer=False, buffer_size=BUFFER, page_checksum_verification=True)


@lru_cache(maxsize=2)
def _arrow(path: str) -> Any:
    system, inner = _opened(path)
    return pa.ipc.open_file(system.open_input_file(inner))


def _csv(path: str, columns: Sequence[str] | None, numbers: Sequence[str]) -> Any:
    system, inner = _opened(path)
    parse = pa.csv.ParseOptions(delimiter="\t" if ".tsv" in _suffixes(path) else ",")
    convert = pa.csv.ConvertOptions(include_columns=columns, column_types=dict.fromkeys(numbers, pa.float64()))
    stream = system.open_input_stream(inner, compression="detect")
    return pa.csv.open_csv(stream, pa.csv.ReadOptions(block_size=BUFFER), parse, convert)


def schema(source: Source) -> pa.Schema:
    """The columns of a file."""
    with _reading(source.path):
        match source.format:
            case "parquet":
                return _parquet(source.path).schema_arrow
            case "arrow":
                return _arrow(source.path).schema
            case "csv":
                return _csv(source.path, None, ()).schema


def pieces(source: Source) -> list[Piece]:
    """What can be read on its own; a piece that is known to have no rows is left out."""
    with _reading(source.path):
        match source.format:
            case "parquet":
                about = _parquet(source.path).metadata
                counts = [about.row_group(i).num_rows for i in range(about.num_row_groups)]
            case "arrow":
                file = _arrow(source.path)
                counts = [file.get_batch(i).num_rows for i in range(file.num_record_batches)]
            case "csv":
                first = next(iter(_csv(source.path, None, ())), None)
                return [Piece(source.path, "csv")] if first is not None and first.num_rows else []
    return [Piece(source.path, source.format, i, rows) for i, rows in enumerate(counts) if rows]


def read(piece: Piece, columns: Sequence[str], numbers: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
    """The rows of a piece, some columns, a bounded number at a time; in CSV `numbers` are read as such."""
    with _reading(piece.place(*columns)):
        match piece.format:
            case "parquet":
                file = _parquet(piece.path)
                group = file.metadata.row_group(piece.number)
                rows = min(ROWS, max(1, BATCH * group.num_rows // max(1, group.total_byte_size)))
                yield from file.iter_batches(rows, [piece.number], list(columns), use_threads=False)
            case "arrow":
                batch = _arrow(piece.path).get_batch(piece.number).select(list(columns))
                rows = min(ROWS, max(1, BATCH * batch.num_rows // max(1, batch.nbytes)))
                for start in range(0, batch.num_rows, rows):
                    yield batch.slice(start, rows)
            case "csv":
                yield from _csv(piece.path, columns, numbers)


def is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def float_type(kind: pa.DataType) -> str | None:
    """The dtype in which numbers of a type are ordered and answered, or None where it has no numbers."""
    if is_list(kind):
        return None if is_list(kind.value_type) else float_type(kind.value_type)
    if pa.types.is_float32(kind) or pa.types.is_float16(kind):
        return "float32"
    if pa.types.is_float64(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind):
        return "float64"
    return None


def numbers(array: Any, dtype: str, missing: str, where: str) -> tuple[Floats, npt.NDArray[np.bool_] | None]:
    """An array as floats, and which of them are there: None for all. What is missing is an error unless it is skipped."""
    absent = array.null_count
    if not pa.types.is_floating(array.type):
        try:
            array = array.cast(pa.float64())
        except pa.ArrowInvalid:
            raise TableError(
                f"{where}: an integer beyond 2^53 is no float64: cast the column to float64 first"
            ) from None
    if absent:
        array = pc.fill_null(array, float("nan"))
    values = np.asarray(
        np.from_dlpack(array), dtype
    )  # to_numpy would import pandas first, which takes as long as 10^8 entries
    bad = np.isnan(values)
    if not bad.any():
        return values, None
    if missing == "error":
        what = "a null" if absent else "NaN"
        at = int(np.flatnonzero(bad)[0])
        raise TableError(f"{where}: {what} at entry {at} of a batch ({bad.sum()} in all): --nan skip leaves them out")
    return values, ~bad


def flat(array: Any) -> tuple[Any, npt.NDArray[np.int64]]:
    """A list column as all its entries and the length of each list; a null list has no entries."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return array.flatten(), lengths
