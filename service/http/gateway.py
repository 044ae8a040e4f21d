"""The ASGI application around the routes: every request passes here.

It gives a request its id, asks for the API key, counts, logs, and turns errors into problem details. It hands POST
/median straight to its function: the framework's own way there costs more than the median. FastAPI has the same route,
for the documentation, and serves everything else. Counting and logging wait until the answer is on its way.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from service import logs, metrics
from service.compute.engine import Answer, Engine
from service.errors import ProblemError, or_shortage, problem_response
from service.http import formats, protocol_v2
from service.http.formats import Head, Headers, Reply
from service.scaling import NotFiniteError

log = logging.getLogger("service")
REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}\Z")
SOON = 0.005  # seconds
MUCH = 1 << 19  # bytes that are no small request
NO_REQUEST: Scope = {"method": "", "path": ""}
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"})


class Front:
    """The ASGI application: request id, API key, metrics, log line, and errors as problem details around the routes."""

    def __init__(self, app: FastAPI, engine: Engine, route: APIRoute) -> None:
        self.app = app
        self.engine = engine
        self.route = route
        self.median: Callable[[Request], Awaitable[Reply]] = route.endpoint
        self.key = engine.settings.api_key.encode()
        self.log_requests = log.isEnabledFor(logging.INFO)
        self.meters: dict[tuple[str, int], tuple[metrics.Record, metrics.Record]] = {}
        self.done: list[tuple[Scope, bytes, int, float]] = []
        engine.record = self.record
        self.direct: Scope = {"route": route, "method": "POST", "path": "/median"}
        self.much = min(MUCH, engine.settings.max_body)
        self.prefix = secrets.token_hex(6).encode()
        self.numbers = itertools.count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        headers: Headers = dict(scope["headers"])
        scope["headers_by_name"] = headers
        request_id = self._id(headers)
        scope["request_id"] = request_id.decode()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"].append((b"x-request-id", request_id))
                if self.engine.draining:
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        try:
            if self.key and scope["path"] not in OPEN_PATHS:
                self._authorise(headers)
            if scope["path"] == "/median" and scope["method"] == "POST":
                scope["route"] = self.route
                reply = await self.median(Request(scope, receive))
                await reply(scope, receive, send_with_id)
            else:
                await self.app(scope, receive, send_with_id)
        except ProblemError as problem:
            await answer_to(scope, problem)(scope, receive, send_with_id)
        except Exception as error:
            log.exception(
                "request failed", extra={"fields": {"request_id": scope["request_id"], "path": scope["path"]}}
            )
            if not status:  # else the answer has begun, and cannot be taken back
                failure = or_shortage(error)
                if not isinstance(failure, ProblemError):
                    failure = ProblemError(500, "The service failed; the log has the details under this request id.")
                await answer_to(scope, failure)(scope, receive, send_with_id)
        finally:
            self._answered(scope, request_id, status, started)

    def begin(self, head: Head, body: bytes, finish: Callable[[Reply | None], None], lone: bool = False) -> bool:
        """Answer a POST /median that is here as a whole without a task of its own, if nothing stands in the way.

        Whatever is not plain success takes the long way: False says so at once, `finish(None)` later. It is the one
        that explains what is wrong, waits, or falls back to another model. A `lone` client has nobody to wait for.
        """
        started = time.perf_counter()
        if self.engine.draining or len(body) > self.much:
            return False
        request_id = self._id(head.headers)

        def deliver(answer: Answer | None) -> None:
            if answer is None:
                finish(None)
                return
            reply = formats.write(head.kind, answer)
            reply.fields += b"x-request-id: %b\r\n" % request_id
            finish(reply)
            self._answered(self.direct, request_id, reply.status, started)

        try:
            if self.key:
                self._authorise(head.headers)
            request = formats.read_small(head.kind, body, head.asked, self.engine.limits)
            return request is not None and self.engine.begin(request, deliver, lone)
        except (ProblemError, NotFiniteError):
            return False
        except Exception:
            log.exception("the short way failed", extra={"fields": {"request_id": request_id.decode()}})
            return False

    def _id(self, headers: Headers) -> bytes:
        """The caller's id for a request, or a new one."""
        given = headers.get(b"x-request-id")
        if given is not None and REQUEST_ID.match(given):
            return given
        return b"%b-%x" % (self.prefix, next(self.numbers))

    def _answered(self, scope: Scope, request_id: bytes, status: int, started: float) -> None:
        """Have it counted and logged, soon and together with others: the caller may be sending the next one already."""
        if not self.done:
            asyncio.get_running_loop().call_later(SOON, self.record)
        self.done.append((scope, request_id, status, time.perf_counter() - started))

    def _authorise(self, headers: Headers) -> None:
        given = headers.get(b"x-api-key")
        if given is None:
            scheme, _, credentials = headers.get(b"authorization", b"").partition(b" ")
            given = credentials.strip() if scheme.lower() == b"bearer" else b""
        if not hmac.compare_digest(given, self.key):  # as the bytes came
            raise ProblemError(401, "An API key is needed.", headers={"WWW-Authenticate": "Bearer"})

    def refuse(self, problem: ProblemError) -> Reply:
        """The answer to what is no request yet: its head is too large, too late or not HTTP."""
        request_id = self._id({})
        response = problem_response(problem, f"urn:request:{request_id.decode()}")
        fields = b"".join(b"%b: %b\r\n" % field for field in response.raw_headers)
        self._answered(NO_REQUEST, request_id, problem.status, time.perf_counter())
        return Reply(problem.status, fields + b"x-request-id: %b\r\n" % request_id, bytes(response.body))

    def record(self) -> None:
        """Count and log the requests that were answered since the last time."""
        done, self.done = self.done, []
        lines = []
        for scope, request_id, status, seconds in done:
            route = getattr(scope.get("route"), "path", "unknown")
            meter = self.meters.get((route, status))
            if meter is None:
                meter = metrics.REQUESTS.labels(route, status).inc, metrics.REQUEST_SECONDS.labels(route).observe
                self.meters[route, status] = meter
            meter[0](1)
            meter[1](seconds)
            if self.log_requests:
                fields = {
                    "request_id": request_id.decode(),
                    "method": scope["method"],
                    "path": scope["path"],
                    "status": status,
                    "ms": round(seconds * 1000, 3),
                }
                lines.append(fields)
        metrics.settle()
        if lines:
            logs.write_requests(lines)


def answer_to(scope: Scope, problem: ProblemError) -> Response:
    """An error in the dialect of the path: problem details, or the protocol's own {"error": ...}."""
    if scope["path"].startswith("/v2"):
        return protocol_v2.error_response(problem)
    return problem_response(problem, f"urn:request:{scope['request_id']}")
