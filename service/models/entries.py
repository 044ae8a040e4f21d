"""The files of a models folder: found through the manifest, read whole, and checked, so that the rest of the service can
trust a description.

A folder may hold anything: a manifest of wrong types, damaged or replaced files, links, or devices. A faulty entry is
reported and left out; the other entries are served. A manifest names files and their checksums; the description of a model
is in the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import onnx

from exporter.formats.manifest import MANIFEST, models_in
from exporter.formats.model_file import decode
from exporter.problem.description import Description, OutputFields
from service.statistics.fed_grid import FedGrid
from service.statistics.layout import Target

LONGEST_MANIFEST = 1 << 28
LONGEST_FILE = (1 << 31) - 1  # no protobuf is longer
LARGEST_D = 1 << 24  # counts up to here are float32 numbers
DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype(np.float32), "float64": np.dtype(np.float64)}
PIXELS = {"uint8": np.dtype(np.uint8), **DTYPES}
CHUNK = 1 << 16

_contents: WeakValueDictionary[str, memoryview] = WeakValueDictionary()  # files under way to clients, by checksum


class UnusableModelError(Exception):
    """A manifest entry that is left out; the message says why."""


@contextlib.contextmanager
def blamed(what: str) -> Iterator[None]:
    """Blame any error on the model: onnxruntime and protobuf raise classes of their own for every kind of damage."""
    try:
        yield
    except UnusableModelError:
        raise
    except Exception as error:
        text = str(error).strip() or type(error).__name__
        raise UnusableModelError(f"{what}: {text.splitlines()[0][:200]}") from None


@dataclass(frozen=True, eq=False)
class LoadedFile:
    """A file whose bytes matched the manifest when it was loaded, and the description in its metadata."""

    path: Path
    sha256: str
    description: Description

    @cached_property
    def name(self) -> str:
        return self.path.stem

    def content(self) -> memoryview:
        """The same bytes, read and checked again. Simultaneous callers share one copy. From one thread only."""
        content = _contents.get(self.sha256)
        if content is None:
            content = _contents[self.sha256] = memoryview(read_checked(self.path, self.sha256))
        return content


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


def read_checked(path: Path, sha256: str) -> bytes:
    """The bytes of a file, if they match their checksum."""
    try:
        data = read_regular(path, LONGEST_FILE)
    except OSError as error:
        raise UnusableModelError(f"the file cannot be read: {error.strerror}") from None
    if hashlib.sha256(data).hexdigest() != sha256:
        raise UnusableModelError("its sha256 differs from the manifest: the file is damaged or was replaced")
    return data


def listed(folder: Path) -> list[Any]:
    """The unchecked entries of a folder's manifest. The list is empty without a manifest."""
    try:
        return models_in(read_regular(folder / MANIFEST, LONGEST_MANIFEST), parse_int=float)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UnusableModelError(f"the manifest cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UnusableModelError(f"the manifest cannot be read: {type(error).__name__}: {str(error)[:200]}") from None


def label(entry: Any, number: int) -> str:
    """The name of an entry in the report of entries left out."""
    name = entry.get("file") if isinstance(entry, dict) else None
    if not isinstance(name, str):
        return f"{MANIFEST} entry {number}"
    return name[:255].encode(errors="backslashreplace").decode()


def located(folder: Path, entry: Any) -> tuple[Path, str]:
    """The path and the checksum of an entry. The file name is plain."""
    if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in ("file", "sha256")):
        raise UnusableModelError("the manifest entry lacks file or sha256")
    name = entry["file"]
    if Path(name).name != name or not name.endswith(".onnx") or not name.isprintable():
        raise UnusableModelError("the file is not a plain .onnx name inside the models folder")
    return folder / name, entry["sha256"]


def parsed(data: bytes) -> tuple[onnx.ModelProto, Description]:
    """The graph of a file, which has no loop and no weights in other files, and the description in its metadata."""
    proto = onnx.load_model_from_string(data)
    graph = proto.graph
    if len(graph.input) != 1 or len(graph.output) != 1:
        raise UnusableModelError("it has not exactly one input and one output")
    if proto.functions:
        raise UnusableModelError("it defines functions of its own, which may hold a loop that need not end")
    attributes = [attribute for node in graph.node for attribute in node.attribute]
    if any(attribute.HasField("g") or attribute.graphs for attribute in attributes):
        raise UnusableModelError("it has graphs inside its nodes, such as a loop, which need not end")
    tensors = [*graph.initializer, *(tensor for each in attributes for tensor in (each.t, *each.tensors))]
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in tensors):
        raise UnusableModelError("it has weights in other files, which nothing vouches for")
    about = decode(proto)
    if not about:
        raise UnusableModelError("it is no model of onnx-median: its metadata has no description")
    try:
        _refuse_deep(about)
        json.dumps(about, allow_nan=False, ensure_ascii=False).encode()
    except ValueError:
        raise UnusableModelError(
            "its description is nested too deeply, holds a number that is not finite, or text that is not Unicode"
        ) from None
    return proto, about


def _refuse_deep(value: Any, levels: int = 16) -> None:
    """ValueError for lists and objects nested deeper than any description; answers in JSON repeat descriptions."""
    if isinstance(value, dict | list):
        if not levels:
            raise ValueError("nested too deeply")
        for each in value.values() if isinstance(value, dict) else value:
            _refuse_deep(each, levels - 1)


def contract(about: Description) -> tuple[FedGrid, tuple[Target, ...]]:
    """The grid and the output columns of a model for vectors, from a description that can be trusted."""
    if about["d"] > LARGEST_D:
        raise UnusableModelError(f"it takes {about['d']} numbers, and {LARGEST_D} can be counted")
    if about["dtype"] not in DTYPES:
        raise UnusableModelError(f"it takes {about['dtype']}, not one of {', '.join(DTYPES)}")
    dtype = DTYPES[about["dtype"]]
    low, high = about["domain"]
    if max(-low, high) > float(np.finfo(dtype).max) / 4:
        raise UnusableModelError(f"its domain {about['domain']} is too large")
    return FedGrid.within(low, high, about["step"], dtype), tuple(map(column, about["outputs"]))


def column(output: OutputFields) -> Target:
    """The order statistic of an output, if counting can prove it."""
    match output["ranks"], output["weights"]:
        case [rank], [1]:
            return Target.rank(rank)
        case [low, high], [first, second] if high == low + 1 and abs(first + second - 1) < 1e-9:
            return Target(low, high, second)
    raise UnusableModelError(
        f"an output of ranks {output['ranks']} with weights {output['weights']} cannot be certified"
    )
