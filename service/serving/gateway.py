"""The ASGI application around the routes: every request passes here.

POST /median and POST /quantile are answered here, because the framework's own way to a route costs more than the median.
FastAPI has the same routes, for the documentation, and serves everything else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

from fastapi import FastAPI
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from service.errors import ProblemError, or_shortage
from service.serving.answer import Answer
from service.serving.bodies import Question, settled
from service.serving.engine import Engine
from service.serving.exchange import NO_HEAD, UNKNOWN, Exchange, Exchanges, Head, Reply
from service.serving.json_body import Body
from service.serving.options import ROUTES

log = logging.getLogger("service")
Result = TypeVar("Result")
Answering = Callable[[Exchange, Question], Awaitable[Answer]]
LARGE = 1 << 16  # bytes of a body or an answer that is worth counting
OF_MODELS = (*ROUTES, "/filter", "/models", "/v2/models")


class Gateway:
    """The ASGI application: an exchange around every request, and errors as problem details."""

    def __init__(self, app: FastAPI, engine: Engine, answer: Answering, paths: Collection[str]) -> None:
        self.app = app
        self.engine = engine
        self.answer = answer
        self.paths = frozenset(paths)  # POST to one of them is answered here
        self.exchanges = Exchanges(engine)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name: value.strip(b" \t") for name, value in scope["headers"]}
        head = Head(scope["method"], scope["path"], scope["query_string"], headers)
        is_ours = head.path in self.paths and head.method == "POST"
        exchange = scope["exchange"] = Exchange(self.exchanges, head, head.path if is_ours else UNKNOWN)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += exchange.answered(message["status"])
            await send(message)

        try:
            exchange.authorise()
            if self.engine.loading and head.path.startswith(OF_MODELS):
                await self.engine.loaded()
            if is_ours:
                reply = await within_time(exchange, receive, self._ask)
                with self.engine.memory.hold(len(reply.body)):
                    await send_with_id(
                        {"type": "http.response.start", "status": reply.status, "headers": reply.headers}
                    )
                    if len(reply.body) > LARGE:  # the second message waits until the client has read the first
                        await send({"type": "http.response.body", "body": reply.body, "more_body": True})
                        reply = reply._replace(body=b"")
                    await send({"type": "http.response.body", "body": reply.body})
            else:
                await self.app(scope, receive, send_with_id)
        except Exception as error:
            failure = or_shortage(error)
            if not isinstance(error, ProblemError):
                fields = {"request_id": exchange.id.decode(), "path": head.path}
                log.exception("request failed", extra={"fields": fields})
                if exchange.status:  # the answer has begun, and cannot be taken back
                    return
            if not isinstance(failure, ProblemError):
                failure = ProblemError(500, "The service failed; the log has the details under this request id.")
            await exchange.refuse(failure)(scope, receive, send_with_id)
        finally:
            exchange.route = getattr(scope.get("route"), "path", exchange.route)
            exchange.end()

    async def _ask(self, exchange: Exchange, body: Body) -> Reply:
        """The answer to a body of POST /median or POST /quantile."""
        head, limits = exchange.head, self.engine.limits
        options, form, _ = head.options, head.format, head.answer_format  # mistakes in them are told in this order

        def read() -> Question:
            return settled(form.read(body, options, limits), limits)

        question = await self.engine.read(body, form.memory, read, form.table)
        return exchange.conclude(await self.answer(exchange, question), question.table)

    def refuse(self, problem: ProblemError) -> Reply:
        """The answer to what is no request yet: its head is too large, too late or not HTTP."""
        exchange = Exchange(self.exchanges, NO_HEAD, UNKNOWN)
        response = exchange.refuse(problem)
        fields = exchange.answered(problem.status)[:2]  # the connection is closed in any case
        exchange.end()
        return Reply(problem.status, response.raw_headers + fields, bytes(response.body))


async def within_time(
    exchange: Exchange, receive: Receive, answer: Callable[[Exchange, Body], Awaitable[Result]]
) -> Result:
    """Read a body and answer it, both within the request's time; which of them took too long decides the status."""
    seconds = exchange.shared.settings.timeout_s
    body: Body | None = None
    try:
        async with asyncio.timeout(seconds):
            body = await _read_body(exchange, receive)
            return await answer(exchange, body)
    except TimeoutError:
        if body is None:
            raise ProblemError(408, "The body did not arrive in time.", headers={"Connection": "close"}) from None
        raise ProblemError(504, f"No answer within {seconds:g} s.") from None
    finally:
        exchange.release()


async def with_body(request: Request, answer: Callable[[Request, Body], Awaitable[Result]]) -> Result:
    """The same for a route of the framework."""
    return await within_time(request.scope["exchange"], request.receive, lambda _, body: answer(request, body))


async def _read_body(exchange: Exchange, receive: Receive) -> Body:
    """The body, refused before it is read when it says it is too large, or as soon as it turns out to be."""
    headers, limit = exchange.head.headers, exchange.shared.settings.max_body
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
            body += chunk  # in place: joining pieces in the end would need the memory twice, and everybody's time
        if not message.get("more_body"):
            return body
