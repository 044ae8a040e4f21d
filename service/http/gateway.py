"""The ASGI application around the routes: every request passes here, but for those that take the short way to its end.

It hands POST /median straight to its function: the framework's own way there costs more than the median. FastAPI has the
same route, for the documentation, and serves everything else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from service.compute.engine import Engine
from service.errors import ProblemError, or_shortage
from service.http.exchange import NO_HEAD, UNKNOWN, Exchange, Exchanges, Head, Reply, header_lines
from service.requests.answer import Answer
from service.requests.json_body import Body, at_once
from service.scaling import NotFiniteError

log = logging.getLogger("service")
Result = TypeVar("Result")
OF_MODELS = ("/median", "/quantile", "/filter", "/models", "/v2/models")
MUCH = 1 << 19  # bytes that are no small request


class Gateway:
    """The ASGI application: an exchange around every request, and errors as problem details."""

    def __init__(self, app: FastAPI, engine: Engine, route: APIRoute) -> None:
        self.app = app
        self.engine = engine
        self.route = route
        self.exchanges = Exchanges(engine)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        head = Head(scope["method"], scope["path"], scope["query_string"], dict(scope["headers"]))
        is_median = head.path == self.route.path and head.method == "POST"
        exchange = scope["exchange"] = Exchange(self.exchanges, head, self.route.path if is_median else UNKNOWN)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += exchange.answered(message["status"])
            await send(message)

        try:
            exchange.authorise()
            if self.engine.loading and head.path.startswith(OF_MODELS):
                await self.engine.loaded()
            if is_median:
                reply: Reply = await self.route.endpoint(Request(scope, receive))
                await reply(scope, receive, send_with_id)
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

    def begin(self, head: Head, body: bytes, finish: Callable[[Reply | None], None], lone: bool) -> bool:
        """Answer a POST /median that is here as a whole without a task of its own, if nothing stands in the way.

        Whatever is not plain success takes the ordinary way: False says so at once, `finish(None)` later. It is the one
        that explains what is wrong, waits, falls back to another model, or says goodbye.
        """
        if self.engine.draining or len(body) > MUCH:
            return False
        exchange = Exchange(self.exchanges, head, self.route.path)

        def deliver(answer: Answer | None) -> None:
            reply = None
            try:
                if answer is not None:
                    reply = exchange.conclude(answer)
                    reply.fields += header_lines(exchange.answered(reply.status))
            except Exception:
                log.exception("an answer was not written", extra={"fields": {"request_id": exchange.id.decode()}})
            exchange.release()
            finish(reply)
            if reply is not None:
                exchange.end()

        try:
            exchange.authorise()
            exchange.hold(len(body))
            question = at_once(exchange.prepare(body))
            if question is not None and self.engine.begin(question, deliver, lone):
                return True
        except (ProblemError, NotFiniteError):
            pass
        except Exception:
            log.exception("the short way failed", extra={"fields": {"request_id": exchange.id.decode()}})
        exchange.release()
        return False

    def refuse(self, problem: ProblemError) -> Reply:
        """The answer to what is no request yet: its head is too large, too late or not HTTP."""
        exchange = Exchange(self.exchanges, NO_HEAD, UNKNOWN)
        response = exchange.refuse(problem)
        fields = response.raw_headers + exchange.answered(problem.status)[:2]  # the connection is closed in any case
        exchange.end()
        return Reply(problem.status, header_lines(fields), bytes(response.body))


async def with_body(request: Request, answer: Callable[[Request, Body], Awaitable[Result]]) -> Result:
    """Read a body and answer it, both within the request's time; which of them took too long decides the status."""
    exchange: Exchange = request.scope["exchange"]
    seconds = exchange.shared.settings.timeout_s
    body: Body | None = None
    try:
        async with asyncio.timeout(seconds):
            body = await _read_body(exchange, request.receive)
            return await answer(request, body)
    except TimeoutError:
        if body is None:
            raise ProblemError(408, "The body did not arrive in time.", headers={"Connection": "close"}) from None
        raise ProblemError(504, f"No answer within {seconds:g} s.") from None
    finally:
        exchange.release()


async def _read_body(exchange: Exchange, receive: Receive) -> Body:
    """The body, refused before it is read when it says it is too large, or as soon as it turns out to be."""
    headers, limit = exchange.head.headers, exchange.shared.settings.max_body
    if headers.get(b"content-encoding", b"identity") != b"identity":
        raise ProblemError(415, "Compressed bodies are not accepted.", headers={"Accept-Encoding": "identity"})
    length = headers.get(b"content-length", b"0")
    if not length.isdigit() or len(length) > 18 or int(length) > limit:
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
