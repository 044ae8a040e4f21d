"""Open Inference Protocol v2 over REST, with the binary tensor extension, for the same models.

A tensor of shape [k, d] goes in, [k, columns] comes out. The numbers take the same way as in /median, so that a client
written for another server gets numpy's answers without knowing about grids. Errors have the protocol's own form,
{"error": "..."}.

Beside the models there is one called `quantile`, for vectors of any length: what POST /quantile takes as options are its
parameters.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from exporter.version import __version__
from service import json_text
from service.errors import BadInputError, ProblemError
from service.models.registry import LoadedModel
from service.serving import json_body
from service.serving.bodies import Question, settled
from service.serving.engine import Engine
from service.serving.gateway import with_body
from service.serving.json_body import SMALL, Body, BodyLimits, Numbers
from service.serving.options import VECTORS, MedianOptions, QuantileOptions, merged, numbers_of
from service.serving.routes import PlainRoute
from service.statistics.fed_grid import Floats
from service.statistics.solve import Answers
from service.statistics.statistic import Statistic

SERVER = {"name": "onnx-median", "version": __version__, "extensions": ["binary_tensor_data"]}
VERSION = "1"
DATA: json_body.MemberPath = ("inputs", 0, "data")
HEADER_LENGTH = "Inference-Header-Content-Length"
DATATYPES: dict[str, np.dtype[Any]] = {"FP32": np.dtype("<f4"), "FP64": np.dtype("<f8")}
NAMES = {"float32": "FP32", "float64": "FP64"}


def _json(content: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


def _about(found: Answers) -> dict[str, Any]:
    """The parameters of an answer."""
    return {"fallback": found.fallback, "batch_size": found.batch_size}


class Contract(NamedTuple):
    """What a tensor must be to be taken."""

    name: str
    d: int
    input_name: str = "x"
    output_name: str = "y"
    output_type: str | None = None  # that of the input


@dataclass(frozen=True)
class ColumnOptions(MedianOptions):
    """What a model itself is asked for: all its columns."""

    wanted: tuple[Statistic, ...] = ()

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        return self.wanted

    def shaped(self, columns: list[Any], dtype: np.dtype[Any]) -> Any:
        return np.stack(columns, 1).astype(dtype, copy=False)


QUANTILE = "quantile"
CHOICES = QuantileOptions.members - VECTORS


def router(engine: Engine) -> APIRouter:
    """All routes of the protocol."""

    def is_quantile(request: Request) -> bool:
        """Whether that is what is asked for, and no file has the name."""
        name, version = request.path_params["name"], request.path_params.get("version", VERSION)
        return name == QUANTILE and name not in engine.registry.models and version == VERSION

    routes = APIRouter(tags=["Open Inference Protocol v2"], route_class=PlainRoute)

    def model_of(request: Request) -> LoadedModel:
        version = request.path_params.get("version", VERSION)
        model = engine.registry.get(request.path_params["name"])
        if version != VERSION:
            raise ProblemError(404, f"Model {model.name!r} has only version {VERSION}.")
        return model

    async def server(request: Request) -> Response:
        """Name, version and extensions of this server."""
        return _json(SERVER)

    async def live(request: Request) -> Response:
        """The process is alive."""
        return _json({"live": True})

    async def ready(request: Request) -> Response:
        """Models are loaded and answer, and no shutdown has begun."""
        is_ready = await engine.trouble() is None
        return _json({"ready": is_ready}, 200 if is_ready else 503)

    async def metadata(request: Request) -> Response:
        """Inputs and outputs of a model."""
        return _json(QUANTILE_METADATA if is_quantile(request) else model_metadata(model_of(request)))

    async def model_ready(request: Request) -> Response:
        """The model is loaded and answers."""
        if is_quantile(request):
            is_ready = await engine.trouble() is None and bool(engine.registry.models)
            return _json({"name": QUANTILE, "ready": is_ready}, 200 if is_ready else 503)
        model = model_of(request)
        is_ready = await engine.trouble(model) is None
        return _json({"name": model.name, "ready": is_ready}, 200 if is_ready else 503)

    async def infer(request: Request) -> Response:
        """Run a model on a tensor [k, d]."""
        if is_quantile(request):
            return await with_body(request, quantiles)
        model_of(request)  # an unknown model is refused before the body is read
        return await with_body(request, answer)

    async def answer(request: Request, body: Body) -> Response:
        model, length = model_of(request), request.headers.get(HEADER_LENGTH)
        header, binary = _split(body, length)
        most = BodyLimits(engine.settings.max_vectors, model.d)
        contract = Contract(model.name, model.d, model.input_name, model.output_name)

        def read() -> Call:
            with _in_rows(model.d):
                return Call(contract, *_read(header), binary, most)

        call = await engine.read(header, json_body.memory_for, read)
        wanted = tuple(Statistic.of(column, model.d) for column in model.columns)
        question = Question.matrix(call.values, ColumnOptions(model=model.name, wanted=wanted))
        answer = await engine.answer(question)
        return call.answer(answer.values, _about(answer.found))

    async def quantiles(request: Request, body: Body) -> Response:
        header, binary = _split(body, request.headers.get(HEADER_LENGTH))
        most = engine.limits

        def read() -> tuple[Call, Question]:
            document, data = _read(header)
            contract, options = _of_any_length(document, most)
            call = Call(contract, document, data, binary, most, options.nan != "error")
            return call, settled(Question.matrix(call.values, options), most)

        call, question = await engine.read(header, json_body.memory_for, read)
        until = request.scope["exchange"].started + engine.settings.timeout_s
        answer = await engine.answer(question, until)
        return call.answer(answer.values, _about(answer.found))

    any_json: dict[str, Any] = {"content": {"application/json": {"schema": {"type": "object"}}}}
    error = {"description": "Error", "content": {"application/json": {"schema": ERROR_SCHEMA}}}
    version = "/versions/{version}"

    def add(method: str, path: str, handler: Callable[[Request], Awaitable[Response]], *statuses: int) -> None:
        names = [name for name in ("name", "version") if f"{{{name}}}" in path]
        parameters = [{"name": n, "in": "path", "required": True, "schema": {"type": "string"}} for n in names]
        extra: dict[str, Any] = {"parameters": parameters}
        answers: dict[int | str, dict[str, Any]] = {200: any_json, **dict.fromkeys(statuses, error)}
        if method == "POST":
            extra["requestBody"] = INFER_BODY
        routes.add_api_route(path, handler, methods=[method], responses=answers, openapi_extra=extra)

    add("GET", "/v2", server, 401)
    add("GET", "/v2/health/live", live)
    add("GET", "/v2/health/ready", ready, 503)
    for path in ("/v2/models/{name}", "/v2/models/{name}" + version):
        add("GET", path, metadata, 401, 404)
        add("GET", path + "/ready", model_ready, 401, 404, 503)
        add("POST", path + "/infer", infer, 400, 401, 404, 408, 413, 415, 429, 431, 500, 503, 504)
    return routes


ERROR_SCHEMA = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
INFER_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["inputs"],
                "properties": {
                    "id": {"type": "string"},
                    "inputs": {"type": "array", "minItems": 1, "maxItems": 1, "items": {"type": "object"}},
                    "outputs": {"type": "array", "items": {"type": "object"}},
                    "parameters": {"type": "object"},
                },
            },
        },
        "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
    },
}


def model_metadata(model: LoadedModel) -> dict[str, Any]:
    """The protocol's description of a model; the batch dimension is -1."""
    datatype = NAMES[model.grid.dtype.name]
    return {
        "name": model.name,
        "versions": [VERSION],
        "platform": "onnxruntime_onnx",
        "inputs": [_tensor(model.input_name, datatype, [-1, model.d])],
        "outputs": [_tensor(model.output_name, datatype, [-1, len(model.columns)])],
    }


def _tensor(name: str, datatype: str, shape: list[int]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape}


QUANTILE_METADATA = {
    "name": QUANTILE,
    "versions": [VERSION],
    "platform": "onnxruntime_onnx",
    "inputs": [_tensor("x", "FP64", [-1, -1])],
    "outputs": [_tensor("y", "FP64", [-1, -1])],
}


def _of_any_length(document: dict[str, Any], most: BodyLimits) -> tuple[Contract, QuantileOptions]:
    """What the length of the tensor says itself, and the options among the parameters: lists, or text with commas."""
    match _only(document.get("inputs"), "inputs").get("shape"):
        case [_, int(n)] if not isinstance(n, bool) and 0 < n <= most.length:
            contract = Contract(QUANTILE, n, output_type="FP64")
        case _:
            raise BadInputError(f"The shape must be [rows, n] with n from 1 to {most.length}.")
    chosen = {name: value for name, value in _parameters(document).items() if name in CHOICES}
    for name in ("quantiles", "ranks"):
        if isinstance(chosen.get(name), str):
            chosen[name] = numbers_of(name, chosen[name])
        elif name in chosen and isinstance(chosen[name], int | float):
            chosen[name] = [chosen[name]]
    options = merged(chosen, QuantileOptions())
    assert isinstance(options, QuantileOptions)
    return contract, options


class Call:
    """One inference request, read and checked: the tensor, and how the caller wants the answer."""

    def __init__(
        self,
        model: Contract,
        document: dict[str, Any],
        data: Numbers | None,
        binary: memoryview,
        most: BodyLimits,
        missing: bool = False,
    ) -> None:
        self.model = model
        request_id = document.get("id", "")
        if not isinstance(request_id, str):
            raise BadInputError("id must be a string.")
        self.id = request_id
        tensor = _only(document.get("inputs"), "inputs")
        if tensor.get("name") != model.input_name:
            raise BadInputError(f"The input of {model.name} is called {model.input_name!r}.")
        datatype = tensor.get("datatype")
        if not isinstance(datatype, str) or datatype not in DATATYPES:
            raise BadInputError("The datatype must be FP32 or FP64.")
        self.datatype = datatype
        rows = _rows(tensor.get("shape"), model, most.vectors)
        size = _parameters(tensor).get("binary_data_size")
        if size is None and len(binary):
            raise BadInputError(f"{len(binary)} bytes follow the header, and no tensor has a binary_data_size.")
        values = (
            _from_json(data, datatype, model.d, most, missing) if size is None else _from_binary(binary, size, datatype)
        )
        if values.size != rows * model.d:
            raise BadInputError(f"The shape asks for {rows * model.d} numbers, the data has {values.size}.")
        self.values: Floats = values.reshape(rows, model.d)
        self.binary = self._wants_binary(document)

    def _wants_binary(self, document: dict[str, Any]) -> bool:
        default = _flag(_parameters(document), "binary_data_output", default=False)
        if document.get("outputs") in (None, []):
            return default
        output = _only(document["outputs"], "outputs")
        if output.get("name") != self.model.output_name:
            raise BadInputError(f"The output of {self.model.name} is called {self.model.output_name!r}.")
        parameters = _parameters(output)
        if parameters.get("classification"):
            raise BadInputError("The classification extension does not apply to medians.")
        return _flag(parameters, "binary_data", default)

    def answer(self, outputs: Floats, parameters: dict[str, Any]) -> Response:
        """The output tensor, as JSON or appended in binary."""
        datatype = self.model.output_type or self.datatype
        tensor: dict[str, Any] = {
            "name": self.model.output_name,
            "datatype": datatype,
            "shape": list(outputs.shape),
        }
        document: dict[str, Any] = {"model_name": self.model.name, "model_version": VERSION, "parameters": parameters}
        if self.id:
            document["id"] = self.id
        document["outputs"] = [tensor]
        if not self.binary:
            tensor["data"] = outputs.ravel().tolist()
            return _json(document)
        data = outputs.astype(DATATYPES[datatype], copy=False).tobytes()
        tensor["parameters"] = {"binary_data_size": len(data)}
        header = json_text.short(document)
        headers = {HEADER_LENGTH: str(len(header))}
        return Response(header + data, headers=headers, media_type="application/octet-stream")


def _split(body: Body, header_length: str | None) -> tuple[Body, memoryview]:
    """The JSON, and the bytes after it; where there are such, the JSON holds no numbers and is short."""
    if header_length is None:
        return body, memoryview(b"")
    if not (header_length.isascii() and header_length.isdigit() and len(header_length) < 20):
        raise BadInputError(f"{HEADER_LENGTH} does not match the body.")
    at = int(header_length)
    if at > len(body):
        raise BadInputError(f"{HEADER_LENGTH} does not match the body.")
    if at == len(body):
        return body, memoryview(b"")
    if at > SMALL:
        raise BadInputError(f"The JSON before binary data is longer than {SMALL} bytes.")
    return body[:at], memoryview(body)[at:]


def _read(header: Body) -> tuple[dict[str, Any], Numbers | None]:
    """The request without its numbers, and the numbers."""
    document, found = json_body.read(header, DATA)
    return document, found.get(DATA)


@contextlib.contextmanager
def _in_rows(d: int) -> Iterator[None]:
    """Tell the place of a bad number as row and column, also where numbers are given flat."""
    try:
        yield
    except BadInputError as error:
        index = error.members.get("index")
        if isinstance(index, int) and not error.members["vector"]:
            error.members = dict(zip(("vector", "index"), divmod(index, d), strict=True))
        raise


def _only(tensors: Any, what: str) -> dict[str, Any]:
    match tensors:
        case [dict(tensor)]:
            return tensor
    raise BadInputError(f"{what} must hold exactly one tensor.")


def _parameters(holder: dict[str, Any]) -> dict[str, Any]:
    parameters = holder.get("parameters")
    if parameters is None or parameters == []:
        return {}
    if not isinstance(parameters, dict):
        raise BadInputError("parameters must be an object.")
    return parameters


def _flag(parameters: dict[str, Any], name: str, default: bool) -> bool:
    flag = parameters.get(name, default)
    if not isinstance(flag, bool):
        raise BadInputError(f"{name} must be true or false.")
    return flag


def _rows(shape: Any, model: Contract, max_vectors: int) -> int:
    match shape:
        case [int(rows), int(d)] if not isinstance(rows, bool) and d == model.d and rows > 0:
            if rows > max_vectors:
                raise BadInputError(f"{rows} vectors are too many: at most {max_vectors} in one request.")
            return rows
    raise BadInputError(f"The shape must be [rows, {model.d}] with at least one row.")


def _from_binary(binary: memoryview, size: Any, datatype: str) -> Floats:
    if isinstance(size, bool) or not isinstance(size, int) or size != len(binary):
        raise BadInputError(f"binary_data_size is {size!r}, {len(binary)} bytes follow the header.")
    if size % DATATYPES[datatype].itemsize:
        raise BadInputError(f"{size} bytes are not a whole number of {datatype} values.")
    return np.frombuffer(binary, DATATYPES[datatype])


def _from_json(data: Numbers | None, datatype: str, d: int, most: BodyLimits, missing: bool) -> Floats:
    """Numbers given flat, or in rows."""
    if data is None:
        raise BadInputError("The input has neither data, an array of numbers, nor binary_data_size.")
    if data.nested:
        values, lengths = data.rows(most, missing)
        if (row := next((row for row, length in enumerate(lengths) if length != d), None)) is not None:
            raise BadInputError(f"A row has {lengths[row]} numbers, the model takes {d}.", vector=row)
    else:
        with _in_rows(d):
            values = data.flat(BodyLimits(1, most.vectors * d), missing)
    with np.errstate(over="ignore"):  # beyond float32 becomes infinite, which is refused as such
        return values.astype(DATATYPES[datatype])
