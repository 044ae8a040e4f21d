"""Request bodies into arrays, without touching single numbers in Python.

JSON goes through simdjson straight into a float64 buffer; npy and raw bodies are read in place. Only when that fails is
the body read again, slowly, to say which vector and which index is at fault.
"""

from __future__ import annotations

import ast
import io
import json
import math
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import simdjson

from service.errors import BadInputError
from service.ranks import Even
from service.registry import name_of_even
from service.scaling import Floats

JSON, NPY, RAW = "application/json", "application/x-npy", "application/octet-stream"
FIELDS = frozenset({"vector", "vectors", "model", "construction", "even", "exact"})
QUERY = frozenset({"model", "construction", "even", "exact", "dtype", "d"})
NPY_HEADER_LIMIT = 4096
LARGE = 1 << 20
FEW = 8  # so many brackets are looked for one by one, which is faster than counting
_local = threading.local()
LENGTH = re.compile(r"0*[1-9][0-9]{0,8}\Z")
RAW_DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float64": np.dtype("<f8")}


@dataclass(frozen=True)
class Options:
    """What the caller may choose beside the numbers."""

    model: str | None = None
    construction: str | None = None
    even: Even = "mean"
    exact: bool = False


@dataclass(frozen=True)
class Query:
    """Everything a query string can say: options for every format, type and length of raw numbers."""

    options: Options
    dtype: np.dtype[Any]
    d: int | None


@dataclass(slots=True, eq=False)
class Group:
    """Vectors of one length as a matrix, and where they stand in the request."""

    values: Floats
    positions: list[int] | range


@dataclass(slots=True, eq=False)
class Request:
    """A body, read: groups of equal length, and the options."""

    groups: list[Group]
    count: int
    options: Options


@lru_cache(maxsize=256)
def read_query(text: bytes) -> Query:
    """The query string; clients repeat theirs, so it is read once. A name that does not exist is a mistake worth telling."""
    query = dict(parse_qsl(text.decode("latin-1"), keep_blank_values=True))
    for name in query:
        if name not in QUERY:
            raise BadInputError(f"Unknown query parameter {name[:40]!r}; known are {', '.join(sorted(QUERY))}.")
    dtype = query.get("dtype", "float32")
    if dtype not in RAW_DTYPES:
        raise BadInputError(f"dtype must be float32 or float64, not {dtype[:40]!r}")
    d = query.get("d")
    if d is not None and not LENGTH.match(d):
        raise BadInputError(f"d must be a positive integer, not {d[:40]!r}")
    exact = query.get("exact", "false")
    if exact not in ("true", "false"):
        raise BadInputError(f"exact must be true or false, not {exact[:40]!r}")
    even = name_of_even(query.get("even", "mean"))
    options = Options(query.get("model"), query.get("construction"), even, exact == "true")
    return Query(options, RAW_DTYPES[dtype], None if d is None else int(d))


def read_json(body: bytes, options: Options, max_vectors: int) -> Request:
    """`{"vectors": [[...], ...]}` or `{"vector": [...]}` with options; the fast way, or else the way that explains."""
    try:
        document = _parse(body)
        if isinstance(document, simdjson.Object):
            names = set(document.keys())
            if "vectors" in names and "vector" not in names and names <= FIELDS:
                vectors = document["vectors"]
                if isinstance(vectors, simdjson.Array) and 0 < len(vectors) <= max_vectors:
                    lengths = [len(vector) if isinstance(vector, simdjson.Array) else 0 for vector in vectors]
                    if min(lengths) > 0 and _brackets(body, len(lengths) + 1):
                        flat = np.frombuffer(vectors.as_buffer(of_type="d"))
                        chosen = _options({name: document[name] for name in names - {"vectors"}}, options)
                        return Request(_group(flat, lengths), len(lengths), chosen)
            elif "vector" in names and names <= FIELDS:
                vector = document["vector"]
                if isinstance(vector, simdjson.Array) and len(vector) and _brackets(body, 1):
                    flat = np.frombuffer(vector.as_buffer(of_type="d"))
                    chosen = _options({name: document[name] for name in names - {"vector"}}, options)
                    return Request([Group(flat[None], range(1))], 1, chosen)
    except (ValueError, TypeError, RuntimeError):  # simdjson: malformed, not a number, beyond 64 bits
        pass
    return _explain_json(body, options, max_vectors)


def _parse(body: bytes) -> Any:
    """The document, by a parser that keeps its memory from call to call, one in each thread.

    It refuses to go on while any part of its last document is alive, as in the traceback of an error under way; and
    what a large document took is not worth keeping.
    """
    if len(body) > LARGE:
        return simdjson.Parser().parse(body)
    try:
        return _local.parser.parse(body)
    except (AttributeError, RuntimeError):
        _local.parser = simdjson.Parser()
        return _local.parser.parse(body)


def _brackets(body: bytes, count: int) -> bool:
    """Whether there are `count` opening brackets: as_buffer flattens what is nested, and one for each array proves that
    nothing was."""
    if count > FEW:
        return body.count(b"[") == count
    at = -1
    for _ in range(count):
        at = body.find(b"[", at + 1)
    return at >= 0 and body.find(b"[", at + 1) < 0


def _group(flat: Floats, lengths: list[int]) -> list[Group]:
    """Consecutive vectors of a flat buffer, those of equal length together."""
    if len(set(lengths)) == 1:
        return [Group(flat.reshape(len(lengths), lengths[0]), range(len(lengths)))]
    ends = np.cumsum(lengths)
    places: dict[int, list[int]] = {}
    for position, length in enumerate(lengths):
        places.setdefault(length, []).append(position)
    return [
        Group(np.stack([flat[ends[i] - length : ends[i]] for i in positions]), positions)
        for length, positions in places.items()
    ]


def _options(given: Mapping[str, Any], defaults: Options) -> Options:
    if not given:
        return defaults
    for name in ("model", "construction"):
        if given.get(name) is not None and not isinstance(given[name], str):
            raise BadInputError(f"{name} must be a string")
    if not isinstance(given.get("exact", False), bool):
        raise BadInputError("exact must be true or false")
    if not isinstance(given.get("even", "mean"), str):
        raise BadInputError("even must be one of mean, lower, upper")
    return replace(
        defaults,
        model=given.get("model") or defaults.model,
        construction=given.get("construction") or defaults.construction,
        even=name_of_even(given["even"]) if "even" in given else defaults.even,
        exact=given.get("exact", defaults.exact),
    )


def _explain_json(body: bytes, options: Options, max_vectors: int) -> Request:
    """The same in plain Python, for bodies the fast parser refuses: nearly always ends in a precise complaint."""
    try:
        document = json.loads(body)
    except RecursionError:
        raise BadInputError("The JSON is nested too deeply.", status=400) from None
    except (ValueError, MemoryError) as error:
        raise BadInputError(f"The body is not JSON: {error}", status=400) from None
    if not isinstance(document, dict):
        raise BadInputError('The body must be an object: {"vectors": [[...], ...]}.')
    if unknown := sorted(set(document) - FIELDS):
        raise BadInputError(f"Unknown member {unknown[0][:40]!r}; known are {', '.join(sorted(FIELDS))}.")
    if ("vectors" in document) == ("vector" in document):
        raise BadInputError('Give either "vectors" or "vector".')
    vectors = document["vectors"] if "vectors" in document else [document["vector"]]
    if not isinstance(vectors, list):
        raise BadInputError('"vectors" must be an array of arrays of numbers.')
    if not vectors:
        raise BadInputError('"vectors" is empty.')
    if len(vectors) > max_vectors:
        raise BadInputError(f"{len(vectors)} vectors are too many: at most {max_vectors} in one request.")
    numbers: list[float] = []
    for position, vector in enumerate(vectors):
        if not isinstance(vector, list):
            raise BadInputError("A vector must be an array of numbers.", vector=position)
        if not vector:
            raise BadInputError("The vector is empty.", vector=position)
        numbers.extend(_number(value, position, index) for index, value in enumerate(vector))
    chosen = _options({name: document[name] for name in document if name not in ("vector", "vectors")}, options)
    return Request(_group(np.array(numbers), [len(vector) for vector in vectors]), len(vectors), chosen)


def _number(value: Any, vector: int, index: int) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        kinds = {str: "a string", bool: "a boolean", type(None): "null", list: "an array", dict: "an object"}
        raise BadInputError(f"{kinds[type(value)].capitalize()} is not a number.", vector=vector, index=index)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise BadInputError(
            "NaN, infinities and numbers beyond float64 have no place here.", vector=vector, index=index
        )
    return number


def read_raw(body: bytes, query: Query, max_vectors: int) -> Request:
    """Little-endian numbers, `d` a vector, nothing else."""
    d, dtype = query.d, query.dtype
    if d is None:
        raise BadInputError("A raw body needs ?d=..., the length of its vectors.")
    count, rest = divmod(len(body), d * dtype.itemsize)
    if rest or not count:
        raise BadInputError(
            f"{len(body)} bytes are not a whole number of vectors of {d} x {dtype.itemsize} bytes.", vector=count
        )
    return _matrix(np.frombuffer(body, dtype).reshape(count, d), query.options, max_vectors)


def read_npy(body: bytes, options: Options, max_vectors: int) -> Request:
    """A .npy file of one vector or a matrix of them. Its header is read as a literal: nothing is ever unpickled."""
    shape, dtype, data = _npy_parts(body)
    if dtype.kind not in "fiu" or dtype.itemsize not in (1, 2, 4, 8) or dtype == np.float16:
        raise BadInputError(f"Arrays of {dtype} cannot be read; send float32, float64 or integers.")
    if len(shape) not in (1, 2) or 0 in shape:
        raise BadInputError(f"The array has shape {shape}; one vector or a non-empty matrix of vectors is expected.")
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise BadInputError(f"The array needs {math.prod(shape) * dtype.itemsize} bytes, the body has {len(data)}.")
    count, d = (1, shape[0]) if len(shape) == 1 else shape
    array = np.frombuffer(data, dtype).reshape(count, d)
    kind: np.dtype[Any] = np.dtype(np.float32) if dtype.kind == "f" and dtype.itemsize == 4 else np.dtype(np.float64)
    return _matrix(array.astype(kind, copy=False), options, max_vectors)


def write_npy(values: Floats) -> bytes:
    """The answers as a .npy file."""
    file = io.BytesIO()
    np.save(file, values, allow_pickle=False)
    return file.getvalue()


def _npy_parts(body: bytes) -> tuple[tuple[int, ...], np.dtype[Any], memoryview]:
    if body[:6] != b"\x93NUMPY" or len(body) < 12:
        raise BadInputError("The body is not a .npy file.", status=400)
    width = {1: 2, 2: 4, 3: 4}.get(body[6])
    if width is None:
        raise BadInputError(f"Version {body[6]} of the .npy format is unknown.", status=400)
    length = int.from_bytes(body[8 : 8 + width], "little")
    if length > NPY_HEADER_LIMIT or len(body) < 8 + width + length:
        raise BadInputError("The .npy header is longer than any we accept, or cut short.", status=400)
    try:
        header = ast.literal_eval(body[8 + width : 8 + width + length].decode("utf-8"))
        fortran, shape, descr = header["fortran_order"], header["shape"], header["descr"]
        if fortran is not False and not (fortran is True and len(shape) == 1):
            raise BadInputError("Fortran order is not accepted; save numpy.ascontiguousarray(x).")
        if not isinstance(descr, str) or not all(isinstance(n, int) and 0 <= n < 2**40 for n in shape):
            raise ValueError(descr)
        return tuple(shape), np.dtype(descr), memoryview(body)[8 + width + length :]
    except BadInputError:
        raise
    except Exception:  # a hostile literal can raise nearly anything, from SyntaxError to MemoryError
        raise BadInputError("The .npy header cannot be read.", status=400) from None


def _matrix(values: Floats, options: Options, max_vectors: int) -> Request:
    if len(values) > max_vectors:
        raise BadInputError(f"{len(values)} vectors are too many: at most {max_vectors} in one request.")
    return Request([Group(values, range(len(values)))], len(values), options)
