"""One request and its answer: its id, the API key, the bytes of its body, and the line in the log."""

from __future__ import annotations

import asyncio
import hmac
import itertools
import logging
import re
import secrets
import time
from http import HTTPStatus

from starlette.responses import Response
from starlette.types import Scope

from service import json_text
from service.errors import ProblemError
from service.process import logs, metrics
from service.serving.engine import Engine

log = logging.getLogger("service")
Fields = list[tuple[bytes, bytes]]
REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}\Z")
SOON = 0.02  # seconds
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready", "/", "/docs"})
OPEN_FILES = "/page/"  # files of the page; its data needs the key
NOSNIFF = (b"x-content-type-options", b"nosniff")
UNKNOWN = "unknown"  # the label of paths without a route


class Exchanges:
    """State shared by the exchanges of one worker: the key, and the exchanges that ended."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.settings = engine.settings
        self.key = engine.settings.api_key.encode()
        self.prefix = secrets.token_hex(6).encode()
        self.numbers = itertools.count()
        self.log_requests = log.isEnabledFor(logging.INFO)
        self.meters: dict[tuple[str, int], tuple[metrics.Record, metrics.Record]] = {}
        self.ended: list[Exchange] = []
        engine.record = self.record

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
            logs.write_requests((e.id.decode(), e.method, e.path, e.status, e.seconds) for e in ended)


class Exchange:
    """One request, from its head to the line in the log."""

    __slots__ = (
        "headers", "held", "id", "method", "path", "query", "route", "seconds", "shared", "started", "status",
    )  # fmt: skip

    def __init__(self, shared: Exchanges, scope: Scope | None = None, route: str = UNKNOWN) -> None:
        self.started = time.perf_counter()
        self.shared = shared
        self.route = route
        self.seconds = 0.0
        self.status = self.held = 0
        self.method, self.path, self.query = "", "", b""
        self.headers: dict[bytes, bytes] = {}
        if scope is not None:
            self.method, self.path, self.query = scope["method"], scope["path"], scope["query_string"]
            self.headers = {name: value.strip(b" \t") for name, value in scope["headers"]}
        given = self.headers.get(b"x-request-id")
        if given is not None and REQUEST_ID.match(given):
            self.id = given
        else:
            self.id = b"%b-%x" % (shared.prefix, next(shared.numbers))

    def authorise(self) -> None:
        """Check the API key, as bytes, unless the path is open."""
        if not self.shared.key or self.path in OPEN_PATHS or self.path.startswith(OPEN_FILES):
            return
        given = self.headers.get(b"x-api-key")
        if given is None:
            scheme, _, credentials = self.headers.get(b"authorization", b"").partition(b" ")
            given = credentials.strip() if scheme.lower() == b"bearer" else b""
        if not hmac.compare_digest(given, self.shared.key):
            raise ProblemError(401, "An API key is needed.", headers={"WWW-Authenticate": "Bearer"})

    def hold(self, more: int) -> None:
        """Reserve memory for bytes of the body, or refuse: too many for one body, or for all requests."""
        if self.held + more > self.shared.settings.max_body:
            raise self.too_large()
        try:
            self.shared.engine.memory.take(more)
        except ProblemError as error:
            error.headers["Connection"] = "close"
            raise
        self.held += more

    def release(self) -> None:
        """Give back the memory of the body."""
        self.shared.engine.memory.give_back(self.held)
        self.held = 0

    def too_large(self, what: str = "body") -> ProblemError:
        said = f"The {what} is larger than {self.shared.settings.max_body} bytes."
        return ProblemError(413, said, headers={"Connection": "close"})

    def refuse(self, problem: ProblemError) -> Response:
        """A problem in the dialect of the path: problem details, or the protocol's own {"error": ...}."""
        if self.path.startswith("/v2"):
            return protocol_response(problem)
        return problem_response(problem, f"urn:request:{self.id.decode()}")

    def answered(self, status: int) -> Fields:
        """The headers of every answer."""
        self.status = status
        closing = [(b"connection", b"close")] if self.shared.engine.draining else []
        return [(b"x-request-id", self.id), NOSNIFF, *closing]

    def end(self) -> None:
        """The exchange is over. It is counted and logged soon, together with others."""
        if self.held:
            self.release()
        self.seconds = time.perf_counter() - self.started
        if not self.shared.ended:
            asyncio.get_running_loop().call_later(SOON, self.shared.record)
        self.shared.ended.append(self)


def protocol_response(problem: ProblemError) -> Response:
    """The error in the form of the Open Inference Protocol: wrong numbers are 400, and the sentence names the place."""
    place = "".join(f" ({name} {problem.members[name]})" for name in ("vector", "index") if name in problem.members)
    status = 400 if problem.status == 422 else problem.status
    return Response(json_text.short({"error": problem.detail + place}), status, problem.headers, "application/json")


def problem_response(problem: ProblemError, instance: str) -> Response:
    """The error as `application/problem+json`. The type stays "about:blank": the status tells the kind."""
    content = {
        "type": "about:blank",
        "title": HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "detail": problem.detail,
        "instance": instance,
        **problem.members,
    }
    return Response(json_text.short(content), problem.status, problem.headers, "application/problem+json")
