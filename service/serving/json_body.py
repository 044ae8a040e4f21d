"""JSON bodies, read by simdjson: arrays of numbers become float64 arrays, everything else plain Python.

    {"model": "...", "vectors": [[1, 2, ...], [3, ...], ...], "nan": "omit"}

simdjson refuses NaN and integers beyond 64 bits. Both are legal here, so a refused body is parsed again with `null` in place
of NaN and with `e0` behind long integers. The standard library finds the place of a mistake in bodies that are not large.
"""

from __future__ import annotations

import json
import re
import threading
from contextlib import suppress
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import simdjson

from service.errors import BadInputError
from service.statistics.fed_grid import Floats

Body = bytes | bytearray
MemberPath = tuple[str | int, ...]
SMALL = 1 << 16  # bytes: parsed in the event loop, by a parser that keeps its memory
DIAGNOSED = 1 << 20  # bytes
DEEP = 32  # levels of nesting beside the numbers
MOST_VALUES = 1 << 13  # values beside the numbers; 8 characters count as a value
# a byte of text takes an index of 4 bytes and a copy; a number has two words of tape, and a float64
TEXT_BYTES, NUMBER_BYTES = 6, 28
LONG = re.compile(rb"(?<=[\[, \t\n\r-])[0-9]{19,}+(?=[\], \t\n\r])")
REFUSED = (ValueError, TypeError, RuntimeError)  # simdjson: malformed, not numbers, beyond 64 bits, nested too deeply
_local = threading.local()


class BodyLimits(NamedTuple):
    """How many vectors a body may hold, and how many numbers each of them."""

    vectors: int
    length: int


def memory_for(body: Body) -> int:
    """The bytes that reading a body may take."""
    return TEXT_BYTES * len(body) + NUMBER_BYTES * body.count(b",") if len(body) > SMALL else 0


class Numbers:
    """An array of numbers, or of arrays of numbers, inside a document that is still in simdjson's memory."""

    def __init__(self, array: Any, brackets: int) -> None:
        self.array = array
        self.brackets = brackets  # opening brackets, including brackets in strings elsewhere
        self.nested = len(array) > 0 and isinstance(array[0], simdjson.Array)

    def flat(self, limits: BodyLimits, missing: bool = False, vector: int = 0) -> Floats:
        """One vector. Where `missing` is allowed, NaN stands for null."""
        if len(self.array) > limits.length:
            raise too_long(limits.length, vector)
        if self.brackets == 1:
            with suppress(*REFUSED):
                return np.frombuffer(self.array.as_buffer(of_type="d"))
        return np.array([_number(value, missing, vector, index) for index, value in enumerate(self.array)], float)

    def rows(self, limits: BodyLimits, missing: bool = False) -> tuple[Floats, list[int]]:
        """Several vectors in one array, and their lengths."""
        if len(self.array) > limits.vectors:
            raise too_many(limits.vectors)
        lengths = [len(row) if isinstance(row, simdjson.Array) else 0 for row in self.array]
        # as_buffer flattens deeper arrays; one bracket for each array proves that there are none
        if lengths and min(lengths) > 0 and max(lengths) <= limits.length and self.brackets == len(lengths) + 1:
            with suppress(*REFUSED):
                return np.frombuffer(self.array.as_buffer(of_type="d")), lengths
        plain = self.brackets == len(lengths) + 1
        rows = [_row(row, plain, limits, missing, vector) for vector, row in enumerate(self.array)]
        return np.concatenate([*rows, np.empty(0)]), lengths


def _row(row: Any, plain: bool, limits: BodyLimits, missing: bool, vector: int) -> Floats:
    if not isinstance(row, simdjson.Array):
        raise BadInputError("A vector must be an array of numbers.", vector=vector)
    if not len(row):
        raise BadInputError("The vector is empty.", vector=vector)
    return Numbers(row, 1 if plain else 2).flat(limits, missing, vector)


def _number(value: Any, missing: bool, vector: int, index: int) -> float:
    if value is None and missing:
        return np.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        names = {bool: "A boolean", str: "A string", type(None): "NaN or null", simdjson.Array: "An array"}
        raise BadInputError(f"{names.get(type(value), 'An object')} is not a number.", vector=vector, index=index)
    return float(value)


def read(body: Body, *paths: MemberPath) -> tuple[dict[str, Any], dict[MemberPath, Numbers]]:
    """A JSON object as plain Python, without the arrays at `paths`, and these arrays."""
    text = bytes(body)
    reading = _Conversion(frozenset(paths))
    document = reading.plain(_parse(text), ())
    if not isinstance(document, dict):
        raise BadInputError("The body must be a JSON object.")
    brackets = int(np.count_nonzero(np.frombuffer(text, np.uint8) == ord("["))) - reading.arrays  # fast
    return document, {path: Numbers(array, brackets) for path, array in reading.found.items()}


class _Conversion:
    """The conversion of one document."""

    def __init__(self, paths: frozenset[MemberPath]) -> None:
        self.paths = paths
        self.found: dict[MemberPath, Any] = {}
        self.arrays = 0
        self.room = MOST_VALUES

    def plain(self, value: Any, path: MemberPath) -> Any:
        if isinstance(value, simdjson.Array):
            if path in self.paths:
                self.found[path] = value
                return None
            self.arrays += 1
            self._take(len(value), path)
            return [self.plain(each, (*path, index)) for index, each in enumerate(value)]
        if isinstance(value, str):
            self._take(len(value) // 8, path)
        if isinstance(value, simdjson.Object):
            self._take(len(value), path)
            members: dict[str, Any] = {}
            for name in value.keys():  # noqa: SIM118, values that are arrays stay simdjson's
                self._take(len(name) // 8, path)
                if name in members:
                    raise BadInputError(f"The member {name[:40]!r} occurs twice.")
                if name == "":  # which simdjson does not look up
                    raise BadInputError("A member has an empty name.")
                members[name] = self.plain(value[name], (*path, name))
            return members
        return value

    def _take(self, count: int, path: MemberPath) -> None:
        self.room -= count
        if self.room < 0 or len(path) > DEEP:
            raise _malformed(f"more than {MOST_VALUES} values or {DEEP} levels stand beside the numbers")


def _parse(text: bytes) -> Any:
    """The document. Small documents use the parser of the thread, which refuses while parts of another are alive."""
    if len(text) <= SMALL:
        with suppress(*REFUSED, AttributeError):
            return _local.parser.parse(text)
    parser = simdjson.Parser()
    if len(text) <= SMALL:
        _local.parser = parser
    try:
        return parser.parse(text)
    except REFUSED as error:
        changed = LONG.sub(rb"\g<0>e0", text.replace(b"NaN", b"null"))
        if changed != text:
            with suppress(*REFUSED):
                return simdjson.Parser().parse(changed)
        raise _mistake(text, str(error)) from None


def _mistake(text: bytes, said: str) -> BadInputError:
    """The mistake in a body that simdjson refuses, and its place."""
    if len(text) > DIAGNOSED:
        return _malformed(said.partition(": ")[2].partition(".")[0] or said)
    try:
        place = _infinite(json.loads(text, parse_int=float))
    except json.JSONDecodeError as error:
        return _malformed(f"{error.msg} at character {error.pos}")
    except (ValueError, RecursionError):
        return _malformed("it is not UTF-8, or nested too deeply")
    if place is None:
        return _malformed("a string holds half a surrogate pair, or it is nested too deeply")
    *rows, index = place
    said = "NaN, infinities and numbers beyond float64 are not allowed."
    return BadInputError(said, vector=rows[0] if rows else 0, index=index)


def _infinite(value: Any) -> list[int] | None:
    """The indices of the first number that is not finite, inside its member."""
    if isinstance(value, dict):
        return next((place for each in value.values() if (place := _infinite(each)) is not None), None)
    if not isinstance(value, list):
        return None
    for index, each in enumerate(value):
        if isinstance(each, float) and not isfinite(each):
            return [index]
        if (place := _infinite(each)) is not None:
            return place if isinstance(each, dict) else [index, *place]
    return None


def _malformed(why: str) -> BadInputError:
    return BadInputError(f"The body cannot be read as JSON: {why}.", status=400)


def too_many(vectors: int) -> BadInputError:
    return BadInputError(f"Too many vectors: at most {vectors} in one request.")


def too_long(length: int, vector: int) -> BadInputError:
    return BadInputError(f"The vector is too long: at most {length} values can be served here.", vector=vector)
