"""The exporter as a library. The command line is a thin layer over it, with the same options and messages."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import onnx

from exporter.build import Built, build, to_onnx
from exporter.constructions import CONSTRUCTIONS
from exporter.errors import UserError, spelled
from exporter.formats.manifest import entry_of, write, write_files
from exporter.net import Net
from exporter.options import ExportOptions, NetOptions, checked, spelled_out, whole_number
from exporter.passes.profiles import PROFILES
from exporter.problem.description import Description
from exporter.problem.spec import Spec
from exporter.problem.task import Even, Method, Task
from exporter.specs import QUESTION, asks_for_images, checked_all, file_name, image_spec, named, preferred, question


@dataclass(frozen=True)
class Exported:
    """A written file and its entry in the manifest."""

    path: Path
    entry: dict[str, Any]


def export(spec: Spec, out: Path, on_stage: Callable[[str], None] = lambda stage: None) -> Exported:
    """Build and write one model: an .onnx file with its manifest entry, or the files of another layout."""
    on_stage("building")
    model: Any  # a Built, or an ImageFilter of exporter.frontends.images.build
    proto: Any
    if spec.images:
        from exporter.frontends.images.build import build_filter, filter_to_onnx

        model, proto = build_filter(spec), filter_to_onnx
    else:
        model, proto = build(spec), to_onnx
    on_stage("writing")
    about, path = model.description(), out / file_name(spec)
    match spec.layout:
        case "files":
            return Exported(path, write(proto(model, about), path, about))
        case "tflite":
            path = path.with_suffix(".tflite")
            files = {path: _tflite_image(model, about) if spec.images else _tflite(model, about)}
        case "triton":
            from exporter.formats.triton import repository

            path = out / path.stem / "1" / "model.onnx"
            files = repository(to_onnx(model, about), path, about)
        case "huggingface":
            from exporter.formats.huggingface import folder

            path = out / path.stem / "onnx" / "model.onnx"
            files = folder(_variants(model, about), path, about)
    write_files(files)
    return Exported(path, entry_of(path.relative_to(out).as_posix(), files[path], about))


def _variants(model: Built, about: Description) -> dict[str, onnx.ModelProto]:
    """The model, and also its float16 and int8 forms if it only compares and moves numbers."""
    from exporter.formats.huggingface import in_float16, only_compares

    found = {"model.onnx": to_onnx(model, about)}
    if only_compares(found["model.onnx"]):
        found["model_fp16.onnx"] = in_float16(found["model.onnx"])
        found["model_int8.onnx"] = to_onnx(build(replace(model.spec, dtype="int8", quantized=(1.0, 0.0))))
    return found


def _tflite_image(model: Any, about: Description) -> bytes:
    from exporter.formats.tflite import tflite_bytes

    shape = (1, *model.spec.size, model.spec.channels or 1)
    return tflite_bytes(model.numbers, shape, model.quantised, about, image=True)


def _tflite(model: Built, about: Description) -> bytes:
    from exporter.formats.tflite import tflite_bytes

    if not model.takes_floats or model.dtype != "float32" or model.spec.batch != 1:
        how = f"{spelled('profile', 'minmax')} and {spelled('batch', 1)}"
        raise UserError(f"{spelled('layout', 'tflite')} needs {how}, in float32, int8 or uint8")
    if model.task.may_round:
        raise UserError(
            f"{spelled('layout', 'tflite')} has ranks and the mean of two: take {spelled('method', 'lower')}, higher, "
            "midpoint or nearest"
        )
    graph = PROFILES[model.profile].graph(model.network, model.dtype, model.spec.optimize_for, 1)
    return tflite_bytes(graph, (1, model.task.d), model.quantised, about)


@spelled_out(ExportOptions)
def export_model(
    d: int | None = None,
    construction: str | None = None,
    out: Path | str = "models",
    task: Task | None = None,
    **options: Unpack[ExportOptions],
) -> Path:
    """Build one model, write its file and manifest into the folder `out`, and return the path of the file.

    `export_model(d=25, construction="batcher", out="models", domain=(0, 255), bits=8)` is
    `python -m exporter --d 25 --construction batcher --out models --domain 0 255 --bits 8`, with the same checks
    and bytes. None means that an option is not given. d is 2048 by default. Without `construction` the model is that of
    `median`, `quantile` and the others: comparators without a domain, unless an option needs a grid. A `task`
    (exporter.problem.task) replaces d, op, rank, quantile, method and even. `export_model(window=(5, 5), out="models")` and
    `frames=9` are image filters, without d and construction. `help(exporter.options.ExportOptions)` explains the options.
    """
    if not isinstance(out, str | os.PathLike) or out == "":
        raise UserError(f"{spelled('out')} must be a directory, not {out!r}")
    if not isinstance(task, Task | None):
        raise UserError(f"task must be one of exporter.problem.task, such as median(9), not {task!r}")
    given = checked_all(options)
    if asks_for_images(given):
        return export(image_spec(given, d=d, construction=construction, task=task), Path(out)).path
    if task is None:
        task = question(2048 if d is None else whole_number("d", d), given)
    elif asked := [name for name in QUESTION if name in given]:
        raise UserError(f"the task says what is computed: leave {spelled(asked[0])} out")
    elif d not in (None, task.d):
        raise UserError(f"the task is of {task.d} numbers, not {spelled('d', d)}: leave {spelled('d')} out")
    spec = preferred(task, None, given) if construction is None else named(task, construction, given)
    return export(spec, Path(out)).path


@spelled_out(NetOptions)
def median(d: int, *, construction: str | None = None, even: Even | None = None, **options: Unpack[NetOptions]) -> Net:
    """The median of d numbers, equal to numpy.median on every finite float32 and float64 array.

    For even d, `even="lower"` or "upper" returns one of the middle two numbers instead of their mean. `construction` is one
    of `catalogue()`. Most constructions need the range of the data and answer on a grid: `domain=(lo, hi)` and `bits`.
    `help(exporter.options.NetOptions)` explains the other options.

    >>> median(3)([30.5, -1e9, 7])
    np.float64(7.0)
    >>> median(9, construction="depth3", domain=(0, 255), bits=8)([3, 1, 4, 1, 5, 9, 2, 6, 255])
    np.float32(4.0)
    """
    return _net(d, construction, {"even": even, **options}, op="median")


@spelled_out(NetOptions)
def quantile(
    d: int,
    q: float | Sequence[float],
    *,
    construction: str | None = None,
    method: Method | None = None,
    **options: Unpack[NetOptions],
) -> Net:
    """Quantiles of d numbers, equal to numpy.quantile with the same `q` and `method`, in value and type.

    A list of quantiles adds a last axis of answers. The other parameters are those of `median`.

    >>> quantile(5, 0.3)([10, 20, 30, 40, 50])
    np.float64(22.0)
    >>> quantile(5, [0.25, 0.5])([10, 20, 30, 40, 50])
    array([20., 30.])
    """
    return _net(d, construction, {"method": method, **options}, quantile=q)


@spelled_out(NetOptions)
def rank(d: int, k: int | Sequence[int], *, construction: str | None = None, **options: Unpack[NetOptions]) -> Net:
    """The k-th smallest of d numbers, counted from 1. A list of ranks adds a last axis of answers.

    The other parameters are those of `median`.

    >>> rank(4, 2)([50, 25, 100, -3])
    np.float64(25.0)
    """
    return _net(d, construction, options, rank=k)


@spelled_out(NetOptions)
def maximum(d: int, *, construction: str | None = None, **options: Unpack[NetOptions]) -> Net:
    """The largest of d numbers. The other parameters are those of `median`.

    >>> maximum(3)([50, 75, 25])
    np.float64(75.0)
    """
    return _net(d, construction, options, op="max")


@spelled_out(NetOptions)
def minimum(d: int, *, construction: str | None = None, **options: Unpack[NetOptions]) -> Net:
    """The smallest of d numbers. The other parameters are those of `median`.

    >>> minimum(3)([50, 75, 25])
    np.float64(25.0)
    """
    return _net(d, construction, options, op="min")


@spelled_out(NetOptions)
def sort(d: int, *, construction: str | None = None, **options: Unpack[NetOptions]) -> Net:
    """All d numbers in ascending order. The other parameters are those of `median`.

    >>> sort(3)([50, 75, 25])
    array([25., 50., 75.])
    """
    return _net(d, construction, options, op="sort")


def catalogue() -> dict[str, str]:
    """The names of the constructions, with one line on each.

    >>> sorted(catalogue())[:3]
    ['batcher', 'compact', 'depth3']
    """
    return {name: c.summary for name, c in CONSTRUCTIONS.items()}


# for these methods numpy's answers have the type of the data
DISCRETE = {"lower", "higher", "nearest", "inverted_cdf", "closest_observation"}


def _net(d: int, construction: str | None, options: Mapping[str, Any], **asked: Any) -> Net:
    """The network that answers what is `asked`: an op, rank or quantile."""
    if twice := [name for name in ("op", "rank", "quantile") if options.get(name) is not None]:
        raise UserError(f"the function says what is computed: leave {spelled(twice[0])} out")
    given = checked_all(options) | {name: checked(name, value) for name, value in asked.items()}
    if "layout" in given:
        raise UserError("layout says how an export writes its files: leave it out, or call export_model")
    if "quantized" in given:
        raise UserError("networks in 8-bit integers are files: call export_model with quantized=")
    if asks_for_images(given):
        raise UserError("filters for images are files: export_model(window=(5, 5), out=...) writes one")
    spec = preferred(question(whole_number("d", d), given), construction, given)
    listed = any(np.ndim(value) > 0 for value in asked.values())
    discrete = "quantile" in asked and given.get("method") in DISCRETE
    if spec.profile in PROFILES and PROFILES[spec.profile].floats:
        spec = replace(spec, task=spec.task.as_numpy(float64=listed and not discrete))
    return Net(file_name(spec), model=build(spec), listed=listed, discrete=discrete)
