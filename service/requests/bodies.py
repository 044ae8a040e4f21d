"""Request bodies into arrays, without touching single numbers in Python.

JSON goes through simdjson straight into a float64 buffer; npy and raw bodies are read in place. JSON that is large, or
has something wrong in it, is read in pieces (`json_body`), which also says which vector and which index is at fault.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import numpy.typing as npt
import simdjson

from exporter.question.task import Even
from service.errors import BadInputError
from service.layout import EVEN
from service.requests import json_body
from service.requests.json_body import PIECE, Body, BodyLimits, Reading
from service.scaling import Floats

FIELDS = frozenset({"vector", "vectors", "model", "construction", "even", "exact"})
QUERY = frozenset({"model", "construction", "even", "exact", "dtype", "d"})
NPY_HEADER_LIMIT = 4096
_MEMBER = r"""(['"])(\w+)\1\s*+:\s*+('[^'"]*'|"[^'"]*"|True|False|\([0-9,\s-]*\)|\[[^\]]*\])\s*+"""
NPY_MEMBER = re.compile(_MEMBER)
NPY_LITERAL = re.compile(rf"\{{\s*+(?:{_MEMBER}(?:,\s*+|(?=\}})))++\}}")
NPY_DTYPE = re.compile(r"[<>|=]?(?:f[48]|[iu][1248])")
NPY_SHAPE = re.compile(r"\(\s*([0-9]{1,15})\s*,\s*(?:([0-9]{1,15})\s*,?\s*)?\)")
WHOLE = 1 << 16  # bytes of JSON that are parsed in one go
FEW = 8  # so many brackets are looked for one by one, which is faster than counting
LENGTH = re.compile(r"0*[1-9][0-9]{0,8}\Z")
RAW_DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float64": np.dtype("<f8")}


@dataclass(frozen=True)
class MedianOptions:
    """What the caller may choose beside the numbers; type and length of raw ones, which say neither themselves."""

    model: str | None = None
    construction: str | None = None
    even: Even = "mean"
    exact: bool = False
    dtype: np.dtype[Any] = RAW_DTYPES["float32"]
    d: int | None = None


@dataclass(slots=True, eq=False)
class Bundle:
    """Vectors of one length as a matrix, and where they stand in the request."""

    values: Floats
    positions: list[int] | range


@dataclass(slots=True, eq=False)
class Question:
    """A body, read: groups of equal length, and the options."""

    groups: list[Bundle]
    count: int
    options: MedianOptions


@lru_cache(maxsize=256)
def read_query(text: bytes) -> MedianOptions:
    """The query string; clients repeat theirs, so it is read once. A name that does not exist is a mistake worth telling."""
    pairs = parse_qsl(text.decode("latin-1"), keep_blank_values=True)
    query = dict(pairs)
    if len(query) < len(pairs):
        raise BadInputError("A query parameter is there twice.")
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
    chosen = query.get("model"), query.get("construction"), even, exact == "true"
    return MedianOptions(*chosen, RAW_DTYPES[dtype], None if d is None else int(d))


def read_json(body: Body, options: MedianOptions, limits: BodyLimits) -> Reading[Question]:
    """`{"vectors": [[...], ...]}` or `{"vector": [...]}` with options: at once if it is small and good, else in pieces."""
    if len(body) <= WHOLE and (request := _read_small_json(bytes(body), options, limits)) is not None:
        return request
    numeric: dict[json_body.MemberPath, BodyLimits] = {
        ("vectors",): limits._replace(nested=True),
        ("vector",): BodyLimits(1, limits.length, nested=False),
    }
    document, found = yield from json_body.read(body, numeric)
    if not isinstance(document, dict):
        raise BadInputError('The body must be an object: {"vectors": [[...], ...]}.')
    if unknown := sorted(set(document) - FIELDS):
        raise BadInputError(f"Unknown member {unknown[0][:40]!r}; known are {', '.join(sorted(FIELDS))}.")
    if ("vectors" in document) == ("vector" in document):
        raise BadInputError('Give either "vectors" or "vector".')
    name = "vectors" if "vectors" in document else "vector"
    numbers = found.get((name,))
    if numbers is None:
        what = "an array of arrays of numbers" if name == "vectors" else "an array of numbers"
        raise BadInputError(f'"{name}" must be {what}.', vector=None if name == "vectors" else 0)
    chosen = _options({key: value for key, value in document.items() if key != name}, options)
    if name == "vector":
        if not len(numbers.values):
            raise BadInputError("The vector is empty.", vector=0)
        return Question([Bundle(numbers.values[None], range(1))], 1, chosen)
    if not numbers.lengths:
        raise BadInputError('"vectors" is empty.')
    groups = yield from _group(numbers.values, numbers.lengths)
    return Question(groups, len(numbers.lengths), chosen)


def _read_small_json(body: bytes, options: MedianOptions, limits: BodyLimits) -> Question | None:
    """The same for a small body with nothing wrong in it, in one call of the parser, or None."""
    try:
        document = json_body.parse(body)
        if not isinstance(document, simdjson.Object) or len(document) > len(FIELDS):
            return None
        names = set(document.keys())
        if len(names) < len(document) or not names <= FIELDS or ("vectors" in names) == ("vector" in names):
            return None
        name = "vectors" if "vectors" in names else "vector"
        array = document[name]
        if not isinstance(array, simdjson.Array):
            return None
        if name == "vector":
            lengths, brackets = [len(array)], 1
        elif 0 < len(array) <= limits.vectors:
            lengths = [len(vector) if isinstance(vector, simdjson.Array) else 0 for vector in array]
            brackets = len(lengths) + 1
        else:
            return None
        if min(lengths) == 0 or max(lengths) > limits.length or not _brackets(body, brackets):
            return None
        flat = np.frombuffer(array.as_buffer(of_type="d"))
        chosen = _options({key: document[key] for key in names - {name}}, options)
        return Question(json_body.in_one_go(_group(flat, lengths)), len(lengths), chosen)
    except json_body.REFUSED:
        return None


def _brackets(body: bytes, count: int) -> bool:
    """Whether there are `count` opening brackets: as_buffer flattens what is nested, and one for each array proves that
    nothing was."""
    if count > FEW:
        return body.count(b"[") == count
    at = -1
    for _ in range(count):
        at = body.find(b"[", at + 1)
    return at >= 0 and body.find(b"[", at + 1) < 0


def _group(flat: Floats, lengths: list[int]) -> Reading[list[Bundle]]:
    """Consecutive vectors of a flat buffer, those of equal length together."""
    if len(set(lengths)) == 1:
        return [Bundle(flat.reshape(len(lengths), lengths[0]), range(len(lengths)))]
    places: dict[int, list[int]] = {}
    for position, length in enumerate(lengths):
        places.setdefault(length, []).append(position)
    ends = np.cumsum(lengths).tolist()
    groups = []
    for length, positions in places.items():
        matrix = np.empty((len(positions), length))
        some = max(1, PIECE // length)
        for start in range(0, len(positions), some):
            for row, i in enumerate(positions[start : start + some], start):
                matrix[row] = flat[ends[i] - length : ends[i]]
            yield
        groups.append(Bundle(matrix, positions))
    return groups


def _options(given: Mapping[str, Any], defaults: MedianOptions) -> MedianOptions:
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


def read_raw(body: Body, options: MedianOptions, limits: BodyLimits) -> Question:
    """Little-endian numbers, `d` a vector, nothing else."""
    d, dtype = options.d, options.dtype
    if d is None:
        raise BadInputError("A raw body needs ?d=..., the length of its vectors.")
    count, rest = divmod(len(body), d * dtype.itemsize)
    if rest or not count:
        raise BadInputError(
            f"{len(body)} bytes are not a whole number of vectors of {d} x {dtype.itemsize} bytes.", vector=count
        )
    _check(count, d, limits)
    return Question([Bundle(np.frombuffer(body, dtype).reshape(count, d), range(count))], count, options)


def read_npy(body: Body, options: MedianOptions, limits: BodyLimits) -> Question | Reading[Question]:
    """A .npy file of one vector or a matrix of them. Nothing in it is evaluated or unpickled."""
    header, start = _npy_header(body)
    descr, shape = header["descr"], NPY_SHAPE.fullmatch(header["shape"])
    if not NPY_DTYPE.fullmatch(descr):
        raise BadInputError(f"Arrays of {descr[:40]} cannot be read; send float32, float64 or integers.")
    count, d = (1, int(shape[1])) if shape and not shape[2] else map(int, shape.groups()) if shape else (0, 0)
    if not count * d:
        raise BadInputError(
            f"The array has shape {header['shape'][:40]}; one vector or a non-empty matrix of vectors is expected."
        )
    if header["fortran_order"] == "True" and count > 1:
        raise BadInputError("Fortran order is not accepted; save numpy.ascontiguousarray(x).")
    _check(count, d, limits)
    dtype: np.dtype[Any] = np.dtype(descr)
    if len(body) - start != count * d * dtype.itemsize:
        raise BadInputError(f"The array needs {count * d * dtype.itemsize} bytes, the body has {len(body) - start}.")
    array = np.frombuffer(body, dtype, offset=start).reshape(count, d)
    kind: np.dtype[Any] = np.dtype(np.float32) if dtype.kind == "f" and dtype.itemsize == 4 else np.dtype(np.float64)
    if dtype != kind:
        return _converted(array, kind, options)
    return Question([Bundle(array, range(count))], count, options)


def _converted(array: npt.NDArray[Any], kind: np.dtype[Any], options: MedianOptions) -> Reading[Question]:
    """Numbers of another type as floats, a piece at a time."""
    values: Floats = np.empty(array.shape, kind)
    flat, given = values.reshape(-1), array.reshape(-1)
    for start in range(0, len(flat), PIECE):
        if start:
            yield
        flat[start : start + PIECE] = given[start : start + PIECE]
    return Question([Bundle(values, range(len(values)))], len(values), options)


def _npy_header(body: Body) -> tuple[dict[str, str], int]:
    """The members of a .npy file's header as they are written, and where the data begins.

    A header is a Python literal. It is matched here, not evaluated as numpy's own reader does (numpy.lib.format, tried with
    its max_header_size at 4096): that takes six times as long for a plain header and up to 0.2 s for a hostile one, has
    the compiler print warnings, raises RecursionError, and takes (True, True) for a shape.
    """
    if body[:6] != b"\x93NUMPY" or len(body) < 12:
        raise BadInputError("The body is not a .npy file.", status=400)
    width = {1: 2, 2: 4, 3: 4}.get(body[6])
    if width is None:
        raise BadInputError(f"Version {body[6]} of the .npy format is unknown.", status=400)
    start = 8 + width + int.from_bytes(body[8 : 8 + width], "little")
    if start > NPY_HEADER_LIMIT or len(body) < start:
        raise BadInputError("The .npy header is longer than any we accept, or cut short.", status=400)
    text = bytes(body[8 + width : start]).decode("latin-1").strip()
    members = NPY_MEMBER.findall(text)
    header = {name: value for _, name, value in members}
    if (
        not NPY_LITERAL.fullmatch(text)
        or len(members) != 3
        or header.keys() != {"descr", "fortran_order", "shape"}
        or header["fortran_order"] not in ("True", "False")
    ):
        raise BadInputError("The .npy header cannot be read.", status=400)
    return header | {"descr": header["descr"].strip("'\"")}, start


def _check(count: int, d: int, limits: BodyLimits) -> None:
    if count > limits.vectors:
        raise json_body.too_many(limits.vectors)
    if d > limits.length:
        raise json_body.too_long(limits.length, 0)


def name_of_even(value: str) -> Even:
    """The convention for even lengths, checked."""
    for even in EVEN:
        if value == even:
            return even
    raise BadInputError(f"even must be one of mean, lower, upper, not {value[:40]!r}")
