"""The ASGI application around the routes: every request passes here.

POST /median and POST /quantile are answered here, because the framework's routing costs more than the median. FastAPI
documents these routes and serves all others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeVar, cast
from urllib.parse import quote

import orjson
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from service.errors import ProblemError, or_shortage
from service.serving.bodies import Answer, Question, settled
from service.serving.engine import Engine
from service.serving.exchange import UNKNOWN, Exchange, Exchanges, Fields
from service.serving.formats import answer_format, format_of
from service.serving.json_body import Body
from service.serving.options import ROUTES, read_query

log = logging.getLogger("service")
Result = TypeVar("Result")
LARGE = 1 << 16  # answers of more bytes are sent with their memory counted
OF_MODELS = (*ROUTES, "/filter", "/models", "/v2/models")


class Gateway:
    """The ASGI application: an exchange around every request, and errors as problem details."""

    def __init__(self, app: FastAPI, engine: Engine, paths: Collection[str]) -> None:
        self.app = app
        self.engine = engine
        self.paths = frozenset(paths)  # a POST to these paths is answered here
        self.exchanges = Exchanges(engine)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"]
        is_ours = path in self.paths and scope["method"] == "POST"
        exchange = scope["exchange"] = Exchange(self.exchanges, scope, path if is_ours else UNKNOWN)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += exchange.answered(message["status"])
            await send(message)

        try:
            exchange.authorise()
            if self.engine.loading and path.startswith(OF_MODELS):
                await self.engine.loaded()
            if is_ours:
                fields, content = await within_time(exchange, receive, self._ask)
                fields += exchange.answered(200)
                if len(content) > LARGE:
                    await self._send_large(fields, content, send)
                else:
                    await send({"type": "http.response.start", "status": 200, "headers": fields})
                    await send({"type": "http.response.body", "body": content})
            else:
                await self.app(scope, receive, send_with_id)
        except Exception as error:
            failure = or_shortage(error)
            if not isinstance(error, ProblemError):
                said = {"request_id": exchange.id.decode(), "path": path}
                log.exception("request failed", extra={"fields": said})
                if exchange.status:  # the answer has begun and cannot be replaced
                    return
            if not isinstance(failure, ProblemError):
                failure = ProblemError(500, "The service failed; the log has the details under this request id.")
            await exchange.refuse(failure)(scope, receive, send_with_id)
        finally:
            exchange.route = getattr(scope.get("route"), "path", exchange.route)
            exchange.end()

    async def _send_large(self, fields: Fields, content: bytes, send: Send) -> None:
        """Send an answer. Its memory stays counted until the client has read the answer."""
        with self.engine.memory.hold(len(content)):
            await send({"type": "http.response.start", "status": 200, "headers": fields})
            await send({"type": "http.response.body", "body": content, "more_body": True})
            content = b""
            await send({"type": "http.response.body", "body": content})  # waits until the client has read the first

    async def _ask(self, exchange: Exchange, body: Body) -> tuple[Fields, bytes]:
        """The answer to a body of POST /median or POST /quantile, and its headers."""
        engine, headers, limits = self.engine, exchange.headers, self.engine.limits
        options = read_query(exchange.query, exchange.path)  # mistakes are reported in this order
        form = format_of(headers.get(b"content-type", b""))
        wanted = answer_format(headers.get(b"accept", b""), form)

        def read() -> Question:
            return settled(form.read(body, options, limits), limits)

        question = await engine.read(body, form.memory, read, form.table)
        until = exchange.started + engine.settings.timeout_s
        answer = await engine.answer(question, until)
        content = wanted.write(answer)
        fields = [(b"content-type", wanted.content_type), (b"content-length", b"%d" % len(content))]
        if question.table is not None:
            rows, columns = question.table
            fields += [(b"x-median-rows", b"%d" % rows), (b"x-median-columns", b"%d" % columns)]
        return fields + _beside(answer) if wanted.bare else fields, content

    def refuse(self, problem: ProblemError) -> Response:
        """The answer to a connection without a valid request: its head is too large, too late or not HTTP."""
        exchange = Exchange(self.exchanges)
        response = exchange.refuse(problem)
        response.raw_headers += exchange.answered(problem.status)[:2]  # the connection is closed in any case
        exchange.end()
        return response


class PlainRoute(APIRoute):
    """A route that passes the request to its function: no dependencies to solve, no body model to validate."""

    def get_route_handler(self) -> Any:
        return self.endpoint


def json_answer(content: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


def header_text(name: str) -> str:
    """A name as text for a header. Commas, percent signs and characters beyond printable ASCII are percent-encoded."""
    return quote(name, safe="!#$&'()*+-./:;=?@[]^_`{|}~ ")


def _beside(answer: Answer) -> Fields:
    """Headers for the results that a body of bare numbers cannot hold."""
    fields: Fields = []
    if answer.bounds is not None:
        fields.append((b"x-median-error-bound", repr(float(answer.bounds.max())).encode()))
    if answer.question.options.details:
        found = answer.found
        times = found.queue_s * 1e3, found.inference_s * 1e3, found.total_s * 1e3
        fields += [
            (b"x-median-models", ",".join(map(header_text, sorted(found.models))).encode()),
            (b"x-median-fallback", b"%d" % found.fallback),
            (b"x-median-batch-size", b"%d" % found.batch_size),
            (b"server-timing", b"queue;dur=%.3f, inference;dur=%.3f, total;dur=%.3f" % times),
        ]
    return fields


async def within_time(
    exchange: Exchange, receive: Receive, answer: Callable[[Exchange, Body], Awaitable[Result]]
) -> Result:
    """Read a body and answer it within the request's time limit. A late body is 408, a late answer 504."""
    limit, task = exchange.shared.settings.timeout_s, cast("asyncio.Task[Any]", asyncio.current_task())
    body: Body | None = None
    is_late = False

    def end() -> None:
        nonlocal is_late
        is_late = True
        task.cancel()

    timer = task.get_loop().call_later(limit, end)  # asyncio.timeout takes five times as long
    try:
        body = await _read_body(exchange, receive)
        return await answer(exchange, body)
    except asyncio.CancelledError:
        if not is_late:
            raise
        task.uncancel()
        if body is None:
            raise ProblemError(408, "The body did not arrive in time.", headers={"Connection": "close"}) from None
        raise ProblemError(504, f"No answer within {limit:g} s.") from None
    finally:
        timer.cancel()
        exchange.release()


async def with_body(request: Request, answer: Callable[[Request, Body], Awaitable[Result]]) -> Result:
    """The same for a route of the framework."""
    return await within_time(request.scope["exchange"], request.receive, lambda _, body: answer(request, body))


async def _read_body(exchange: Exchange, receive: Receive) -> Body:
    """The body. Too large a body is refused before it is read if its length is stated, else as soon as it exceeds the
    limit."""
    headers, limit = exchange.headers, exchange.shared.settings.max_body
    if headers.get(b"content-encoding", b"identity") != b"identity":
        raise ProblemError(415, "Compressed bodies are not accepted.", headers={"Accept-Encoding": "identity"})
    length = headers.get(b"content-length", b"0")
    if not length.isdigit() or len(length.lstrip(b"0")) > 18 or int(length.lstrip(b"0") or b"0") > limit:
        raise exchange.too_large()
    body: Body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ProblemError(400, "The connection was closed before the body was complete.")
        chunk: bytes = message.get("body", b"")
        exchange.hold(len(chunk))
        if not body:
            body = chunk
        elif chunk:
            if isinstance(body, bytes):
                body = bytearray(body)
            body += chunk  # in place: joining pieces at the end would need the memory twice and block other requests
        if not message.get("more_body"):
            return body
