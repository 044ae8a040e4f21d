"""The formats of POST /median and POST /quantile, one entry each: how to read a body, how to write an answer, and a
description.

An answer has the format of its request, unless `Accept` asks for another. `FORMATS` serves the routes, their errors, the
OpenAPI document, the client, its command line, and the table of docs/service.md.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from service.errors import ProblemError
from service.serving import bodies, json_body, tables
from service.serving.bodies import Answer, Question
from service.serving.json_body import Body, BodyLimits
from service.serving.options import STABLE, MedianOptions, options_of
from service.statistics.fed_grid import Floats

Sent = tuple[bytes, dict[str, str]]
UNSAID = frozenset({"", "application/x-www-form-urlencoded"})  # no Content-Type, and the default of curl -d
LONGEST = 1024  # bytes of Accept
WEIGHT = re.compile(r"[01](?:\.[0-9]{0,3}+)?+")
TEXT: dict[str, Any] = {"schema": {}}  # any text: "218" is a table too
BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}


@dataclass(frozen=True, eq=False)
class Format:
    """One format of bodies and answers.

    `memory` is the number of bytes that `read` may take beside the body. `write` makes the content of an answer. A `bare`
    format holds only the numbers, and the rest is in the headers. A `table` is always read in a thread. `pack` and `unpack`
    are the client's side: from vectors and options to a body and a query, and from an answer to its members. `schema` and
    `answer` describe body and answer of a route in the OpenAPI document, `text` in tables.
    """

    name: str
    media_type: str
    text: str
    read: Callable[[Body, MedianOptions, BodyLimits], Question]
    write: Callable[[Answer], bytes]
    pack: Callable[[Iterable[npt.ArrayLike], Mapping[str, Any]], Sent]
    unpack: Callable[[bytes, Mapping[str, str]], Any]
    bare: bool = True
    table: bool = False
    memory: Callable[[Body], int] = lambda _: 0
    schema: Callable[[str], dict[str, Any]] = lambda _: BINARY
    answer: Callable[[str], dict[str, Any]] = lambda _: BINARY

    @cached_property
    def content_type(self) -> bytes:
        return self.media_type.encode()


@lru_cache(maxsize=64)
def format_of(content_type: bytes) -> Format:
    """The format of a request: JSON by default."""
    given = content_type.decode("latin-1").partition(";")[0].strip().lower()
    if given in UNSAID:
        return FORMATS["json"]
    found = next((each for each in FORMATS.values() if each.media_type == given), None)
    if found is None:
        accepted = [each.media_type for each in FORMATS.values()]
        raise ProblemError(415, f"Content-Type must be one of {', '.join(accepted)}.", accepted=accepted)
    return found


def answer_format(accept: bytes, asked: Format) -> Format:
    """The format that a header `Accept` prefers (RFC 9110). Among equals the request's format wins, then the first."""
    if accept in (b"", b"*/*"):
        return asked
    if len(accept) > LONGEST:
        raise ProblemError(400, f"Accept is longer than {LONGEST} bytes.")
    wanted: dict[str, float] = {}
    for part in accept.decode("latin-1").lower().split(","):
        kind, *parameters = (each.strip() for each in part.split(";"))
        weight = next((text[2:].strip() for text in parameters if text.startswith("q=")), "1")
        wanted[kind] = float(weight) if WEIGHT.fullmatch(weight) else 0.0
    best, most = None, 0.0
    for each in (asked, *FORMATS.values()):
        ranges = each.media_type, each.media_type.partition("/")[0] + "/*", "*/*"
        weight_of = next((wanted[name] for name in ranges if name in wanted), 0.0)
        if weight_of > most:
            best, most = each, weight_of
    if best is None:
        offered = [each.media_type for each in FORMATS.values()]
        raise ProblemError(406, f"Accept allows none of {', '.join(offered)}.", accepted=offered)
    return best


def table() -> str:
    """The formats for the documentation."""
    rows = [f"| `{each.media_type}` | `{each.name}` | {each.text} |" for each in FORMATS.values()]
    return "\n".join(["| Content-Type | in the client | |", "|---|---|---|", *rows])


def _write_json(answer: Answer) -> bytes:
    # lists, not arrays: orjson 3.13 with OPT_SERIALIZE_NUMPY writes beyond its buffer for long numbers
    return orjson.dumps({answer.question.options.told: answer.values.tolist(), **answer.about})


def _pack_json(vectors: Iterable[npt.ArrayLike], options: Mapping[str, Any]) -> Sent:
    lists = [_doubles(vector).tolist() for vector in vectors]  # lists for the same reason
    return orjson.dumps({"vectors": lists, **options}), {}


def _npy(values: Floats) -> bytes:
    file = io.BytesIO()
    np.save(file, values, allow_pickle=False)
    return file.getvalue()


def _pack_npy(vectors: Iterable[npt.ArrayLike], options: Mapping[str, Any]) -> Sent:
    matrix = np.atleast_2d(np.asarray(vectors))
    return _npy(np.ascontiguousarray(matrix) if matrix.dtype.kind in "iu" else _matrix(vectors)), query(options)


def _pack_raw(vectors: Iterable[npt.ArrayLike], options: Mapping[str, Any]) -> Sent:
    matrix = _matrix(vectors)
    return matrix.tobytes(), query(options) | {"dtype": matrix.dtype.name, "d": str(matrix.shape[1])}


def _pack_table(pack: Callable[[Floats], bytes], vectors: Iterable[npt.ArrayLike], options: Mapping[str, Any]) -> Sent:
    return pack(_matrix(vectors)), query(options) | {"by": "rows", "header": "false"}


def _matrix(vectors: Iterable[npt.ArrayLike]) -> Floats:
    """Vectors of one length, in their own float32 or else in float64."""
    matrix = np.asarray(vectors)
    return (
        np.ascontiguousarray(np.atleast_2d(matrix), "<f4")
        if matrix.dtype == np.float32
        else _doubles(np.atleast_2d(matrix))
    )


def _doubles(values: npt.ArrayLike) -> Floats:
    """Numbers in float64. An integer that float64 cannot hold is refused, never rounded."""
    given = np.asarray(values)
    floats = np.ascontiguousarray(given, "<f8")
    if given.dtype.kind in "iu" and given.size and not (given.min() >= -(2**53) and given.max() <= 2**53):
        raise ValueError("integers beyond 2^53 are exact only in the format npy")
    return floats


def query(options: Mapping[str, Any]) -> dict[str, str]:
    """Options in the form of a query."""
    return {name: _text(value) for name, value in options.items()}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else ",".join(map(repr, value))


EXAMPLES: dict[str, dict[str, Any]] = {
    "/median": {
        "one vector": {"value": {"vector": [3.5, -1, 2]}},
        "several lengths": {"value": {"vectors": [[3, 1, 2], [4, 1], [1e300, -1e300, 0.5]]}},
        "the network's number": {"value": {"vectors": [[0.1, 0.2, 0.3, 0.4]], "grid": True}},
        "lower of two": {"value": {"vector": [1, 2, 3, 4], "even": "lower"}},
    },
    "/quantile": {
        "quartiles": {"value": {"vectors": [[3, 1, 2], [4, 1]], "quantiles": [0.25, 0.5, 0.75]}},
        "as numpy": {"value": {"vector": [1, 2, 3, 4], "quantiles": [0.9], "method": "hazen"}},
        "the two smallest": {"value": {"vectors": [[3.5, -1, 2]], "ranks": [1, 2]}},
    },
}
_LARGEST = float(np.finfo(np.float64).max)
_NUMBERS: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "number", "minimum": -_LARGEST, "maximum": _LARGEST},
}


def _object(name: str, numbers: dict[str, Any], path: str) -> dict[str, Any]:
    choices = {each: option.schema for each, option in options_of(path, query_only=False).items()}
    of_ranks = {each: choices.pop(each) for each in ("quantiles", "method", "ranks") if each in choices}
    ranks = {"ranks": of_ranks.pop("ranks")} if of_ranks else {}
    kinds: list[dict[str, Any]] = [
        {
            "type": "object",
            "required": [name, *list(each)[:1]],
            "additionalProperties": False,
            "properties": {name: numbers, **choices, **each},
        }
        for each in ((of_ranks, ranks) if of_ranks else ({},))
    ]
    return kinds[0] if len(kinds) == 1 else {"oneOf": kinds}


def _json_schema(path: str) -> dict[str, Any]:
    return {
        "schema": {
            "oneOf": [
                _object("vectors", {"type": "array", "minItems": 1, "items": _NUMBERS}, path),
                _object("vector", _NUMBERS, path),
            ]
        },
        "examples": EXAMPLES[path.removeprefix(STABLE)],
    }


def _json_answer(path: str) -> dict[str, Any]:
    return {
        "schema": {
            "$ref": "#/components/schemas/"
            + {"/median": "MedianAnswer"}.get(path.removeprefix(STABLE), "QuantileAnswer")
        }
    }


FORMATS = {
    each.name: each
    for each in (
        Format(
            "json", "application/json",
            "`vectors` or one `vector`, and options; numbers are float64: send integers beyond 2^53 as `npy`",
            bodies.read_json, _write_json, _pack_json, lambda content, _: orjson.loads(content), bare=False,
            memory=json_body.memory_for,
            schema=_json_schema, answer=_json_answer,
        ),
        Format(
            "npy", "application/x-npy", "a `.npy` file of a vector or a matrix of vectors: float32, float64 or integers",
            bodies.read_npy, lambda answer: _npy(answer.values), _pack_npy, lambda content, _: np.load(io.BytesIO(content)),
        ),
        Format(
            "raw", "application/octet-stream", "little-endian numbers: `?d=` is the length of a vector, `dtype=` "
            "`float32` or `float64`; both are needed",
            bodies.read_raw, lambda answer: answer.values.tobytes(), _pack_raw,
            lambda content, query: np.frombuffer(content, "<f8" if {"quantiles", "ranks"} & {*query} else query["dtype"]),
        ),
        Format(
            "csv", "text/csv", "a table; the first line has the names of the columns unless it is all numbers; "
            "`header=true` or `header=false` decides",
            tables.read_csv, tables.write_csv, partial(_pack_table, tables.pack_csv), tables.unpack_csv,
            schema=lambda _: TEXT, answer=lambda _: TEXT, table=True, memory=tables.memory_for,
        ),
        *(
            Format(
                name, f"application/vnd.apache.arrow.{kind}", f"a table in Arrow's {kind} format, not compressed",
                tables.read_arrow, partial(tables.write_arrow, file),
                partial(_pack_table, partial(tables.pack_arrow, file)), partial(tables.unpack_arrow, file),
                table=True, memory=tables.memory_for,
            )
            for name, kind, file in (("arrow", "stream", False), ("feather", "file", True))
        ),
    )
}  # fmt: skip
