"""JSON that is mostly numbers, read a piece at a time.

    {"model": "...", "vectors": [[1, 2, ...], [3, ...], ...], "nan": "omit"}
                                └────── numbers: by simdjson, PIECE bytes at a time
     └───────────────────────── the rest: at most REST bytes, by the standard library

A parser that is given a whole body keeps everybody else waiting until it is done, and builds what the body says however
useless. Here no step takes longer than a piece takes, good or bad; what is too long or too much is refused where it
becomes so; and memory is the body and its numbers. A reading is a generator that stops after every piece.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import simdjson

from service.errors import BadInputError
from service.statistics.scaling import Floats

Body = bytes | bytearray
MemberPath = tuple[str | int, ...]
Result = TypeVar("Result")
Reading = Generator[Callable[[], Any] | None, Any, Result]  # stops after a step, or for work that belongs in a thread

PIECE = 1 << 15  # bytes
REST = 1 << 14  # bytes beside the numbers
DEEP = 32
FEW = 256  # tokens at a time
BOM = b"\xef\xbb\xbf"
SPACE = rb"[ \t\n\r]*+"
TOKEN = re.compile(SPACE + rb'([{}\[\],:]|"(?:[^"\\]|\\.)*+"|[^ \t\n\r{}\[\],:"]++)', re.DOTALL)
OPENING = re.compile(SPACE + rb"\[")
CLOSING = re.compile(SPACE + rb"\]")
SEPARATOR = re.compile(SPACE + rb"([,\]])")
ROWS = re.compile(rb"(?:[^\]]*+\]" + SPACE + rb",)*+")  # each followed by another
LAST_ROW = re.compile(rb"([^\]]*+\])" + SPACE + rb"\]")
NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?")
LONG = re.compile(rb"[-+.eE0-9]{19,}+")
KINDS = {b'"': "A string", b"[": "An array", b"{": "An object"}
WORDS = {b"true": "A boolean", b"false": "A boolean", b"null": "Null"}
NOT_FINITE = frozenset({b"NaN", b"Infinity", b"-Infinity"})
MISSING = re.compile(rb"(?<![^\[, \t\n\r])(?:null|NaN)(?![^\], \t\n\r])")
REFUSED = (ValueError, TypeError, RuntimeError)  # simdjson: malformed, not numbers, beyond 64 bits, nested too deeply


_local = threading.local()


class BodyLimits(NamedTuple):
    """How many vectors a body may hold, and how many numbers each of them; whether they must be arrays in an array, or
    must not; whether null and NaN may stand for a number that is missing."""

    vectors: int
    length: int
    nested: bool | None = None
    missing: bool = False


@dataclass(slots=True, eq=False)
class Numbers:
    """An array of numbers, `lengths` None, or of arrays of numbers, one after the other."""

    values: Floats
    lengths: list[int] | None


def parse(text: bytes) -> Any:
    """A document, by a parser that keeps its memory from call to call, one in each thread.

    It refuses to go on while any part of its last document is alive, as in the traceback of an error under way.
    """
    try:
        return _local.parser.parse(text)
    except (AttributeError, RuntimeError):
        _local.parser = simdjson.Parser()
        return _local.parser.parse(text)


def at_once(reading: Reading[Result]) -> Result | None:
    """The end of a reading that takes a single step, or None."""
    try:
        next(reading)
    except StopIteration as end:
        result: Result = end.value
        return result
    reading.close()
    return None


def in_one_go(reading: Reading[Result]) -> Result:
    """The end of a reading, without a pause."""
    done = None
    while True:
        try:
            work = reading.send(done)
            done = None if work is None else work()
        except StopIteration as end:
            result: Result = end.value
            return result


def read(body: Body, numeric: Mapping[MemberPath, BodyLimits]) -> Reading[tuple[Any, dict[MemberPath, Numbers]]]:
    """The document with the arrays at the paths `numeric` taken out of it ({} is left there), and these arrays."""
    found: dict[MemberPath, Numbers] = {}
    kept: list[bytes] = []
    cuts: list[tuple[int, int]] = []  # where in the rest so many bytes were taken out
    room, path = REST, list[Any]()
    start = at = len(BOM) if body.startswith(BOM) else 0
    for number in count():
        if (token := TOKEN.match(body, at, start + room)) is None:
            break
        if number % FEW == 0:
            yield None
        text, at = bytes(token[1]), token.end()
        if text == b"[" and (here := tuple(path)) in numeric:
            kept.append(bytes(body[start : at - 1]) + b"{}")
            room -= len(kept[-1])
            found[here], end = yield from _array(body, at, numeric[here])
            cuts.append((REST - room, end - at))
            start = at = end
        elif text in (b"{", b"["):
            path.append(None if text == b"{" else 0)
            if len(path) > DEEP:
                raise _malformed("it is nested too deeply")
        elif text in (b"}", b"]"):
            del path[-1:]
        elif text == b"," and path:
            path[-1] = path[-1] + 1 if isinstance(path[-1], int) else None
        elif path and path[-1] is None:
            path[-1] = _key(text)
    if len(body) > start + room:
        raise _malformed(f"more than {REST} bytes of it are no numbers, or stand where none are expected")
    kept.append(bytes(body[start:]))
    return _rest(b"".join(kept), cuts), found


def _key(text: bytes) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        return ""  # the rest is looked at as a whole in the end


def _rest(text: bytes, cuts: list[tuple[int, int]]) -> Any:
    """What stands beside the numbers, by the standard library."""
    try:
        document = json.loads(text, object_pairs_hook=_members, parse_constant=_constant)
        json.dumps(document, ensure_ascii=False).encode()
    except RecursionError:
        raise _malformed("it is nested too deeply") from None
    except UnicodeEncodeError:
        raise _malformed("a string holds half a surrogate pair") from None
    except json.JSONDecodeError as error:
        place = error.pos + sum(length for position, length in cuts if position <= error.pos)
        raise _malformed(f"{error.msg} at character {place}") from None
    except ValueError as error:
        raise _malformed(str(error)) from None
    return document


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise BadInputError(f"The member {twice[:40]!r} is there twice.")
    return members


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no value")


def _malformed(why: str) -> BadInputError:
    return BadInputError(f"The body is not JSON that can be read here: {why}.", status=400)


class _Store:
    """Numbers as they come. The memory for the most there can be is reserved, and used only as far as they go."""

    def __init__(self, body: Body, most: int) -> None:
        self.values = np.empty(min(len(body) // 2 + 1, most))
        self.count = 0

    def add(self, part: Floats) -> None:
        self.values[self.count : self.count + len(part)] = part
        self.count += len(part)

    @property
    def all(self) -> Floats:
        return self.values[: self.count]


def _array(body: Body, at: int, limits: BodyLimits) -> Reading[tuple[Numbers, int]]:
    """The array that was opened before `at`, and where it ends."""
    store = _Store(body, limits.vectors * limits.length)
    nested = OPENING.match(body, at, at + PIECE) is not None
    if nested and limits.nested is False:
        raise _no_number(b"[", 0, 0)
    if limits.nested and not nested:
        if not (closing := CLOSING.match(body, at, at + PIECE)):
            raise _no_vector(bytes(body[at : at + PIECE]), 0)
        return Numbers(store.all, []), closing.end()
    if nested:
        lengths, end = yield from _rows(body, at, limits, store)
        return Numbers(store.all, lengths), end
    end = yield from _items(body, at, store, limits._replace(length=len(store.values)), 0)
    return Numbers(store.all, None), end


def _items(body: Body, at: int, store: _Store, limits: BodyLimits, vector: int) -> Reading[int]:
    """Numbers up to the closing bracket."""
    first, most = store.count, limits.length
    while True:
        close = body.find(b"]", at, at + PIECE)
        end = close if close >= 0 else body.rfind(b",", at, at + PIECE)
        if end < 0:
            short = at + PIECE >= len(body)
            raise _malformed("it ends within an array" if short else f"{PIECE} bytes without a comma or a bracket")
        text = bytes(body[at:end])
        if close >= 0 and store.count == first and not text.strip():
            return end + 1
        text, missing = _filled(text, limits)
        part = _emptied(_parse_items(text, vector, store.count - first), missing)
        if store.count - first + len(part) > most:
            raise too_long(most, vector)
        store.add(part)
        if close >= 0:
            return end + 1
        at = end + 1
        yield None


def _rows(body: Body, at: int, limits: BodyLimits, store: _Store) -> Reading[tuple[list[int], int]]:
    """Arrays of numbers up to the closing bracket: as many as a piece holds at once, or a long one in pieces."""
    lengths: list[int] = []
    while True:
        rows = ROWS.match(body, at, at + PIECE)
        assert rows is not None
        end, last = rows.end(), None
        if end > at:
            text = bytes(body[at : end - 1])
        elif last := LAST_ROW.match(body, at, at + PIECE):
            text, end = bytes(last[1]), last.end()
        else:
            opening = OPENING.match(body, at, at + PIECE)
            if opening is None:
                raise _no_vector(bytes(body[at : at + PIECE]), len(lengths))
            before = store.count
            end = yield from _items(body, opening.end(), store, limits, len(lengths))
            if store.count == before:
                raise _empty(len(lengths))
            lengths.append(store.count - before)
            separator = SEPARATOR.match(body, end, end + PIECE)
            if separator is None:
                raise _malformed(f"vector {len(lengths) - 1} is followed by neither a comma nor a bracket")
            text, end = b"", separator.end()
            last = separator if separator[1] == b"]" else None
        if text:
            text, missing = _filled(text, limits)
            values, more = _parse_rows(text, len(lengths), limits)
            store.add(_emptied(values, missing))
            lengths += more
        if len(lengths) + (last is None) > limits.vectors:
            raise too_many(limits.vectors)
        if last is not None:
            return lengths, end
        at = end
        yield None


def too_many(vectors: int) -> BadInputError:
    return BadInputError(f"Too many vectors: at most {vectors} in one request.")


def too_long(length: int, vector: int) -> BadInputError:
    return BadInputError(f"The vector is too long: at most {length} values can be served here.", vector=vector)


def _empty(vector: int) -> BadInputError:
    return BadInputError("The vector is empty.", vector=vector)


def _no_vector(text: bytes, vector: int) -> BadInputError:
    """Something else stands where a vector should."""
    text = text.strip()
    if not text or text[:1] in b",]}:":
        return _malformed(f"vector {vector} is missing")
    return BadInputError("A vector must be an array of numbers.", vector=vector)


def _flat(text: bytes) -> Floats:
    """Numbers with commas between them, at least one."""
    array = parse(b"[" + text + b"]")
    values = np.frombuffer(array.as_buffer(of_type="d"))
    if not len(values):
        raise ValueError("empty")
    return values


def _filled(text: bytes, limits: BodyLimits) -> tuple[bytes, npt.NDArray[np.intp] | None]:
    """The same with a 0 for every number that is missing, if such may be, and which those are: each has as many commas
    before it as numbers, in rows of at least one number too."""
    if not limits.missing or not (places := [found.start() for found in MISSING.finditer(text)]):
        return text, None
    commas = np.flatnonzero(np.frombuffer(text, np.uint8) == ord(","))
    return MISSING.sub(b"0", text), np.searchsorted(commas, places)


def _emptied(values: Floats, missing: npt.NDArray[np.intp] | None) -> Floats:
    if missing is not None:
        values = values.copy()
        values[missing] = np.nan
    return values


def _with_floats(text: bytes) -> bytes:
    """The same numbers, integers that may need more than 64 bits as floats, which are read whatever their size."""
    return LONG.sub(lambda found: found[0] + b"e0" if found[0].removeprefix(b"-").isdigit() else found[0], text)


def _parse_items(text: bytes, vector: int, first: int) -> Floats:
    """Numbers with commas between them; if there is something else, its place."""
    for change in (bytes, _with_floats):
        text = change(text)
        with suppress(*REFUSED):
            return _flat(text)
    items = text.split(b",")
    good = _most(len(items) - 1, lambda count: _flat(b",".join(items[:count])))
    raise _no_number(items[good].strip(b" \t\n\r"), vector, first + good)


def _most(count: int, attempt: Callable[[int], Any]) -> int:
    """The largest number up to `count` that can be parsed, when all below it can."""
    low, high = 0, count + 1
    while high - low > 1:
        middle = (low + high) // 2
        try:
            attempt(middle)
            low = middle
        except REFUSED:
            high = middle
    return low


def _no_number(item: bytes, vector: int, index: int) -> BadInputError:
    kind = WORDS.get(item) or KINDS.get(item[:1])
    if kind is not None:
        return BadInputError(f"{kind} is not a number.", vector=vector, index=index)
    if item in NOT_FINITE or NUMBER.fullmatch(item):
        said = "NaN, infinities and numbers beyond float64 have no place here."
        return BadInputError(said, vector=vector, index=index)
    what = repr(item[:40].decode("utf-8", "replace")) if item else "nothing"
    return _malformed(f"{what} stands for number {index} of vector {vector}")


def _parse_rows(text: bytes, first: int, limits: BodyLimits) -> tuple[Floats, list[int]]:
    """Whole rows with commas between them; if something is wrong, its place."""
    for change in (bytes, _with_floats):
        text = change(text)
        try:
            rows = parse(b"[" + text + b"]")
        except REFUSED:
            continue
        if first + len(rows) > limits.vectors:
            raise too_many(limits.vectors)
        return _checked_rows(rows, text.count(b"["), first, limits)
    pieces = text.split(b"]")[:-1]
    good = _most(len(pieces), lambda count: parse(b"[" + b"]".join(pieces[:count]) + b"]]"))
    if first + good >= limits.vectors:
        raise too_many(limits.vectors)
    row = pieces[min(good, len(pieces) - 1)].lstrip()
    row = row[1:].lstrip() if good and row[:1] == b"," else row
    if row[:1] != b"[":
        raise _no_vector(row, first + good)
    if not row[1:].strip():
        raise _empty(first + good)
    _parse_items(row[1:], first + good, 0)
    raise _malformed(f"vector {first + good} is out of place")


def _checked_rows(rows: Any, brackets: int, first: int, limits: BodyLimits) -> tuple[Floats, list[int]]:
    """The numbers in rows and how many each has. as_buffer flattens what is nested; one bracket a row proves that
    nothing was."""
    lengths = [len(row) if isinstance(row, simdjson.Array) else 0 for row in rows]
    if min(lengths) > 0 and max(lengths) <= limits.length and brackets == len(lengths):
        try:
            return np.frombuffer(rows.as_buffer(of_type="d")), lengths
        except REFUSED:
            pass
    for position, row in enumerate(rows, first):
        if not isinstance(row, simdjson.Array):
            raise BadInputError("A vector must be an array of numbers.", vector=position)
        if not len(row):
            raise _empty(position)
        if len(row) > limits.length:
            raise too_long(limits.length, position)
        for index, value in enumerate(row):
            if isinstance(value, bool) or not isinstance(value, int | float):
                names = {bool: "A boolean", str: "A string", type(None): "Null", simdjson.Array: "An array"}
                kind = names.get(type(value), "An object")
                raise BadInputError(f"{kind} is not a number.", vector=position, index=index)
    raise _malformed("its brackets do not match")
