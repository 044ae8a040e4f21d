"""The HTTP interface for the OpenAPI document. These classes do not validate requests: vectors go from the parser to the
model as arrays. Tests check that answers match these classes."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from service.models.entries import PIXELS
from service.serving.options import options_of


class Timings(BaseModel):
    """Milliseconds: longest wait for a call, time in onnxruntime, all of the request after its body was read."""

    queue_ms: float
    inference_ms: float
    total_ms: float


class Details(BaseModel):
    """What an answer may hold beside the numbers: bounds with `grid`, everything else with `details`."""

    models: list[str] | None = Field(None, description="The models that answered.")
    fallback: int | None = Field(
        None, description="Answers that another model gave because counting refuted the first."
    )
    batch_size: int | None = Field(None, description="Rows in the onnxruntime call, those of other requests included.")
    timings: Timings | None = None


class MedianAnswer(Details):
    """One entry a vector, in the order of the request."""

    medians: list[float | None] = Field(description="null where a vector has numbers missing, or none left (`nan`).")
    error_bound: list[float] | None = Field(None, description="With `grid`: proven distance to numpy.median.")


class QuantileAnswer(Details):
    """One list a vector, one entry a quantile or rank, in the order of the request."""

    quantiles: list[list[float | None]] | None = Field(None, description="The answers, where quantiles were asked for.")
    ranks: list[list[float | None]] | None = Field(None, description="The answers, where ranks were asked for.")
    error_bound: list[list[float]] | None = Field(None, description="With `grid`: proven distance to numpy.quantile.")


class Problem(BaseModel):
    """RFC 9457 problem details; `vector` and `index` point at the number at fault."""

    model_config = ConfigDict(extra="allow")
    type: str
    title: str
    status: int
    detail: str
    instance: str
    vector: int | None = None
    index: int | None = None


class ModelEntry(BaseModel):
    """A model being served."""

    name: str
    sha256: str
    description: dict[str, Any]


class ModelList(BaseModel):
    """All models, and the files that were left out with the reason."""

    models: list[ModelEntry]
    filters: list[ModelEntry] = Field(description="Filters for images, of POST /filter.")
    left_out: dict[str, str]


def _parameter(name: str, schema: dict[str, Any], text: str) -> dict[str, Any]:
    more = {"style": "form", "explode": False} if schema["type"] == "array" else {}
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": text, **more}


def parameters(path: str) -> list[dict[str, Any]]:
    """The query parameters of POST /median or POST /quantile."""
    return [_parameter(name, _not_null(option.schema), option.text) for name, option in options_of(path).items()]


def _not_null(schema: dict[str, Any]) -> dict[str, Any]:
    if isinstance(schema["type"], str):
        return schema
    words = {"enum": [word for word in schema["enum"] if word is not None]} if "enum" in schema else {}
    return {**schema, "type": "string", **words}


def _headers(texts: dict[str, str]) -> dict[str, Any]:
    return {name: {"description": text, "schema": {"type": "string"}} for name, text in texts.items()}


ANSWER_HEADERS = _headers(
    {
        "X-Request-ID": "The id of the request, as in the log.",
        "X-Median-Error-Bound": "With `grid`, where the body holds answers alone: the largest error bound.",
        "X-Median-Models": "With `details`, where the body holds answers alone: the models that answered.",
        "X-Median-Fallback": "With `details`: the number of answers that another model had to give.",
        "X-Median-Batch-Size": "With `details`: rows in the onnxruntime call.",
        "X-Median-Rows": "Rows that were read of a table.",
        "X-Median-Columns": "Columns that were read of a table.",
        "Server-Timing": "With `details`: queue, inference and total in milliseconds.",
    }
)
OF_A_FILTER = [
    _parameter("model", {"type": "string"}, "Name of the filter; without it, the smallest median window there is."),
    _parameter(
        "shape", {"type": "string", "pattern": "^[0-9]{1,9}(,[0-9]{1,9}){1,3}$"}, "Raw bodies: h,w or h,w,channels."
    ),
    _parameter("dtype", {"type": "string", "enum": list(PIXELS)}, "Raw bodies: type of the numbers, little-endian."),
]
FILTER_HEADERS = {
    **{name: ANSWER_HEADERS[name] for name in ("X-Request-ID", "X-Median-Models", "Server-Timing")},
    **_headers(
        {
            "X-Median-Shape": "The sides of the answer, with commas between them.",
            "X-Median-Dtype": "The type of its numbers.",
            "X-Median-Error-Bound": "How far a pixel may be from the order statistic of its window.",
        }
    ),
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Documentation of the errors of an operation."""
    content = {"application/problem+json": {"schema": Problem.model_json_schema()}}
    return {status: {"description": "Problem details", "content": content} for status in statuses}
