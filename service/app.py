"""The HTTP application: routes, and the one layer around them that every request passes.

That layer (`Front`) gives a request its id, asks for the API key, counts, logs, and turns errors into problem details.
It hands POST /median straight to its function: the framework's own way there costs more than the median. FastAPI has
the same route, for the documentation, and serves everything else.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import re
import secrets
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response
from starlette.types import Message, Receive, Scope, Send

from service import bodies, logs, metrics, protocol_v2, registry, schemas
from service.engine import Answer, Engine
from service.errors import ProblemError, problem_response
from service.settings import Settings

log = logging.getLogger("service")
REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}\Z")
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"})
Handler = Callable[[Request], Awaitable[Response]]


class DirectRoute(APIRoute):
    """A route that hands the request to its function as it is: no dependencies to solve, no body model to validate."""

    def get_route_handler(self) -> Any:
        return self.endpoint


class Front:
    """The ASGI application: request id, API key, metrics, log line, and errors as problem details around the routes."""

    def __init__(self, app: FastAPI, engine: Engine) -> None:
        self.app = app
        self.engine = engine
        self.median_route = next(route for route in app.routes if isinstance(route, DirectRoute))
        self.key = engine.settings.api_key.encode()
        self.log_requests = log.isEnabledFor(logging.INFO)
        self.meters: dict[tuple[str, int], tuple[Any, Any]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        headers = Headers(scope=scope)
        given = headers.get("x-request-id")
        request_id = given if given is not None and REQUEST_ID.match(given) else secrets.token_hex(8)
        scope["request_id"] = request_id
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"].append((b"x-request-id", request_id.encode()))
                if self.engine.draining:
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        try:
            if self.key and scope["path"] not in OPEN_PATHS:
                self._authorise(headers)
            if scope["path"] == "/median" and scope["method"] == "POST":
                scope["route"] = self.median_route
                response = await self.median_route.endpoint(Request(scope, receive))
                await response(scope, receive, send_with_id)
            else:
                await self.app(scope, receive, send_with_id)
        except ProblemError as problem:
            await _answer_to(scope, problem)(scope, receive, send_with_id)
        except Exception:
            log.exception("request failed", extra={"fields": {"request_id": request_id, "path": scope["path"]}})
            if not status:  # else the answer has begun, and cannot be taken back
                failure = ProblemError(500, "The service failed; the log has the details under this request id.")
                await _answer_to(scope, failure)(scope, receive, send_with_id)
        finally:
            self._record(scope, request_id, status, time.perf_counter() - started)

    def _authorise(self, headers: Headers) -> None:
        given = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode("latin-1"), self.key):  # as the bytes came
            raise ProblemError(401, "An API key is needed.", headers={"WWW-Authenticate": "Bearer"})

    def _record(self, scope: Scope, request_id: str, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unknown")
        meter = self.meters.get((route, status))
        if meter is None:
            meter = metrics.REQUESTS.labels(route, status), metrics.REQUEST_SECONDS.labels(route)
            self.meters[route, status] = meter
        meter[0].inc()
        meter[1].observe(seconds)
        if self.log_requests:
            fields = {
                "request_id": request_id,
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "ms": round(seconds * 1000, 3),
            }
            log.info("request", extra={"fields": fields})


def _answer_to(scope: Scope, problem: ProblemError) -> Response:
    """An error in the dialect of the path: problem details, or the protocol's own {"error": ...}."""
    if scope["path"].startswith("/v2"):
        return protocol_v2.error_response(problem)
    return problem_response(problem, f"urn:request:{scope['request_id']}")


async def read_body(request: Request, limit: int) -> bytes:
    """The body, refused before it is read when it says it is too large, or as soon as it turns out to be."""
    headers = request.headers
    if headers.get("content-encoding", "identity") != "identity":
        raise ProblemError(415, "Compressed bodies are not accepted.", headers={"Accept-Encoding": "identity"})
    length = headers.get("content-length", "0")
    if not length.isdigit() or int(length) > limit:
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ProblemError(400, "The connection was closed before the body was complete.")
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        chunks.append(chunk)
        if not message.get("more_body"):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _too_large(limit: int) -> ProblemError:
    return ProblemError(413, f"The body is larger than {limit} bytes.", headers={"Connection": "close"})


async def in_time(
    request: Request, settings: Settings, answer: Callable[[Request, bytes], Awaitable[Response]]
) -> Response:
    """Read the body and answer it, both within the request's time; which of them took too long decides the status."""
    body: bytes | None = None
    try:
        async with asyncio.timeout(settings.timeout_s):
            body = await read_body(request, settings.max_body)
            return await answer(request, body)
    except TimeoutError:
        if body is None:
            raise ProblemError(408, "The body did not arrive in time.", headers={"Connection": "close"}) from None
        raise ProblemError(504, f"No answer within {settings.timeout_s:g} s.") from None


def median_handler(engine: Engine) -> Handler:
    """POST /median in its three formats."""
    settings = engine.settings

    async def answer(request: Request, body: bytes) -> Response:
        query = bodies.read_query(request.scope["query_string"])
        match request.headers.get("content-type", bodies.JSON).partition(";")[0].strip().lower():
            case bodies.JSON:
                limit = settings.max_vectors
                parsed = await engine.offload(len(body) // 16, bodies.read_json, body, query.options, limit)
                return _json_answer(await engine.medians(parsed))
            case bodies.RAW:
                result = await engine.medians(bodies.read_raw(body, query, settings.max_vectors))
                return _binary_answer(result, result.medians.tobytes(), bodies.RAW)
            case bodies.NPY:
                result = await engine.medians(bodies.read_npy(body, query.options, settings.max_vectors))
                return _binary_answer(result, bodies.write_npy(result.medians), bodies.NPY)
        accepted = [bodies.JSON, bodies.NPY, bodies.RAW]
        raise ProblemError(415, f"Content-Type must be one of {', '.join(accepted)}.", accepted=accepted)

    async def median(request: Request) -> Response:
        return await in_time(request, settings, answer)

    return median


def _json_answer(answer: Answer) -> Response:
    # lists, not arrays: orjson 3.13 with OPT_SERIALIZE_NUMPY writes beyond its buffer for long numbers
    content = {
        "medians": answer.medians.tolist(),
        "models": answer.models,
        "certified": [True] * len(answer.models),
        "error_bound": answer.error_bound.tolist(),
        "fallback": answer.fallback,
        "batch_size": answer.batch_size,
        "timings": {
            "queue_ms": answer.queue_s * 1e3,
            "inference_ms": answer.inference_s * 1e3,
            "total_ms": answer.total_s * 1e3,
        },
    }
    return Response(orjson.dumps(content), media_type=bodies.JSON)


def _binary_answer(answer: Answer, content: bytes, kind: str) -> Response:
    """Bare medians; everything else goes into headers."""
    timing = (
        f"queue;dur={answer.queue_s * 1e3:.3f}, inference;dur={answer.inference_s * 1e3:.3f}, "
        f"total;dur={answer.total_s * 1e3:.3f}"
    )
    single = len(answer.models) == 1
    models = answer.models[0] if single else ",".join(sorted(set(answer.models)))
    bound = answer.error_bound[0] if single else answer.error_bound.max()
    headers = {
        "X-Median-Models": models,
        "X-Median-Certified": str(len(answer.models)),
        "X-Median-Error-Bound": repr(float(bound)),
        "X-Median-Fallback": str(sum(answer.fallback)),
        "X-Median-Batch-Size": str(answer.batch_size),
        "Server-Timing": timing,
    }
    return Response(content, headers=headers, media_type=kind)


def create_app(settings: Settings | None = None) -> Front:
    """The application over the models of `settings` (from the environment when uvicorn starts a worker)."""
    settings = settings or Settings.from_env()
    logs.configure(settings.log_level)
    engine = Engine(settings, registry.load(settings.folders))
    app = FastAPI(
        title="onnx-median",
        version="0.1.0",
        description="Medians by ReLU networks, every answer certified by counting.",
        lifespan=lambda _: _lifespan(engine),
    )
    for kind in (HTTPException, ProblemError, Exception):
        app.add_exception_handler(kind, _error)
    _add_routes(app, engine)
    app.include_router(protocol_v2.router(engine, in_time))
    return Front(app, engine)


async def _error(request: Request, error: Exception) -> Response:
    """Whatever ends a request inside the framework, its own refusals (404, 405) included, in one form."""
    if isinstance(error, ProblemError):
        return _answer_to(request.scope, error)
    if isinstance(error, HTTPException):
        said = {404: f"There is nothing at {request.url.path}.", 405: "This method is not allowed here."}
        detail = said.get(error.status_code, error.detail)
        return _answer_to(request.scope, ProblemError(error.status_code, detail, headers=error.headers))
    return _answer_to(request.scope, ProblemError(500, "The service failed; the log has the details."))


def _add_routes(app: FastAPI, engine: Engine) -> None:
    answers = {
        "model": schemas.MedianAnswer,
        "headers": schemas.ANSWER_HEADERS,
        "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in (bodies.NPY, bodies.RAW)},
    }
    app.router.routes.insert(  # first, because routes are tried in order
        0,
        DirectRoute(
            "/median",
            median_handler(engine),
            methods=["POST"],
            name="median",
            summary="Medians of vectors of any length",
            tags=["median"],
            responses={200: answers, **schemas.problems(400, 401, 404, 408, 413, 415, 422, 429, 500, 504)},
            openapi_extra={"requestBody": schemas.REQUEST_BODY, "parameters": schemas.PARAMETERS},
        ),
    )

    @app.get("/models", tags=["models"], responses=schemas.problems(401))
    async def models() -> schemas.ModelList:
        """All models being served, and the files that were left out with the reason."""
        return _model_list(engine)

    @app.post("/models/reload", tags=["models"], responses=schemas.problems(401))
    async def reload() -> schemas.ModelList:
        """Read the manifest again. Requests under way finish on the models they started with."""
        await reload_models(engine)
        _tell_workers(engine)
        return _model_list(engine)

    @app.get("/models/{name}", tags=["models"], responses=schemas.problems(401, 404))
    async def model(name: str) -> schemas.ModelEntry:
        """The description of one model: construction, size, grid, failure bound."""
        return _entry(engine.registry.get(name))

    @app.get(
        "/models/{name}/file",
        tags=["models"],
        response_class=FileResponse,
        responses={
            200: {"content": {bodies.RAW: {"schema": {"type": "string", "format": "binary"}}}},
            **schemas.problems(401, 404),
        },
    )
    async def model_file(name: str) -> FileResponse:
        """The .onnx file itself."""
        found = engine.registry.get(name)
        if not found.path.is_file():
            raise ProblemError(404, f"The file of {name!r} has been removed; reload the models.")
        return FileResponse(found.path, media_type=bodies.RAW, filename=found.path.name)

    @app.get("/healthz", tags=["health"])
    async def healthz() -> schemas.Status:
        """The process is alive."""
        return schemas.Status(status="ok")

    @app.get("/readyz", tags=["health"], responses=schemas.problems(503))
    async def readyz() -> schemas.Status:
        """Requests are welcome: models are loaded and no shutdown has begun."""
        if reason := not_ready(engine):
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
        text, media_type = metrics.exposition()
        return Response(text, headers={"Content-Type": media_type})


def not_ready(engine: Engine) -> str | None:
    """Why no requests should come, or None."""
    if engine.draining:
        return "The service is shutting down."
    return None if engine.registry.models else "No model is loaded."


def _entry(model: registry.Model) -> schemas.ModelEntry:
    return schemas.ModelEntry(name=model.name, sha256=model.sha256, description=model.description)


def _model_list(engine: Engine) -> schemas.ModelList:
    entries = [
        _entry(model) for model in sorted(engine.registry.models.values(), key=lambda model: (model.d, model.name))
    ]
    return schemas.ModelList(models=entries, left_out=engine.registry.left_out)


async def reload_models(engine: Engine) -> None:
    """Load in a thread, swap in the loop."""
    loop = asyncio.get_running_loop()
    folders = engine.settings.folders
    fresh = await loop.run_in_executor(engine.helpers, registry.load, folders, 1, engine.registry)
    engine.use(fresh)
    log.info("models loaded", extra={"fields": {"models": sorted(fresh.models), "left_out": fresh.left_out}})


def _flag(engine: Engine) -> Path | None:
    return Path(engine.settings.runtime_dir) / "reload" if engine.settings.runtime_dir else None


def _tell_workers(engine: Engine) -> None:
    """Other workers share nothing but a folder: they look at this file several times a second."""
    if (flag := _flag(engine)) is not None:
        flag.write_text(secrets.token_hex(8))


async def _follow_reloads(engine: Engine, flag: Path) -> None:
    seen = flag.read_text() if flag.exists() else ""
    while True:
        await asyncio.sleep(0.25)
        now = flag.read_text() if flag.exists() else ""
        if now != seen:
            seen = now
            await reload_models(engine)


@contextlib.asynccontextmanager
async def _lifespan(engine: Engine) -> AsyncIterator[None]:
    """Follow reloads asked of other workers, and let readiness drop before the port closes."""
    flag = _flag(engine)
    follower = None
    if flag is not None and engine.settings.workers > 1:
        follower = asyncio.create_task(_follow_reloads(engine, flag))
    _drain_on_sigterm(engine)
    fields = {"models": sorted(engine.registry.models), "threads": engine.settings.inference_threads}
    log.info("serving", extra={"fields": fields})
    yield
    if follower is not None:
        follower.cancel()
    engine.close()


def _drain_on_sigterm(engine: Engine) -> None:
    """On SIGTERM: not ready at once, connections asked to close, and only after `drain_s` uvicorn's own shutdown."""
    shut_down = signal.getsignal(signal.SIGTERM)
    if not callable(shut_down):
        return  # not under uvicorn, as in tests in one process
    loop = asyncio.get_running_loop()

    def begin(number: int, frame: FrameType | None) -> None:
        if engine.draining:
            return
        engine.draining = True
        log.info("draining", extra={"fields": {"seconds": engine.settings.drain_s}})
        loop.call_soon_threadsafe(loop.call_later, engine.settings.drain_s, shut_down, number, frame)

    with contextlib.suppress(ValueError):  # not in the main thread, as in tests
        signal.signal(signal.SIGTERM, begin)
