"""Request bodies into arrays, without touching single numbers in Python.

JSON goes through simdjson straight into a float64 buffer; npy and raw bodies are read in place. JSON that is large, or
has something wrong in it, is read in pieces (`json_body`), which also says which vector and which index is at fault.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import simdjson

from service.errors import BadInputError
from service.serving import json_body
from service.serving.json_body import PIECE, Body, BodyLimits, Reading
from service.serving.options import MedianOptions, merged
from service.statistics.scaling import Floats
from service.statistics.vectors import Places, Vectors

ARRAYS = frozenset({"quantiles", "ranks"})  # other members that are arrays
NPY_HEADER_LIMIT = 4096
_MEMBER = r"""(['"])(\w+)\1\s*+:\s*+('[^'"]*'|"[^'"]*"|True|False|\([0-9,\s-]*\)|\[[^\]]*\])\s*+"""
NPY_MEMBER = re.compile(_MEMBER)
NPY_LITERAL = re.compile(rf"\{{\s*+(?:{_MEMBER}(?:,\s*+|(?=\}})))++\}}")
NPY_DTYPE = re.compile(r"[<>|=]?(?:f[48]|[iu][1248])")
NPY_SHAPE = re.compile(r"\(\s*+([0-9]{1,15}+)\s*+,\s*+(?:([0-9]{1,15}+)\s*+(?:,\s*+)?+)?+\)")
WHOLE = 1 << 16  # bytes of JSON that are parsed in one go
FEW = 8  # so many brackets are looked for one by one, which is faster than counting


@dataclass(slots=True, eq=False)
class Bundle:
    """Vectors of one length as a matrix, and where they stand in the request."""

    values: Floats
    positions: list[int] | range


@dataclass(slots=True, eq=False)
class Question:
    """A body, read: groups of equal length, how many vectors there are, those included that need no looking at, and the
    options. `names` are those of a table's columns, `table` its numbers of rows and columns, `kind` is the type of the
    numbers where no group is left to tell."""

    groups: list[Bundle]
    count: int
    options: MedianOptions
    names: list[str] | None = None
    table: tuple[int, int] | None = None
    kind: np.dtype[Any] | None = None

    @property
    def vectors(self) -> tuple[Vectors | None, Places | None]:
        """The vectors of all groups, None without any, and their places in the request, None where they are in order."""
        if not self.groups:
            return None, None
        first = self.groups[0]
        if len(self.groups) == 1:
            in_order = isinstance(first.positions, range) and len(first.positions) == self.count
            return Vectors.matrix(first.values), None if in_order else np.asarray(first.positions)
        flat = np.concatenate([each.values.reshape(-1) for each in self.groups])
        lengths = np.concatenate([np.full(len(each.values), each.values.shape[1]) for each in self.groups])
        return Vectors(flat, lengths), np.concatenate([np.asarray(each.positions) for each in self.groups])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the answers: that of the numbers, as for numpy.median, or float64, as for numpy.quantile of a list."""
        if self.options.told != "medians":
            return np.dtype(np.float64)
        kind = self.kind or self.groups[0].values.dtype
        return kind if kind.kind == "f" else np.dtype(np.float64)


def read_json(body: Body, options: MedianOptions, limits: BodyLimits) -> Reading[Question]:
    """`{"vectors": [[...], ...]}` or `{"vector": [...]}` with options: at once if it is small and good, else in pieces."""
    if len(body) <= WHOLE and (request := _read_small_json(bytes(body), options, limits)) is not None:
        return request
    limits = limits._replace(missing=options.nan != "error" or b'"nan"' in body)
    numeric: dict[json_body.MemberPath, BodyLimits] = {
        ("vectors",): limits._replace(nested=True),
        ("vector",): limits._replace(vectors=1, nested=False),
    }
    document, found = yield from json_body.read(body, numeric)
    if not isinstance(document, dict):
        raise BadInputError('The body must be an object: {"vectors": [[...], ...]}.')
    if unknown := sorted(set(document) - options.members):
        known = ", ".join(sorted(options.members))
        raise BadInputError(f"Unknown member {unknown[0][:40]!r}; known are {known}.")
    if ("vectors" in document) == ("vector" in document):
        raise BadInputError('Give either "vectors" or "vector".')
    name = "vectors" if "vectors" in document else "vector"
    numbers = found.get((name,))
    if numbers is None:
        what = "an array of arrays of numbers" if name == "vectors" else "an array of numbers"
        raise BadInputError(f'"{name}" must be {what}.', vector=None if name == "vectors" else 0)
    chosen = merged({key: value for key, value in document.items() if key != name}, options)
    if name == "vector":
        if not len(numbers.values):
            raise BadInputError("The vector is empty.", vector=0)
        return Question([Bundle(numbers.values[None], range(1))], 1, chosen)
    if not numbers.lengths:
        raise BadInputError('"vectors" is empty.')
    groups = yield from group(numbers.values, numbers.lengths)
    return Question(groups, len(numbers.lengths), chosen)


def _read_small_json(body: bytes, options: MedianOptions, limits: BodyLimits) -> Question | None:
    """The same for a small body with nothing wrong in it, in one call of the parser, or None."""
    try:
        document = json_body.parse(body)
        if not isinstance(document, simdjson.Object) or len(document) > len(options.members):
            return None
        names = set(document.keys())
        if len(names) < len(document) or not names <= options.members or ("vectors" in names) == ("vector" in names):
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
        brackets += len(names & ARRAYS)
        if min(lengths) == 0 or max(lengths) > limits.length or not _brackets(body, brackets):
            return None
        flat = np.frombuffer(array.as_buffer(of_type="d"))
        chosen = merged({key: document[key] for key in names - {name}}, options)
        return Question(json_body.in_one_go(group(flat, lengths)), len(lengths), chosen)
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


def group(flat: Floats, lengths: list[int]) -> Reading[list[Bundle]]:
    """Consecutive vectors of a flat buffer, those of equal length together."""
    if len(set(lengths)) == 1:
        return [Bundle(flat.reshape(len(lengths), lengths[0]), range(len(lengths)))]
    places: dict[int, list[int]] = {}
    for position, length in enumerate(lengths):
        places.setdefault(length, []).append(position)
    ends = np.cumsum(lengths).tolist()
    groups = []
    for length, positions in places.items():
        matrix = np.empty((len(positions), length), flat.dtype)
        some = max(1, PIECE // length)
        for start in range(0, len(positions), some):
            for row, i in enumerate(positions[start : start + some], start):
                matrix[row] = flat[ends[i] - length : ends[i]]
            yield None
        groups.append(Bundle(matrix, positions))
    return groups


def read_raw(body: Body, options: MedianOptions, limits: BodyLimits) -> Question:
    """Little-endian numbers, `d` a vector, nothing else."""
    d, dtype = options.d, options.dtype
    if d is None:
        raise BadInputError("A raw body needs ?d=..., the length of its vectors.")
    if dtype is None:
        raise BadInputError("A raw body needs ?dtype=float32 or ?dtype=float64, the type of its numbers.")
    count, rest = divmod(len(body), d * dtype.itemsize)
    if rest or not count:
        raise BadInputError(
            f"{len(body)} bytes are not a whole number of vectors of {d} x {dtype.itemsize} bytes.", vector=count
        )
    _check(count, d, limits)
    return Question([Bundle(np.frombuffer(body, dtype).reshape(count, d), range(count))], count, options)


def read_npy(body: Body, options: MedianOptions, limits: BodyLimits) -> Question | Reading[Question]:
    """A .npy file of one vector or a matrix of them. Nothing in it is evaluated or unpickled."""
    header, start = npy_header(body)
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
    if not dtype.isnative:
        return _swapped(array, options)
    return Question([Bundle(array, range(count))], count, options)


def _swapped(array: npt.NDArray[Any], options: MedianOptions) -> Reading[Question]:
    """Numbers in the byte order of this machine, a piece at a time."""
    values = np.empty(array.shape, array.dtype.newbyteorder("="))
    flat, given = values.reshape(-1), array.reshape(-1)
    for start in range(0, len(flat), PIECE):
        if start:
            yield None
        flat[start : start + PIECE] = given[start : start + PIECE]
    return Question([Bundle(values, range(len(values)))], len(values), options)


def npy_header(body: Body) -> tuple[dict[str, str], int]:
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
