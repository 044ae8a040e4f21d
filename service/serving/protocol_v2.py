"""Open Inference Protocol v2 over REST, with the binary tensor extension, for the same models.

The input is a tensor [k, d], the output a tensor [k, columns]. The answers are those of /median. Errors have the protocol's
own form, {"error": "..."}.

A further model, `quantile`, takes vectors of any length. Its parameters are the options of POST /quantile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from starlette.responses import Response

from exporter.version import __version__
from service import json_text
from service.errors import BadInputError, ProblemError
from service.models.registry import LoadedModel
from service.serving import json_body
from service.serving.bodies import Answer, Question, settled
from service.serving.engine import Engine
from service.serving.formats import BINARY
from service.serving.gateway import PlainRoute, json_answer, with_body
from service.serving.json_body import SMALL, Body, BodyLimits, Numbers
from service.serving.options import MedianOptions, QuantileOptions, merged, options_of, read_text
from service.statistics.fed_grid import Floats
from service.statistics.statistic import Statistic

SERVER = {"name": "onnx-median", "version": __version__, "extensions": ["binary_tensor_data"]}
VERSION = "1"
QUANTILE = "quantile"
DATA: json_body.MemberPath = ("inputs", 0, "data")
HEADER_LENGTH = "Inference-Header-Content-Length"
DATATYPES: dict[str, np.dtype[Any]] = {"FP32": np.dtype("<f4"), "FP64": np.dtype("<f8")}
NAMES = {"float32": "FP32", "float64": "FP64"}


class WithParameters(BaseModel):
    """A part of a request that may have parameters. An empty list means no parameters."""

    model_config = ConfigDict(strict=True)
    parameters: Annotated[dict[str, Any], BeforeValidator(lambda given: {} if given == [] else given)] = {}

    def flag(self, name: str, default: bool) -> bool:
        flag = self.parameters.get(name, default)
        if not isinstance(flag, bool):
            raise BadInputError(f"{name} must be true or false.")
        return flag


class InputTensor(WithParameters):
    """The tensor of a request, without its numbers."""

    name: str
    datatype: Literal["FP32", "FP64"]
    shape: list[Annotated[int, Field(ge=1)]] = Field(min_length=2, max_length=2)


class OutputTensor(WithParameters):
    """An output that a request asks for."""

    name: str


class InferenceRequest(WithParameters):
    """A request for inference, without its numbers."""

    id: str = ""
    inputs: list[InputTensor] = Field(min_length=1, max_length=1)
    outputs: list[OutputTensor] | None = Field(None, max_length=1)


@dataclass(frozen=True)
class ColumnOptions(MedianOptions):
    """A request for all columns of a model."""

    wanted: tuple[Statistic, ...] = ()

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        return self.wanted

    def shaped(self, columns: Sequence[Any], dtype: np.dtype[Any]) -> Any:
        return np.stack(columns, 1).astype(dtype, copy=False)


def router(engine: Engine) -> APIRouter:
    """All routes of the protocol."""
    routes = APIRouter(tags=["Open Inference Protocol v2"], route_class=PlainRoute)

    def model_of(request: Request) -> LoadedModel | None:
        """The model of a path; None for `quantile`, unless a file has this name."""
        name, version = request.path_params["name"], request.path_params.get("version", VERSION)
        model = None if name == QUANTILE and name not in engine.registry.models else engine.registry.get(name)
        if version != VERSION:
            raise ProblemError(404, f"Model {name!r} has only version {VERSION}.")
        return model

    async def server(request: Request) -> Response:
        """Name, version and extensions of this server."""
        return json_answer(SERVER)

    async def live(request: Request) -> Response:
        """The process is alive."""
        return json_answer({"live": True})

    async def ready(request: Request) -> Response:
        """Models are loaded and answer, and no shutdown has begun."""
        is_ready = await engine.trouble() is None
        return json_answer({"ready": is_ready}, 200 if is_ready else 503)

    async def metadata(request: Request) -> Response:
        """Inputs and outputs of a model."""
        return json_answer(model_metadata(model_of(request)))

    async def model_ready(request: Request) -> Response:
        """The model is loaded and answers."""
        is_ready = await engine.trouble(model_of(request)) is None and bool(engine.registry.models)
        return json_answer({"name": request.path_params["name"], "ready": is_ready}, 200 if is_ready else 503)

    async def infer(request: Request) -> Response:
        """Run a model on a tensor [k, d]."""
        return await with_body(request, partial(answer, model_of(request)))

    async def answer(model: LoadedModel | None, request: Request, body: Body) -> Response:
        limits = engine.limits if model is None else BodyLimits(engine.settings.max_vectors, model.d)
        header, binary = _split(body, request.headers.get(HEADER_LENGTH))

        def read() -> tuple[InferenceRequest, Question]:
            document, found = json_body.read(header, DATA)
            asked = _checked(document, model, limits)
            options = _options(asked, model)
            values = _values(asked.inputs[0], found.get(DATA), binary, limits, options.nan != "error")
            return asked, settled(Question.matrix(values, options), limits)

        asked, question = await engine.read(header, json_body.memory_for, read)
        until = request.scope["exchange"].started + engine.settings.timeout_s
        return _response(asked, model, await engine.answer(question, until))

    any_json: dict[str, Any] = {"content": {"application/json": {"schema": {"type": "object"}}}}

    def add(method: str, path: str, handler: Callable[[Request], Awaitable[Response]], *statuses: int) -> None:
        names = [name for name in ("name", "version") if f"{{{name}}}" in path]
        parameters = [{"name": n, "in": "path", "required": True, "schema": {"type": "string"}} for n in names]
        extra: dict[str, Any] = {"parameters": parameters}
        answers: dict[int | str, dict[str, Any]] = {200: any_json, **dict.fromkeys(statuses, ERROR)}
        if method == "POST":
            extra["requestBody"] = INFER_BODY
        routes.add_api_route(path, handler, methods=[method], responses=answers, openapi_extra=extra)

    add("GET", "/v2", server, 401)
    add("GET", "/v2/health/live", live)
    add("GET", "/v2/health/ready", ready, 503)
    for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        add("GET", path, metadata, 401, 404)
        add("GET", path + "/ready", model_ready, 401, 404, 503)
        add("POST", path + "/infer", infer, 400, 401, 404, 408, 413, 415, 429, 431, 500, 503, 504)
    return routes


ERROR = {
    "description": "Error",
    "content": {
        "application/json": {
            "schema": {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
        }
    },
}
INFER_BODY = {
    "required": True,
    "content": {
        "application/json": {"schema": {"type": "object", "required": ["inputs"]}},
        "application/octet-stream": BINARY,
    },
}


def model_metadata(model: LoadedModel | None) -> dict[str, Any]:
    """The protocol's description of a model; the batch dimension is -1. None stands for `quantile`."""
    name, datatype, x, y, d, columns = QUANTILE, "FP64", "x", "y", -1, -1
    if model is not None:
        name, datatype, d, columns = model.name, NAMES[model.grid.dtype.name], model.d, len(model.columns)
        x, y = model.input_name, model.output_name
    return {
        "name": name,
        "versions": [VERSION],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": x, "datatype": datatype, "shape": [-1, d]}],
        "outputs": [{"name": y, "datatype": datatype, "shape": [-1, columns]}],
    }


def _checked(document: dict[str, Any], model: LoadedModel | None, limits: BodyLimits) -> InferenceRequest:
    """The request, if it fits the model."""
    try:
        asked = InferenceRequest.model_validate(document)
    except ValidationError as errors:
        first = errors.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))[:80]
        raise BadInputError(f"{place}: {first['msg']}.") from None
    about = model_metadata(model)
    tensor, (rows, d) = asked.inputs[0], asked.inputs[0].shape
    for what, given in (("inputs", asked.inputs), ("outputs", asked.outputs or [])):
        if any(each.name != about[what][0]["name"] for each in given):
            raise BadInputError(f"The tensor in {what} of {about['name']} is called {about[what][0]['name']!r}.")
    if any(output.parameters.get("classification") for output in asked.outputs or []):
        raise BadInputError("The classification extension does not apply to medians.")
    if d > limits.length or (model is not None and d != model.d):
        wanted = f"n from 1 to {limits.length}" if model is None else f"n = {model.d}"
        raise BadInputError(f"The shape is {tensor.shape}, and must be [rows, n] with {wanted}.")
    if rows > limits.vectors:
        raise json_body.too_many(limits.vectors)
    return asked


def _options(asked: InferenceRequest, model: LoadedModel | None) -> MedianOptions:
    """All columns of a model, or the options of `quantile` from the parameters: lists, or text with commas."""
    if model is not None:
        return ColumnOptions(model=model.name, wanted=tuple(Statistic.of(column, model.d) for column in model.columns))
    chosen = {name: value for name, value in asked.parameters.items() if name in options_of("/quantile", False)}
    for name in {"quantiles", "ranks"} & chosen.keys():
        value = chosen[name]
        chosen[name] = (
            read_text(name, value) if isinstance(value, str) else value if isinstance(value, list) else [value]
        )
    return merged(chosen, QuantileOptions())


def _split(body: Body, header_length: str | None) -> tuple[Body, memoryview]:
    """The JSON and the bytes behind it. If there are such bytes, the JSON is short and holds no numbers."""
    length = header_length or str(len(body))
    if not (length.isascii() and length.isdigit() and len(length) < 20 and int(length) <= len(body)):
        raise BadInputError(f"{HEADER_LENGTH} does not match the body.")
    at = int(length)
    if at == len(body):
        return body, memoryview(b"")
    if at > SMALL:
        raise BadInputError(f"The JSON before binary data is longer than {SMALL} bytes.")
    return body[:at], memoryview(body)[at:]


def _values(tensor: InputTensor, data: Numbers | None, binary: memoryview, limits: BodyLimits, missing: bool) -> Floats:
    """The numbers of a tensor: from the bytes behind the JSON, or from the JSON, flat or in rows."""
    (rows, d), dtype = tensor.shape, DATATYPES[tensor.datatype]
    size = tensor.parameters.get("binary_data_size")
    values: Floats
    if size is not None:
        if isinstance(size, bool) or not isinstance(size, int) or size != len(binary) or size % dtype.itemsize:
            raise BadInputError(
                f"binary_data_size is {size!r}; {len(binary)} bytes of {tensor.datatype} follow the header."
            )
        values = np.frombuffer(binary, dtype)
    elif len(binary):
        raise BadInputError(f"{len(binary)} bytes follow the header, and no tensor has a binary_data_size.")
    elif data is None:
        raise BadInputError("The input has neither data, an array of numbers, nor binary_data_size.")
    else:
        if data.nested:
            numbers, lengths = data.rows(limits, missing)
            if (row := next((row for row, length in enumerate(lengths) if length != d), None)) is not None:
                raise BadInputError(f"A row has {lengths[row]} numbers, the shape says {d}.", vector=row)
        else:
            numbers = data.flat(BodyLimits(1, limits.vectors * d), missing)
        with np.errstate(over="ignore"):  # a number beyond float32 becomes infinite and is refused
            values = numbers.astype(dtype)
    if values.size != rows * d:
        raise BadInputError(f"The shape asks for {rows * d} numbers, the data has {values.size}.")
    return values.reshape(rows, d)


def _response(asked: InferenceRequest, model: LoadedModel | None, answer: Answer) -> Response:
    """The output tensor, as JSON or in binary behind it."""
    about, values, found = model_metadata(model), answer.values, answer.found
    tensor: dict[str, Any] = {
        "name": about["outputs"][0]["name"],
        "datatype": "FP64" if model is None else asked.inputs[0].datatype,
        "shape": list(values.shape),
    }
    document: dict[str, Any] = {
        "model_name": about["name"],
        "model_version": VERSION,
        "parameters": {"fallback": found.fallback, "batch_size": found.batch_size},
        "outputs": [tensor],
    }
    if asked.id:
        document["id"] = asked.id
    binary = asked.flag("binary_data_output", default=False)
    for output in asked.outputs or []:
        binary = output.flag("binary_data", binary)
    if not binary:
        tensor["data"] = values.ravel().tolist()
        return json_answer(document)
    data = values.astype(DATATYPES[tensor["datatype"]], copy=False).tobytes()
    tensor["parameters"] = {"binary_data_size": len(data)}
    header = json_text.short(document)
    headers = {HEADER_LENGTH: str(len(header))}
    return Response(header + data, headers=headers, media_type="application/octet-stream")
