"""Request bodies as vectors: JSON by simdjson, npy and raw in place. No single number is handled in Python."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from service.errors import BadInputError
from service.serving import json_body
from service.serving.json_body import Body, BodyLimits
from service.serving.options import MedianOptions, Nan, merged
from service.statistics.fed_grid import Floats
from service.statistics.solve import Answers
from service.statistics.vectors import Numbers, Vectors

NPY_HEADER_LIMIT = 4096
_MEMBER = r"""(['"])(\w+)\1\s*+:\s*+('[^'"]*'|"[^'"]*"|True|False|\([0-9,\s-]*\)|\[[^\]]*\])\s*+"""
NPY_MEMBER = re.compile(_MEMBER)
NPY_LITERAL = re.compile(rf"\{{\s*+(?:{_MEMBER}(?:,\s*+|(?=\}})))++\}}")
NPY_DTYPE = re.compile(r"[<>|=]?(?:f[48]|[iu][1248])")
NPY_SHAPE = re.compile(r"\(\s*+([0-9]{1,15}+)\s*+,\s*+(?:([0-9]{1,15}+)\s*+(?:,\s*+)?+)?+\)")
ANSWERS = 16  # most answers of one request, in multiples of the limit of vectors


@dataclass(slots=True, eq=False)
class Question:
    """The content of a body. A table has column names and a shape."""

    vectors: Vectors
    options: MedianOptions
    names: list[str] | None = None
    table: tuple[int, int] | None = None

    @classmethod
    def matrix(cls, values: Numbers, options: MedianOptions, **about: Any) -> Question:
        """The rows of a matrix."""
        return cls(Vectors.matrix(values), options, **about)


@dataclass(eq=False)
class Answer:
    """The answer to a question. `bounds` are the error bounds of the networks' own numbers, None for numpy's answers."""

    question: Question
    found: Answers

    @cached_property
    def values(self) -> Numbers:
        """An entry for each vector, or a row for several quantiles or ranks: NaN for a vector with missing numbers."""
        return self.question.options.shaped(self.found.values, self.question.vectors.flat.dtype)

    @cached_property
    def bounds(self) -> Floats | None:
        if self.found.bounds is None:
            return None
        return self.question.options.shaped(self.found.bounds, np.dtype(np.float64))

    @property
    def about(self) -> dict[str, Any]:
        """The members beside the answers: bounds if they exist, details if the caller asked for them."""
        members: dict[str, Any] = {} if self.bounds is None else {"error_bound": self.bounds.tolist()}
        if self.question.options.details:
            found = self.found
            members |= {
                "models": sorted(found.models),
                "fallback": found.fallback,
                "batch_size": found.batch_size,
                "timings": {
                    "queue_ms": found.queue_s * 1e3,
                    "inference_ms": found.inference_s * 1e3,
                    "total_ms": found.total_s * 1e3,
                },
            }
        return members


def settled(question: Question, limits: BodyLimits) -> Question:
    """The question after all checks, with missing numbers removed."""
    options = question.options.checked()
    if question.vectors.count * options.per_vector > ANSWERS * limits.vectors:
        most = ANSWERS * limits.vectors
        raise BadInputError(f"Too many answers: at most {most} in one request, vectors times quantiles.")
    if options.nan != "error":
        question.vectors = _without_missing(question.vectors, options.nan)
    return question


def _without_missing(vectors: Vectors, nan: Nan) -> Vectors:
    """The vectors without NaN. `omit` leaves NaN out; `propagate` leaves every vector with NaN out. A vector that is left
    out or empty has the answer NaN."""
    if vectors.flat.dtype.kind != "f" or not (missing := np.isnan(vectors.flat)).any():
        return vectors
    lengths = np.add.reduceat(~missing, vectors.starts, dtype=np.int64)
    if nan == "propagate":
        lengths[lengths < vectors.lengths] = 0
        missing = np.repeat(lengths == 0, vectors.lengths)
    places = np.flatnonzero(lengths)
    return Vectors(vectors.flat[~missing], lengths[places], len(lengths), places)


def read_json(body: Body, options: MedianOptions, limits: BodyLimits) -> Question:
    """`{"vectors": [[...], ...]}` or `{"vector": [...]}` with options."""
    document, found = json_body.read(body, ("vectors",), ("vector",))
    if unknown := sorted(set(document) - options.members):
        known = ", ".join(sorted(options.members))
        raise BadInputError(f"Unknown member {unknown[0][:40]!r}; known are {known}.")
    if ("vectors" in document) == ("vector" in document):
        raise BadInputError('Give either "vectors" or "vector".')
    name = "vectors" if "vectors" in document else "vector"
    del document[name]
    numbers, chosen = found.get((name,)), merged(document, options)
    if numbers is None:
        what = "an array of arrays of numbers" if name == "vectors" else "an array of numbers"
        raise BadInputError(f'"{name}" must be {what}.', vector=None if name == "vectors" else 0)
    if name == "vector":
        flat = numbers.flat(limits, chosen.nan != "error")
        if not len(flat):
            raise BadInputError("The vector is empty.", vector=0)
        return Question.matrix(flat[None], chosen)
    flat, lengths = numbers.rows(limits, chosen.nan != "error")
    if not lengths:
        raise BadInputError('"vectors" is empty.')
    return Question(Vectors(flat, np.array(lengths)), chosen)


def read_raw(body: Body, options: MedianOptions, limits: BodyLimits) -> Question:
    """Little-endian numbers, `d` for each vector."""
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
    return Question.matrix(np.frombuffer(body, dtype).reshape(count, d), options)


def read_npy(body: Body, options: MedianOptions, limits: BodyLimits) -> Question:
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
    return Question.matrix(array.astype(dtype.newbyteorder("="), copy=False), options)


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
        raise BadInputError("The .npy header is too long or incomplete.", status=400)
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
