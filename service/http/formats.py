"""POST /median in its three formats: from a body to a request, and from an answer to what is sent."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import orjson
from starlette.types import Receive, Scope, Send

from service.compute.engine import Answer, Engine
from service.errors import ProblemError
from service.requests import bodies
from service.requests.json_body import Body, Limits

Headers = dict[bytes, bytes]
KINDS = {kind.encode(): kind for kind in (bodies.JSON, bodies.NPY, bodies.RAW)}


@dataclass(frozen=True, eq=False)
class Head:
    """What stands before a body: the query, the headers by name, and the length they promise."""

    query: bytes
    headers: Headers
    length: int

    @cached_property
    def kind(self) -> str:
        return kind_of(self.headers)

    @cached_property
    def asked(self) -> bodies.Query:
        return bodies.read_query(self.query)


class Reply:
    """An answer in the form that is sent; `fields` are its header lines."""

    __slots__ = ("body", "fields", "status")

    def __init__(self, status: int, fields: bytes, body: bytes) -> None:
        self.status = status
        self.fields = fields
        self.body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [tuple(line.split(b": ", 1)) for line in self.fields.split(b"\r\n")[:-1]]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


def kind_of(headers: Headers) -> str:
    """The format a request is in, and will be answered in."""
    given = headers.get(b"content-type", b"application/json")
    kind = KINDS.get(given) or KINDS.get(given.partition(b";")[0].strip().lower())
    if kind is None:
        accepted = list(KINDS.values())
        raise ProblemError(415, f"Content-Type must be one of {', '.join(accepted)}.", accepted=accepted)
    return kind


def read_small(kind: str, body: bytes, query: bodies.Query, limits: Limits) -> bodies.Request | None:
    """A small body, if nothing is wrong with it."""
    match kind:
        case bodies.JSON:
            return bodies.read_small_json(body, query.options, limits) if len(body) <= bodies.WHOLE else None
        case bodies.NPY:
            return bodies.read_npy(body, query.options, limits)
    return bodies.read_raw(body, query, limits)


async def read(kind: str, body: Body, query: bodies.Query, engine: Engine) -> bodies.Request:
    """A body of any size, read and checked while others are served."""
    limits = engine.limits
    match kind:
        case bodies.JSON:
            return await engine.in_steps(bodies.read_json(body, query.options, limits))
        case bodies.NPY:
            return await engine.offload(len(body) // 16, bodies.read_npy, body, query.options, limits)
    return bodies.read_raw(body, query, limits)


def write(kind: str, answer: Answer) -> Reply:
    """An answer in the format of its request."""
    match kind:
        case bodies.JSON:
            return _write_json(answer)
        case bodies.NPY:
            return _write_binary(answer, bodies.write_npy(answer.array), kind)
    return _write_binary(answer, answer.array.tobytes(), kind)


def _write_json(answer: Answer) -> Reply:
    # lists, not arrays: orjson 3.13 with OPT_SERIALIZE_NUMPY writes beyond its buffer for long numbers
    content = orjson.dumps(
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
        }
    )
    return Reply(200, b"content-type: application/json\r\ncontent-length: %d\r\n" % len(content), content)


BINARY_FIELDS = (
    b"content-type: %b\r\n"
    b"content-length: %d\r\n"
    b"x-median-models: %b\r\n"
    b"x-median-certified: %d\r\n"
    b"x-median-error-bound: %b\r\n"
    b"x-median-fallback: %d\r\n"
    b"x-median-batch-size: %d\r\n"
    b"server-timing: queue;dur=%.3f, inference;dur=%.3f, total;dur=%.3f\r\n"
)


def _write_binary(answer: Answer, content: bytes, kind: str) -> Reply:
    """Bare medians; everything else goes into headers."""
    models = answer.models
    fields = BINARY_FIELDS % (
        kind.encode(),
        len(content),
        ",".join(sorted(set(models))).encode("latin-1", "replace"),
        len(models),
        repr(max(answer.error_bound)).encode(),
        sum(answer.fallback),
        answer.batch_size,
        answer.queue_s * 1e3,
        answer.inference_s * 1e3,
        answer.total_s * 1e3,
    )
    return Reply(200, fields, content)
