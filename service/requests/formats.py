"""The formats of POST /median, one entry each: how a body is read, how it is answered, and what is said of it.

A request is answered in the format it came in. Everything that knows of formats finds them in `FORMATS`: the service on
both its ways, its refusals, the OpenAPI document, the client and its command line, and the table of docs/service.md.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import GeneratorType
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import orjson

from service import json_text
from service.errors import ProblemError
from service.layout import EVEN
from service.requests import bodies
from service.requests.answer import Answer
from service.requests.json_body import Body, BodyLimits, Reading
from service.scaling import Floats

Sent = tuple[bytes, dict[str, str]]
BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}


@dataclass(frozen=True, eq=False)
class Format:
    """One format of bodies and answers.

    `read` may return a reading, which stops after every step that others should not wait for. The content that `write`
    makes is all there is to say of an answer, or, if it is `bare`, the medians alone: the rest is in the headers then.
    `pack` and `unpack` are the client's side: vectors and options to a body and a query, and an answer to what it says.
    `schema` and `answer` describe body and answer in the OpenAPI document, `text` in tables.
    """

    name: str
    media_type: str
    text: str
    read: Callable[[Body, bodies.MedianOptions, BodyLimits], bodies.Question | Reading[bodies.Question]]
    write: Callable[[Answer], bytes]
    pack: Callable[[Iterable[npt.ArrayLike], Mapping[str, Any]], Sent]
    unpack: Callable[[bytes, Mapping[str, str]], Any]
    bare: bool = True
    schema: dict[str, Any] = field(default_factory=BINARY.copy)
    answer: dict[str, Any] = field(default_factory=BINARY.copy)

    def reading(self, body: Body, options: bodies.MedianOptions, limits: BodyLimits) -> Reading[bodies.Question]:
        """What `read` returns, step by step in any case."""
        read = self.read(body, options, limits)
        if isinstance(read, GeneratorType):
            return (yield from cast(Reading[bodies.Question], read))
        return cast(bodies.Question, read)


def format_of(content_type: bytes) -> Format:
    """The format a request is in, and will be answered in."""
    given = content_type.decode("latin-1").partition(";")[0].strip().lower()
    found = next((each for each in FORMATS.values() if each.media_type == given), None)
    if found is None:
        accepted = [each.media_type for each in FORMATS.values()]
        raise ProblemError(415, f"Content-Type must be one of {', '.join(accepted)}.", accepted=accepted)
    return found


def table() -> str:
    """The formats for the documentation."""
    rows = [f"| `{each.media_type}` | `{each.name}` | {each.text} |" for each in FORMATS.values()]
    return "\n".join(["| Content-Type | in the client | |", "|---|---|---|", *rows])


def _write_json(answer: Answer) -> bytes:
    # lists, not arrays: orjson 3.13 with OPT_SERIALIZE_NUMPY writes beyond its buffer for long numbers
    return json_text.long(
        {
            "medians": answer.medians,
            "models": answer.models,
            "certified": [True] * len(answer.models),
            "error_bound": answer.error_bound,
            "fallback": answer.fallback,
            "batch_size": answer.batch_size,
            "timings": {
                "queue_ms": answer.queue_s * 1e3,
                "inference_ms": answer.inference_s * 1e3,
                "total_ms": answer.total_s * 1e3,
            },
        },
        4 * json_text.NUMBER * len(answer.models) + sum(map(len, answer.models)),
    )


def _pack_json(vectors: Iterable[npt.ArrayLike], options: Mapping[str, Any]) -> Sent:
    lists = [np.asarray(vector, np.float64).tolist() for vector in vectors]  # lists for the same reason
    return orjson.dumps({"vectors": lists, **options}), {}


def _npy(values: Floats) -> bytes:
    file = io.BytesIO()
    np.save(file, values, allow_pickle=False)
    return file.getvalue()


def _pack_npy(vectors: Iterable[npt.ArrayLike], options: Mapping[str, Any]) -> Sent:
    return _npy(_matrix(vectors)), query(options)


def _pack_raw(vectors: Iterable[npt.ArrayLike], options: Mapping[str, Any]) -> Sent:
    matrix = _matrix(vectors)
    return matrix.tobytes(), query(options) | {"dtype": matrix.dtype.name, "d": str(matrix.shape[1])}


def _matrix(vectors: Iterable[npt.ArrayLike]) -> Floats:
    """Vectors of one length, in their own float32 or else in float64."""
    matrix = np.asarray(vectors)
    return np.ascontiguousarray(np.atleast_2d(matrix), "<f4" if matrix.dtype == np.float32 else "<f8")


def query(options: Mapping[str, Any]) -> dict[str, str]:
    """Options as they stand in a query."""
    return {name: str(value).lower() if value is True else str(value) for name, value in options.items()}


EXAMPLES: dict[str, Any] = {
    "one vector": {"value": {"vector": [3.5, -1, 2]}},
    "several lengths": {"value": {"vectors": [[3, 1, 2], [4, 1], [1e300, -1e300, 0.5]]}},
    "bit-equal to numpy": {"value": {"vectors": [[0.1, 0.2, 0.3, 0.4]], "exact": True}},
    "lower of two": {"value": {"vector": [1, 2, 3, 4], "even": "lower"}},
}
_LARGEST = float(np.finfo(np.float64).max)
_NUMBERS: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "number", "minimum": -_LARGEST, "maximum": _LARGEST},
}


def _object(name: str, numbers: dict[str, Any]) -> dict[str, Any]:
    choices = {
        "model": {"type": ["string", "null"]},
        "construction": {"type": ["string", "null"]},
        "even": {"type": "string", "enum": list(EVEN), "default": "mean"},
        "exact": {"type": "boolean", "default": False},
    }
    properties = {name: numbers, **choices}
    return {"type": "object", "required": [name], "additionalProperties": False, "properties": properties}


FORMATS = {
    each.name: each
    for each in (
        Format(
            "json", "application/json", "`vectors` or one `vector`, and options; float64",
            bodies.read_json, _write_json, _pack_json, lambda content, _: orjson.loads(content), bare=False,
            schema={
                "schema": {
                    "oneOf": [
                        _object("vectors", {"type": "array", "minItems": 1, "items": _NUMBERS}),
                        _object("vector", _NUMBERS),
                    ]
                },
                "examples": EXAMPLES,
            },
            answer={"schema": {"$ref": "#/components/schemas/MedianAnswer"}},
        ),
        Format(
            "npy", "application/x-npy", "a `.npy` file of a vector or a matrix of vectors: float32, float64 or integers",
            bodies.read_npy, lambda answer: _npy(answer.array), _pack_npy, lambda content, _: np.load(io.BytesIO(content)),
        ),
        Format(
            "raw", "application/octet-stream", "little-endian numbers: `?d=` is the length of a vector, `dtype=` "
            "`float32` or `float64`",
            bodies.read_raw, lambda answer: answer.array.tobytes(), _pack_raw,
            lambda content, query: np.frombuffer(content, query["dtype"]),
        ),
    )
}  # fmt: skip
