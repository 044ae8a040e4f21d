"""The routes, what they answer, and the application's life from start to shutdown."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from urllib.parse import quote

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from exporter.version import __version__
from service.errors import ProblemError, or_shortage
from service.models import registry
from service.models.building import Builder
from service.models.entries import UnusableModelError, pieces
from service.process import lifecycle, logs, metrics
from service.process.settings import Settings
from service.serving import filter_route, protocol_v2, schemas
from service.serving.engine import Engine
from service.serving.exchange import Exchange
from service.serving.formats import BINARY, FORMATS
from service.serving.gateway import Gateway, PlainRoute
from service.serving.options import ROUTES, STABLE
from service.serving.page import add_page

log = logging.getLogger("service")
FILE = "application/octet-stream"


async def _documented(request: Request) -> Response:
    """The gateway answers this route; FastAPI documents it."""
    raise HTTPException(404)


def create_app(settings: Settings | None = None, later: bool = False) -> Gateway:
    """The application over the models of `settings` (from the environment when uvicorn starts a worker).

    Models are loaded now, or `later`, while the service already answers that it is not ready.
    """
    settings = settings or Settings.from_env()
    logs.configure(settings.log_level)
    engine = Engine(settings, registry.Registry({}), loading="none of them yet")
    if not later:
        engine.manifests = lifecycle.manifests(settings.folders)
        engine.use(registry.load(settings.folders))
        engine.loading = ""
    builder = Builder(engine) if settings.build else None
    app = FastAPI(
        title="onnx-median",
        version=__version__,
        description="Medians and quantiles as numpy gives them, found by ReLU networks and proven by counting.",
        lifespan=lambda _: lifecycle.lifespan(engine, builder.close if builder else None),
        redirect_slashes=False,
        docs_url=None,  # of the page, which loads nothing from other hosts
        redoc_url=None,
    )
    add_page(app, engine)
    for kind in (HTTPException, ProblemError, Exception):
        app.add_exception_handler(kind, _error)
    _add_routes(app, engine)
    app.include_router(filter_route.router(engine))
    app.include_router(protocol_v2.router(engine))
    return Gateway(app, engine, ROUTES)


async def _error(request: Request, error: Exception) -> Response:
    """Errors inside the framework, including its own (404, 405), in one form."""
    exchange: Exchange = request.scope["exchange"]
    error = or_shortage(error)
    if isinstance(error, ProblemError):
        return exchange.refuse(error)
    if isinstance(error, HTTPException):
        said = {404: f"There is nothing at {request.url.path}.", 405: "This method is not allowed here."}
        detail = said.get(error.status_code, error.detail)
        return exchange.refuse(ProblemError(error.status_code, detail, headers=error.headers))
    return exchange.refuse(ProblemError(500, "The service failed; the log has the details."))


def _add_routes(app: FastAPI, engine: Engine) -> None:
    """All routes except the protocol's."""
    statuses = schemas.problems(400, 401, 404, 406, 408, 413, 415, 422, 429, 431, 500, 503, 504)
    quantile = schemas.QuantileAnswer, "Quantiles, or any ranks, of vectors of any length"
    median = schemas.MedianAnswer, "Medians of vectors of any length"
    for path, (form, summary) in (
        (STABLE + "/quantile", quantile),
        (STABLE + "/median", median),
        ("/quantile", quantile),
        ("/median", median),
    ):
        answers = {
            "model": form,
            "headers": schemas.ANSWER_HEADERS,
            "content": {each.media_type: each.answer(path) for each in FORMATS.values()},
        }
        body = {"required": True, "content": {each.media_type: each.schema(path) for each in FORMATS.values()}}
        route = PlainRoute(
            path,
            _documented,
            methods=["POST"],
            name=path[1:],
            response_model=None,
            summary=summary,
            description=f"{summary}. Every answer equals numpy's and is proven by counting.",
            tags=["answers"],
            responses={200: answers, **statuses},
            openapi_extra={"requestBody": body, "parameters": schemas.parameters(path)},
        )
        app.router.routes.append(route)

    @app.get("/models", tags=["models"], responses=schemas.problems(401))
    async def models() -> schemas.ModelList:
        """All models being served, and the files that were left out with the reason."""
        return _model_list(engine)

    @app.post("/models/reload", tags=["models"], responses=schemas.problems(401, 500, 503))
    async def reload() -> schemas.ModelList:
        """Read the manifests again, changed or not. Requests under way finish on the models they started with."""
        await lifecycle.load_models(engine)
        return _model_list(engine)

    @app.get("/models/{name}", tags=["models"], responses=schemas.problems(401, 404))
    async def model(name: str) -> schemas.ModelEntry:
        """The description of one model: construction, size, grid, failure bound."""
        return _entry(engine.registry.described(name))

    @app.get(
        "/models/{name}/file",
        tags=["models"],
        response_class=StreamingResponse,
        responses={
            200: {"content": {FILE: BINARY}},
            **schemas.problems(401, 404),
        },
    )
    async def model_file(name: str) -> StreamingResponse:
        """The .onnx file itself: the bytes that were checked when it was loaded."""
        found = engine.registry.described(name)
        try:
            content = await engine.in_background(found.content)
        except UnusableModelError as error:
            raise ProblemError(404, f"The file of {name!r} has changed since it was loaded: {error}. Reload.") from None
        headers = {
            "Content-Length": str(len(content)),
            "Content-Disposition": f"attachment; filename*=utf-8''{quote(found.path.name)}",
        }
        return StreamingResponse(pieces(content), headers=headers, media_type=FILE)

    @app.get("/healthz", tags=["health"])
    async def healthz() -> dict[str, str]:
        """The process is alive."""
        return {"status": "ok"}

    @app.get("/readyz", tags=["health"], responses=schemas.problems(503))
    async def readyz() -> dict[str, str]:
        """Requests are welcome: models are loaded and answer, and no shutdown has begun."""
        if reason := await engine.trouble():
            raise ProblemError(503, reason)
        return {"status": "ready"}

    @app.get(
        "/metrics",
        tags=["health"],
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **schemas.problems(401)},
    )
    async def metrics_text() -> Response:
        """Counters and histograms for Prometheus."""
        engine.record()
        text, media_type = await engine.in_thread(metrics.exposition)
        return Response(text, headers={"Content-Type": media_type})


def _entry(model: registry.Loaded) -> schemas.ModelEntry:
    return schemas.ModelEntry(name=model.name, sha256=model.sha256, description=dict(model.description))


def _model_list(engine: Engine) -> schemas.ModelList:
    def entries(some: Mapping[str, registry.Loaded]) -> list[schemas.ModelEntry]:
        return [_entry(each) for each in sorted(some.values(), key=lambda each: (each.description["d"], each.name))]

    found = engine.registry
    return schemas.ModelList(models=entries(found.models), filters=entries(found.filters), left_out=found.left_out)
