"""One request and its answer: its id, the API key, the bytes of its body, the answer in a format, the line in the log."""

from __future__ import annotations

import asyncio
import hmac
import itertools
import logging
import re
import secrets
import time
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from urllib.parse import quote

from starlette.responses import Response

from service.errors import ProblemError
from service.process import logs, metrics
from service.serving import formats
from service.serving.answer import Answer
from service.serving.engine import Engine
from service.serving.formats import Format
from service.serving.options import MedianOptions, read_query
from service.serving.problems import problem_response, protocol_response

log = logging.getLogger("service")
Headers = dict[bytes, bytes]
Fields = list[tuple[bytes, bytes]]
REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}\Z")
SOON = 0.02  # seconds
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready", "/", "/docs"})
OPEN_FILES = "/page/"  # what the page is made of; what it shows is asked for with the key
NOSNIFF = (b"x-content-type-options", b"nosniff")
UNKNOWN = "unknown"  # the route of what no route takes


@dataclass(frozen=True, eq=False)
class Head:
    """What stands before a body."""

    method: str
    path: str
    query: bytes
    headers: Headers

    @cached_property
    def format(self) -> Format:
        return formats.format_of(self.headers.get(b"content-type", b""))

    @cached_property
    def answer_format(self) -> Format:
        """The format that `Accept` prefers: that of the request, unless the header says otherwise."""
        return formats.answer_format(self.headers.get(b"accept", b""), self.format)

    @cached_property
    def options(self) -> MedianOptions:
        return read_query(self.query, self.path)


NO_HEAD = Head("", "", b"", {})  # of what is no request yet


class Reply(NamedTuple):
    """An answer in the form that is sent."""

    status: int
    headers: Fields
    body: bytes


def header_text(name: str) -> str:
    """A name as a header can carry it: what is not printable ASCII, commas and percent signs are percent-encoded."""
    return quote(name, safe="!#$&'()*+-./:;=?@[]^_`{|}~ ")


def _beside(answer: Answer) -> Fields:
    """Headers for what a body of numbers alone has no room for."""
    fields: Fields = []
    if answer.bounds is not None:
        fields.append((b"x-median-error-bound", repr(float(answer.bounds.max())).encode()))
    if answer.details:
        found = answer.found
        times = found.queue_s * 1e3, found.inference_s * 1e3, found.total_s * 1e3
        fields += [
            (b"x-median-models", ",".join(map(header_text, sorted(found.models))).encode()),
            (b"x-median-fallback", b"%d" % found.fallback),
            (b"x-median-batch-size", b"%d" % found.batch_size),
            (b"server-timing", b"queue;dur=%.3f, inference;dur=%.3f, total;dur=%.3f" % times),
        ]
    return fields


class Exchanges:
    """What the exchanges of one worker share: the key, the bytes of their bodies, and the book of those that ended."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.settings = engine.settings
        self.key = engine.settings.api_key.encode()
        self.held = 0  # bytes of all bodies that are being read or answered
        self.prefix = secrets.token_hex(6).encode()
        self.numbers = itertools.count()
        self.log_requests = log.isEnabledFor(logging.INFO)
        self.meters: dict[tuple[str, int], tuple[metrics.Record, metrics.Record]] = {}
        self.ended: list[Exchange] = []
        engine.record = self.record

    def add(self, exchange: Exchange) -> None:
        """Have it counted and logged, soon and together with others: the caller may be sending the next one already."""
        if not self.ended:
            asyncio.get_running_loop().call_later(SOON, self.record)
        self.ended.append(exchange)

    def record(self) -> None:
        """Count and log the exchanges that ended since the last time."""
        ended, self.ended = self.ended, []
        for each in ended:
            meter = self.meters.get((each.route, each.status))
            if meter is None:
                labels = metrics.REQUESTS.labels(each.route, each.status), metrics.REQUEST_SECONDS.labels(each.route)
                meter = self.meters[each.route, each.status] = labels[0].inc, labels[1].observe
            metrics.note(meter[0], 1)
            metrics.note(meter[1], each.seconds)
        metrics.settle()
        if self.log_requests:
            logs.write_requests(
                logs.RequestLine(each.id.decode(), each.head.method, each.head.path, each.status, each.seconds)
                for each in ended
            )


class Exchange:
    """One request, from its head to the line in the log."""

    __slots__ = ("head", "held", "id", "route", "seconds", "shared", "started", "status")

    def __init__(self, exchanges: Exchanges, head: Head, route: str) -> None:
        self.shared = exchanges
        self.head = head
        self.route = route
        self.started = time.perf_counter()
        self.seconds = 0.0
        self.status = 0
        self.held = 0
        given = head.headers.get(b"x-request-id")
        if given is not None and REQUEST_ID.match(given):
            self.id = given
        else:
            self.id = b"%b-%x" % (exchanges.prefix, next(exchanges.numbers))

    def authorise(self) -> None:
        """Ask for the API key, as the bytes came, unless the path is open."""
        if not self.shared.key or self.head.path in OPEN_PATHS or self.head.path.startswith(OPEN_FILES):
            return
        given = self.head.headers.get(b"x-api-key")
        if given is None:
            scheme, _, credentials = self.head.headers.get(b"authorization", b"").partition(b" ")
            given = credentials.strip() if scheme.lower() == b"bearer" else b""
        if not hmac.compare_digest(given, self.shared.key):
            raise ProblemError(401, "An API key is needed.", headers={"WWW-Authenticate": "Bearer"})

    def hold(self, more: int) -> None:
        """Count bytes of the body, or refuse them: too many for one, or for all together; one alone is always let in."""
        exchanges = self.shared
        if self.held + more > exchanges.settings.max_body:
            raise self.too_large()
        if exchanges.held + more > exchanges.settings.max_bodies and exchanges.held > self.held:
            said = "The bodies of all requests together are too large; repeat the request later."
            raise ProblemError(503, said, headers={"Retry-After": "1", "Connection": "close"})
        exchanges.engine.memory.take(more)
        self.held += more
        exchanges.held += more

    def release(self) -> None:
        """The body is not needed any more."""
        self.shared.engine.memory.give_back(self.held)
        self.shared.held -= self.held
        self.held = 0

    def too_large(self, what: str = "body") -> ProblemError:
        said = f"The {what} is larger than {self.shared.settings.max_body} bytes."
        return ProblemError(413, said, headers={"Connection": "close"})

    def conclude(self, answer: Answer, table: tuple[int, int] | None = None) -> Reply:
        """From an answer to what is sent; `table` are the rows and columns that were read of one."""
        form = self.head.answer_format
        content = form.write(answer)
        fields = [(b"content-type", form.media_type.encode()), (b"content-length", b"%d" % len(content))]
        if table is not None:
            fields += [(b"x-median-rows", b"%d" % table[0]), (b"x-median-columns", b"%d" % table[1])]
        return Reply(200, fields + _beside(answer) if form.bare else fields, content)

    def refuse(self, problem: ProblemError) -> Response:
        """A problem in the dialect of the path: problem details, or the protocol's own {"error": ...}."""
        if self.head.path.startswith("/v2"):
            return protocol_response(problem)
        return problem_response(problem, f"urn:request:{self.id.decode()}")

    def answered(self, status: int) -> Fields:
        """The headers of every answer."""
        self.status = status
        closing = [(b"connection", b"close")] if self.shared.engine.draining else []
        return [(b"x-request-id", self.id), NOSNIFF, *closing]

    def end(self) -> None:
        """The answer is on its way, or will never be."""
        self.release()
        self.seconds = time.perf_counter() - self.started
        self.shared.add(self)
