"""The manifest of a models folder, checked in one place, so that the rest of the service can trust a description.

A folder may hold anything: wrong types in a manifest, numbers out of range, damaged or replaced files, links, or devices. A
faulty entry is reported and left out; the other entries are served.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import weakref
from collections.abc import AsyncIterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from exporter.errors import UserError
from exporter.formats.manifest import MANIFEST, models_in
from exporter.frontends.images.running import MODES
from exporter.problem.grid import Grid
from service.statistics.fed_grid import FedGrid
from service.statistics.layout import Target

LONGEST_MANIFEST = 1 << 28
LONGEST_FILE = (1 << 31) - 1  # no protobuf is longer
LARGEST_D = 1 << 24  # counts up to here are float32 numbers
DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype(np.float32), "float64": np.dtype(np.float64)}
PIXELS = {"uint8": np.dtype(np.uint8), **DTYPES}
LARGEST_WINDOW = 441  # pixels, as many as the exporter writes
CHUNK = 1 << 16
Description = dict[str, Any]


class UnusableModelError(Exception):
    """A manifest entry that is left out; the message says why."""


class CheckedFile:
    """A file whose bytes matched the manifest when the file was loaded."""

    def __init__(self, path: Path, sha256: str) -> None:
        self.path = path
        self.sha256 = sha256
        self._lock = Lock()
        self._shared: weakref.ref[memoryview] | None = None

    def content(self) -> memoryview:
        """The same bytes, read and checked again. Simultaneous callers share one copy."""
        with self._lock:
            content = self._shared() if self._shared is not None else None
            if content is None:
                content = memoryview(self.read())
                self._shared = weakref.ref(content)
            return content

    def read(self) -> bytes:
        try:
            data = read_regular(self.path, LONGEST_FILE)
        except OSError as error:
            raise UnusableModelError(f"the file cannot be read: {error.strerror}") from None
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise UnusableModelError("its sha256 differs from the manifest: the file is damaged or was replaced")
        return data


async def pieces(content: memoryview) -> AsyncIterator[memoryview]:
    """Content for a response that waits for slow readers."""
    for start in range(0, len(content), CHUNK):
        yield content[start : start + CHUNK]


def read_regular(path: Path, limit: int) -> bytes:
    """The bytes of a regular file. Pipes and devices are refused, because reading them could block."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(0, "it is not a regular file")
        if about.st_size > limit:
            raise OSError(0, f"it is longer than {limit} bytes")
        with open(descriptor, "rb", closefd=False) as stream:
            return stream.read(limit)
    finally:
        os.close(descriptor)


class FilterTerms(NamedTuple):
    """The input and the promise of an image filter. A filter of frames has a window of one pixel."""

    window: tuple[int, int]
    valid: bool
    border: str
    frames: int | None
    dtype: np.dtype[Any]
    domain: tuple[float, float] | None  # None: every finite number is compared without rounding
    step: float
    error: float
    target: Target
    operations: int


@dataclass(frozen=True)
class Entry:
    """One model of a manifest: its unchanged file, and its contract: the grid and columns of a model for vectors, or the
    terms of a filter for images."""

    file: CheckedFile
    data: bytes
    description: Description
    terms: tuple[FedGrid, tuple[Target, ...]] | FilterTerms


def raw_entries(folder: Path) -> list[Any]:
    """The unchecked entries of a folder's manifest. The list is empty without a manifest."""
    try:
        text = read_regular(folder / MANIFEST, LONGEST_MANIFEST)
        return models_in(text, parse_int=_integer, parse_float=_real, parse_constant=_real)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UnusableModelError(f"the manifest cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UnusableModelError(f"the manifest cannot be read: {type(error).__name__}: {str(error)[:200]}") from None


_NO_NUMBER = object()  # stands for a number that JSON cannot hold


def _integer(text: str) -> Any:
    return int(text) if len(text) < 20 else _NO_NUMBER


def _real(text: str) -> Any:
    return number if isfinite(number := float(text)) else _NO_NUMBER


def label(entry: Any, number: int) -> str:
    """The name of an entry in the report of entries left out."""
    name = entry.get("file") if isinstance(entry, dict) else None
    if not isinstance(name, str):
        return f"{MANIFEST} entry {number}"
    return name[:255].encode(errors="backslashreplace").decode()


def _refuse_deep(value: Any, levels: int = 16) -> None:
    """ValueError for lists and objects nested deeper than any description; answers in JSON repeat descriptions."""
    if isinstance(value, dict | list):
        if not levels:
            raise ValueError("nested too deeply")
        for each in value.values() if isinstance(value, dict) else value:
            _refuse_deep(each, levels - 1)


def checked(folder: Path, entry: Any) -> Entry:
    """An entry that can be served: its numbers are valid, its file name is plain, and the bytes match."""
    if not isinstance(entry, dict) or not all(key in entry for key in ("file", "sha256", "description")):
        raise UnusableModelError("the manifest entry lacks file, sha256 or description")
    name, about = entry["file"], entry["description"]
    if not isinstance(name, str) or Path(name).name != name or not name.endswith(".onnx") or not name.isprintable():
        raise UnusableModelError("the file is not a plain .onnx name inside the models folder")
    if not isinstance(entry["sha256"], str) or not isinstance(about, dict):
        raise UnusableModelError("its sha256 is not text, or its description not an object")
    try:
        _refuse_deep(about)
        json.dumps(about, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        raise UnusableModelError(
            "its description is nested too deeply, holds a number too large or not finite, or text that is not Unicode"
        ) from None
    try:
        terms = filter_terms(about) if "window" in about or "frames" in about else contract(about)
    except (UserError, KeyError, TypeError, ValueError, OverflowError) as error:
        reason = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
        raise UnusableModelError(f"its description is not valid: {reason[:300]}") from None
    file = CheckedFile(folder / name, entry["sha256"])
    return Entry(file, file.read(), about, terms)


@dataclass(frozen=True, eq=False)
class LoadedFile:
    """A loaded file of a manifest: its name, its bytes and its metadata."""

    name: str
    file: CheckedFile
    description: Description

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def sha256(self) -> str:
        return self.file.sha256


def contract(about: Description) -> tuple[FedGrid, tuple[Target, ...]]:
    """The numeric contract and the output columns of a complete and valid description."""
    for key in ("construction", "op", "dtype"):
        if not isinstance(about[key], str):
            raise TypeError(f"{key} = {about[key]!r} is not text")
    if not isinstance(about["exact_on_grid"], bool):
        raise TypeError(f"exact_on_grid = {about['exact_on_grid']!r} is neither true nor false")
    if about["failure_bound"] is not None:
        _number("failure_bound", about["failure_bound"], 0, 1)
    _whole("width", about["width"], 1, 2**53)
    d = _whole("d", about["d"], 1, LARGEST_D)
    bits = _whole("bits", about["bits"], 1, 50)
    if about["dtype"] not in DTYPES:
        raise ValueError(f"dtype = {about['dtype']!r} is not one of {', '.join(DTYPES)}")
    dtype = DTYPES[about["dtype"]]
    largest = float(np.finfo(dtype).max) / 4
    low, high = (_number("domain", end, -largest, largest) for end in _list("domain", about["domain"], 2))
    if not low < high:
        raise ValueError(f"domain = [{low}, {high}] is empty")
    outputs = _list("outputs", about["outputs"])
    columns = tuple(_column(output["ranks"], output["weights"], d) for output in outputs)
    step = _number("step", about["step"], 0, largest) if "step" in about else Grid(low, high, bits).step
    if not step:
        raise ValueError("step = 0 makes no grid")
    return FedGrid.within(low, high, step, dtype), columns


def filter_terms(about: Description) -> FilterTerms:
    """The terms of a filter of windows or frames, from a valid description."""
    for key in ("construction", "op"):
        if not isinstance(about[key], str):
            raise TypeError(f"{key} = {about[key]!r} is not text")
    window, frames = about["window"], about["frames"]
    if (window is None) == (frames is None):
        raise ValueError("it has both a window and frames, or neither")
    sides = (
        [1, 1] if window is None else [_whole("window", side, 1, LARGEST_WINDOW) for side in _list("window", window, 2)]
    )
    d = sides[0] * sides[1] if frames is None else _whole("frames", frames, 1, LARGEST_WINDOW)
    if d > LARGEST_WINDOW or about["d"] != d:
        raise ValueError(
            f"d = {about['d']!r} is not the {d} pixels of its window, or they are more than {LARGEST_WINDOW}"
        )
    border = about["border"] if frames is None else "edge"
    if border not in MODES and border != "valid":
        raise ValueError(f"border = {border!r} is unknown")
    if about["batch"] not in (None, 1):
        raise ValueError(f"it takes batches of {about['batch']!r}, and pictures come one by one")
    if about["dtype"] not in PIXELS:
        raise ValueError(f"dtype = {about['dtype']!r} is not one of {', '.join(PIXELS)}")
    if about["inputs"] not in ("floats", "any"):
        raise ValueError("it is right on its grid only (--inputs grid), and pictures may have other values")
    low, high = (_number("domain", end, -1e300, 1e300) for end in _list("domain", about["domain"], 2))
    if not low < high:
        raise ValueError(f"domain = [{low}, {high}] is empty")
    (output,) = _list("outputs", about["outputs"], 1)
    return FilterTerms(
        window=(sides[0], sides[1]), valid=border == "valid", border=border, frames=frames,
        dtype=PIXELS[about["dtype"]], domain=None if about["inputs"] == "floats" else (low, high),
        step=_number("step", about["step"], 2.0**-1000, high - low),
        error=_number("off_grid_error", about["off_grid_error"], 0, 1e300),
        target=_column(output["ranks"], output["weights"], d),
        operations=_whole("operations", about["operations"], 0, 1 << 24),
    )  # fmt: skip


def _number(name: str, value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} = {value!r} is not a number")
    if not low <= value <= high:
        raise ValueError(f"{name} = {value!r} is not within {low:g} to {high:g}")
    return float(value)


def _whole(name: str, value: Any, low: int, high: int) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{name} = {value!r} is not a whole number")
    return int(_number(name, value, low, high))


def _list(name: str, value: Any, length: int = 0) -> list[Any]:
    if not isinstance(value, list) or not value or (length and len(value) != length):
        raise TypeError(f"{name} = {value!r} is not a list of {length or 'some'}")
    return value


def _column(ranks: Any, weights: Any, d: int) -> Target:
    ranks = [_whole("ranks", rank, 1, d) for rank in _list("ranks", ranks)]
    weights = [_number("weights", weight, -1e300, 1e300) for weight in _list("weights", weights)]
    match ranks, weights:
        case [rank], [1]:
            return Target.rank(rank)
        case [low, high], [first, second] if high == low + 1 and abs(first + second - 1) < 1e-9:
            if 0 <= second <= 1:
                return Target(low, high, second)
    raise ValueError(f"an output of ranks {ranks} with weights {weights} cannot be certified")
