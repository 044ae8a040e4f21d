"""Routes of the page, not in the API document: the layers of a network, a formula, and the time of numpy."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response

from exporter.analysis.promise import uniform_only
from service.errors import BadInputError, ProblemError
from service.serving import json_body
from service.serving.engine import Engine
from service.serving.gateway import PlainRoute, json_answer, with_body
from service.serving.json_body import Body, BodyLimits
from service.serving.watching import LONGEST, Watcher
from service.statistics.fed_grid import Floats
from service.watch.specimens import Specimen, carried

NUMPY_LONGEST = 1 << 21  # values
NUMPY_S = 0.2  # for all runs but the first
RUNS = 7


def router(engine: Engine) -> APIRouter:
    """All of them."""
    routes = APIRouter(route_class=PlainRoute, include_in_schema=False)
    watcher = Watcher(engine)

    async def catalogue(request: Request) -> Response:
        """The networks that the page can show."""
        return json_answer({"models": [_entry(each) for each in carried().values()]})

    async def watch(request: Request) -> Response:
        """Run a network with all its layers as outputs. Without `model` the smallest one of the construction is chosen
        that takes the vector; it is padded evenly below and above."""
        return await with_body(request, layers)

    async def layers(request: Request, body: Body) -> Response:
        vector, options = await _read(engine, body, LONGEST, ("model", "construction"))
        told = await watcher.watch(vector, options.get("model"), options.get("construction"))
        return json_answer(told)

    async def neuron(request: Request) -> Response:
        """The formula of a neuron: its weights for neurons and inputs (layer 0), the largest first."""
        name, layer, index = (request.path_params[key] for key in ("name", "layer", "index"))
        try:
            async with asyncio.timeout(engine.settings.timeout_s):
                told = await watcher.formula(name, _whole("layer", layer), _whole("index", index))
        except TimeoutError:
            raise ProblemError(504, f"No answer within {engine.settings.timeout_s:g} s.") from None
        return json_answer(told)

    async def numpy_median(request: Request) -> Response:
        """numpy.median of a vector on this machine, and its shortest time, for comparison."""
        return await with_body(request, compared)

    async def compared(request: Request, body: Body) -> Response:
        vector, _ = await _read(engine, body, NUMPY_LONGEST)
        median, seconds, runs = await engine.in_thread(_time_numpy, vector)
        return json_answer({"median": median, "ms": seconds * 1e3, "runs": runs})

    routes.add_api_route("/watch", catalogue, methods=["GET"])
    routes.add_api_route("/watch", watch, methods=["POST"])
    routes.add_api_route("/watch/{name}/layers/{layer}/neurons/{index}", neuron, methods=["GET"])
    routes.add_api_route("/numpy", numpy_median, methods=["POST"])
    return routes


def _entry(each: Specimen) -> dict[str, Any]:
    about = {key: value for key, value in each.description.items() if key in ("construction", "d", "depth")}
    return {"name": each.name, "uniform": uniform_only(each.description), **about}


async def _read(
    engine: Engine, body: Body, longest: int, options: tuple[str, ...] = ()
) -> tuple[Floats, dict[str, str | None]]:
    """One vector, and names beside it."""

    def read() -> tuple[Floats, dict[str, Any]]:
        document, found = json_body.read(body, ("vector",))
        known = ("vector", *options)
        if unknown := sorted(set(document) - set(known)):
            raise BadInputError(f"Unknown member {unknown[0][:40]!r}; known are {', '.join(known)}.")
        if not found:
            raise BadInputError('"vector" must be an array of numbers.', vector=0)
        return found["vector",].flat(BodyLimits(1, longest)), document

    values, document = await engine.read(body, json_body.memory_for, read)
    if not len(values):
        raise BadInputError("The vector is empty.", vector=0)
    chosen = {name: document.get(name) for name in options}
    for name, value in chosen.items():
        if value is not None and not isinstance(value, str):
            raise BadInputError(f"{name} must be a name.")
    return values, chosen


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise BadInputError(f"{name} must be a number from 0 on, not {text[:40]!r}.")
    return int(text)


def _time_numpy(vector: Floats) -> tuple[float, float, int]:
    if not (finite := np.isfinite(vector)).all():
        at = int(np.argmin(finite))
        raise BadInputError(f"{vector[at]} is not a finite number.", vector=0, index=at)
    times: list[float] = []
    with np.errstate(over="ignore"):
        while len(times) < RUNS and sum(times) < NUMPY_S:
            started = time.perf_counter()
            median = np.median(vector)
            times.append(time.perf_counter() - started)
    if not np.isfinite(median):  # the sum of the two middle values is beyond float64
        raise BadInputError("numpy's median of these numbers overflows.", vector=0)
    return float(median), min(times), len(times)
