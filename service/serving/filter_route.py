"""POST /filter: a picture through a filter for images, pixels in and pixels out."""

from __future__ import annotations

import io
import re
import time
from typing import Any

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Request
from starlette.responses import StreamingResponse

from service.errors import BadInputError, ProblemError
from service.models.entries import PIXELS, pieces
from service.models.filters import LoadedFilter, Pixels
from service.process import metrics
from service.serving import schemas
from service.serving.admission import Turns
from service.serving.bodies import npy_header
from service.serving.engine import Engine
from service.serving.exchange import Exchange
from service.serving.formats import BINARY, FORMATS
from service.serving.gateway import PlainRoute, header_text, with_body
from service.serving.json_body import Body
from service.serving.options import checked, query_of

NPY, RAW = FORMATS["npy"].media_type, FORMATS["raw"].media_type
SIDE = re.compile(r"[0-9]{1,9}+")
KNOWN = ("model", "shape", "dtype")
KINDS = {"|u1": "uint8", "<f4": "float32", "<f8": "float64"}


def router(engine: Engine) -> APIRouter:
    """The one route."""
    routes = APIRouter(tags=["images"], route_class=PlainRoute)
    turns = Turns()

    async def filtered(request: Request, body: Body) -> tuple[LoadedFilter, Pixels, float, str]:
        exchange: Exchange = request.scope["exchange"]
        kind, query = _kind(exchange), query_of(exchange.query, KNOWN)
        picture = _read_npy(body) if kind == NPY else _read_raw(body, query)
        chosen = engine.registry.image_filter(query.get("model"), picture.dtype)
        stack = chosen.stacked(picture)
        shape, size = chosen.answer_shape(picture), chosen.terms.dtype.itemsize
        if int(np.prod(shape, dtype=np.int64)) * size > engine.settings.max_body:
            raise exchange.too_large("answer")
        spent = 0.0
        async with turns.mine():
            answer = np.empty((*shape[:2], stack.shape[-1]), chosen.terms.dtype)
            for tile in chosen.tiles(stack):
                spent += await engine.in_thread(_timed, chosen, tile, stack, answer)
        return chosen, answer.reshape(shape), spent, kind

    async def filter_picture(request: Request) -> StreamingResponse:
        """A picture filtered, pixel by pixel: the median, or another rank, of the window around each.

        Pixels come as a .npy file or as raw numbers, [h, w] or [h, w, channels]; for a filter of frames [frames, h, w] or
        [frames, h, w, channels]. The answer has the same format and the type of the filter. Every filter takes uint8.
        """
        chosen, answer, seconds, kind = await with_body(request, filtered)
        metrics.note(metrics.PIXELS.labels(chosen.name).inc, answer.size)
        metrics.note(metrics.INFERENCE_SECONDS.labels(chosen.name).observe, seconds)
        content = answer.reshape(-1).view(np.uint8).data
        head = _npy_head(answer) if kind == NPY else b""
        exchange: Exchange = request.scope["exchange"]
        exchange.hold(len(head) + len(content))  # until it is sent
        total = time.perf_counter() - exchange.started
        headers = {
            "Content-Length": str(len(head) + len(content)),
            "X-Median-Models": header_text(chosen.name),
            "X-Median-Shape": ",".join(map(str, answer.shape)),
            "X-Median-Dtype": answer.dtype.name,
            "X-Median-Error-Bound": repr(chosen.terms.error),
            "Server-Timing": f"inference;dur={seconds * 1e3:.3f}, total;dur={total * 1e3:.3f}",
        }
        return StreamingResponse(_parts(head, content), headers=headers, media_type=kind)

    content = {NPY: BINARY, RAW: BINARY}
    routes.add_api_route(
        "/filter",
        filter_picture,
        methods=["POST"],
        response_class=StreamingResponse,
        responses={
            200: {"content": content, "headers": schemas.FILTER_HEADERS},
            **schemas.problems(400, 401, 404, 408, 413, 415, 422, 429, 431, 500, 503, 504),
        },
        openapi_extra={"requestBody": {"required": True, "content": content}, "parameters": schemas.OF_A_FILTER},
    )
    return routes


async def _parts(head: bytes, content: memoryview) -> Any:
    if head:
        yield head
    async for piece in pieces(content):
        yield piece


def _timed(chosen: LoadedFilter, tile: Any, stack: Pixels, answer: Pixels) -> float:
    started = time.perf_counter()
    chosen.fill(tile, stack, answer)
    return time.perf_counter() - started


def _kind(exchange: Exchange) -> str:
    given = exchange.headers.get(b"content-type", NPY.encode()).decode("latin-1").partition(";")[0].strip().lower()
    if given not in (NPY, RAW):
        raise ProblemError(415, f"Content-Type must be {NPY} or {RAW}.", accepted=[NPY, RAW])
    return given


def _read_raw(body: Body, query: dict[str, str]) -> Pixels:
    if "shape" not in query:
        raise BadInputError("A raw body needs ?shape=h,w or ?shape=h,w,channels.")
    shape = _sides(query["shape"])
    if not shape:
        raise BadInputError(
            f"shape must be two to four whole numbers with commas between them, not {query['shape'][:40]!r}."
        )
    dtype = np.dtype(
        checked("dtype", query.get("dtype", "uint8"), {"type": "string", "enum": list(PIXELS)})
    ).newbyteorder("<")
    return _pixels(body, 0, dtype, shape)


def _read_npy(body: Body) -> Pixels:
    header, start = npy_header(body)
    if header["descr"] not in KINDS:
        raise BadInputError(f"Arrays of {header['descr'][:40]} cannot be read; send uint8, float32 or float64.")
    if header["fortran_order"] == "True":
        raise BadInputError("Fortran order is not accepted; save numpy.ascontiguousarray(x).")
    shape = _sides(header["shape"].strip("()"))
    if not shape:
        raise BadInputError(f"The array has shape {header['shape'][:40]}; a picture has two to four axes.")
    return _pixels(body, start, np.dtype(KINDS[header["descr"]]), shape)


def _sides(text: str) -> list[int]:
    """Two to four whole numbers separated by commas, or nothing."""
    sides = [side.strip() for side in text.split(",", 5)]
    sides = sides[:-1] if len(sides) > 1 and not sides[-1] else sides
    return list(map(int, sides)) if 2 <= len(sides) <= 4 and all(map(SIDE.fullmatch, sides)) else []


def _pixels(body: Body, start: int, dtype: np.dtype[Any], shape: list[int]) -> Pixels:
    size = dtype.itemsize
    for side in shape:
        size *= side  # Python's integers have no limit
    if size != len(body) - start or not size:
        raise BadInputError(f"{shape} pixels of {dtype.name} are {size} bytes, and the body has {len(body) - start}.")
    picture: npt.NDArray[Any] = np.frombuffer(body, dtype, offset=start).reshape(shape)
    return picture


def _npy_head(answer: Pixels) -> bytes:
    file = io.BytesIO()
    about = {"descr": np.lib.format.dtype_to_descr(answer.dtype), "fortran_order": False, "shape": answer.shape}
    np.lib.format.write_array_header_1_0(file, about)
    return file.getvalue()
