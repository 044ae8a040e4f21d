"""The routes, what they answer, and the application's life from start to shutdown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from service import life, logs, metrics
from service.compute import registry
from service.compute.engine import Engine
from service.compute.entries import UnusableModelError, pieces
from service.errors import ProblemError, or_shortage
from service.http import formats, protocol_v2, schemas
from service.http.formats import Headers, Reply
from service.http.gateway import Front, answer_to
from service.http.routes import DirectRoute
from service.requests import bodies
from service.requests.json_body import Body
from service.settings import Settings

log = logging.getLogger("service")


class Bodies:
    """All bodies that are being read or answered, and how many bytes they have together."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.held = 0

    async def __call__(self, request: Request, answer: Callable[[Request, Body], Awaitable[Any]]) -> Any:
        """Read a body and answer it, both within the request's time; which of them took too long decides the status."""
        body: Body | None = None
        size = 0

        def hold(more: int) -> None:
            nonlocal size
            if size + more > self.settings.max_body:
                raise _too_large(self.settings.max_body)
            if self.held + more > self.settings.max_bodies and self.held > size:
                said = "The bodies of all requests together are too large; repeat the request later."
                raise ProblemError(503, said, headers={"Retry-After": "1", "Connection": "close"})
            size += more
            self.held += more

        try:
            async with asyncio.timeout(self.settings.timeout_s):
                body = await read_body(request, self.settings.max_body, hold)
                return await answer(request, body)
        except TimeoutError:
            if body is None:
                raise ProblemError(408, "The body did not arrive in time.", headers={"Connection": "close"}) from None
            raise ProblemError(504, f"No answer within {self.settings.timeout_s:g} s.") from None
        finally:
            self.held -= size


async def read_body(request: Request, limit: int, hold: Callable[[int], None]) -> Body:
    """The body, refused before it is read when it says it is too large, or as soon as it turns out to be."""
    headers: Headers = request.scope["headers_by_name"]
    if headers.get(b"content-encoding", b"identity") != b"identity":
        raise ProblemError(415, "Compressed bodies are not accepted.", headers={"Accept-Encoding": "identity"})
    length = headers.get(b"content-length", b"0")
    if not length.isdigit() or len(length) > 18 or int(length) > limit:
        raise _too_large(limit)
    body: Body = b""
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ProblemError(400, "The connection was closed before the body was complete.")
        chunk: bytes = message.get("body", b"")
        hold(len(chunk))
        if not body:
            body = chunk
        elif chunk:
            if isinstance(body, bytes):
                body = bytearray(body)
            body += chunk  # in place: joining pieces in the end would need the memory twice, and everybody's time
        if not message.get("more_body"):
            return body


def _too_large(limit: int) -> ProblemError:
    return ProblemError(413, f"The body is larger than {limit} bytes.", headers={"Connection": "close"})


def median_handler(engine: Engine, with_body: Bodies) -> Callable[[Request], Awaitable[Reply]]:
    """POST /median in its three formats."""

    async def answer(request: Request, body: Body) -> Reply:
        query = bodies.read_query(request.scope["query_string"])
        kind = formats.kind_of(request.scope["headers_by_name"])
        parsed = await formats.read(kind, body, query, engine)
        return formats.write(kind, await engine.medians(parsed))

    async def median(request: Request) -> Reply:
        reply: Reply = await with_body(request, answer)
        return reply

    return median


def create_app(settings: Settings | None = None) -> Front:
    """The application over the models of `settings` (from the environment when uvicorn starts a worker)."""
    settings = settings or Settings.from_env()
    logs.configure(settings.log_level)
    engine = Engine(settings, registry.load(settings.folders))
    app = FastAPI(
        title="onnx-median",
        version="0.1.0",
        description="Medians by ReLU networks, every answer certified by counting.",
        lifespan=lambda _: life.lifespan(engine),
        redirect_slashes=False,
    )
    for kind in (HTTPException, ProblemError, Exception):
        app.add_exception_handler(kind, _error)
    with_body = Bodies(settings)
    route = _add_routes(app, engine, with_body)
    app.include_router(protocol_v2.router(engine, with_body))
    return Front(app, engine, route)


async def _error(request: Request, error: Exception) -> Response:
    """Whatever ends a request inside the framework, its own refusals (404, 405) included, in one form."""
    error = or_shortage(error)
    if isinstance(error, ProblemError):
        return answer_to(request.scope, error)
    if isinstance(error, HTTPException):
        said = {404: f"There is nothing at {request.url.path}.", 405: "This method is not allowed here."}
        detail = said.get(error.status_code, error.detail)
        return answer_to(request.scope, ProblemError(error.status_code, detail, headers=error.headers))
    return answer_to(request.scope, ProblemError(500, "The service failed; the log has the details."))


def _add_routes(app: FastAPI, engine: Engine, with_body: Bodies) -> DirectRoute:
    """All routes but the protocol's; returns that of POST /median."""
    answers = {
        "model": schemas.MedianAnswer,
        "headers": schemas.ANSWER_HEADERS,
        "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in (bodies.NPY, bodies.RAW)},
    }
    median = DirectRoute(
        "/median",
        median_handler(engine, with_body),
        methods=["POST"],
        name="median",
        response_model=None,
        summary="Medians of vectors of any length",
        tags=["median"],
        responses={200: answers, **schemas.problems(400, 401, 404, 408, 413, 415, 422, 429, 431, 500, 503, 504)},
        openapi_extra={"requestBody": schemas.REQUEST_BODY, "parameters": schemas.PARAMETERS},
    )
    app.router.routes.append(median)

    @app.get("/models", tags=["models"], responses=schemas.problems(401))
    async def models() -> schemas.ModelList:
        """All models being served, and the files that were left out with the reason."""
        return _model_list(engine)

    @app.post("/models/reload", tags=["models"], responses=schemas.problems(401, 500, 503))
    async def reload() -> schemas.ModelList:
        """Read the manifest again. Requests under way finish on the models they started with."""
        await life.reload_models(engine)
        life.tell_workers(engine)
        return _model_list(engine)

    @app.get("/models/{name}", tags=["models"], responses=schemas.problems(401, 404))
    async def model(name: str) -> schemas.ModelEntry:
        """The description of one model: construction, size, grid, failure bound."""
        return _entry(engine.registry.get(name))

    @app.get(
        "/models/{name}/file",
        tags=["models"],
        response_class=StreamingResponse,
        responses={
            200: {"content": {bodies.RAW: {"schema": {"type": "string", "format": "binary"}}}},
            **schemas.problems(401, 404),
        },
    )
    async def model_file(name: str) -> StreamingResponse:
        """The .onnx file itself: the bytes that were checked when it was loaded."""
        found = engine.registry.get(name)
        try:
            content = await engine.in_thread(found.file.content)
        except UnusableModelError as error:
            raise ProblemError(404, f"The file of {name!r} is no longer what was loaded: {error}. Reload.") from None
        headers = {
            "Content-Length": str(len(content)),
            "Content-Disposition": f"attachment; filename*=utf-8''{quote(found.path.name)}",
        }
        return StreamingResponse(pieces(content), headers=headers, media_type=bodies.RAW)

    @app.get("/healthz", tags=["health"])
    async def healthz() -> schemas.Status:
        """The process is alive."""
        return schemas.Status(status="ok")

    @app.get("/readyz", tags=["health"], responses=schemas.problems(503))
    async def readyz() -> schemas.Status:
        """Requests are welcome: models are loaded and answer, and no shutdown has begun."""
        if reason := await engine.trouble():
            raise ProblemError(503, reason)
        return schemas.Status(status="ready")

    @app.get(
        "/metrics",
        tags=["health"],
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **schemas.problems(401)},
    )
    async def metrics_text() -> Response:
        """Counters and histograms for Prometheus."""
        engine.record()
        text, media_type = metrics.exposition()
        return Response(text, headers={"Content-Type": media_type})

    return median


def _entry(model: registry.Model) -> schemas.ModelEntry:
    return schemas.ModelEntry(name=model.name, sha256=model.sha256, description=model.description)


def _model_list(engine: Engine) -> schemas.ModelList:
    entries = [
        _entry(model) for model in sorted(engine.registry.models.values(), key=lambda model: (model.d, model.name))
    ]
    return schemas.ModelList(models=entries, left_out=engine.registry.left_out)
