"""The exporter as a library: the same steps, options and messages as the command line, which is a thin layer over it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import onnx

from exporter.build import NOT_WITHOUT_GRID, Built, build, to_onnx
from exporter.constructions import CONSTRUCTIONS, default, lookup, own, refuse_unread, takers
from exporter.errors import UserError, spelled
from exporter.formats.huggingface import in_float16, only_compares, write_folder
from exporter.formats.manifest import entry_of, replace_file, writable, write
from exporter.formats.speed_table import SHIPPED, SPEED_TABLE, Timed, read_speed_table
from exporter.formats.tflite import tflite_bytes
from exporter.formats.triton import write_repository
from exporter.frontends.images.build import (
    ImageOptions,
    asks_for_images,
    build_filter,
    filter_name,
    filter_to_onnx,
    image_options,
)
from exporter.net import Net
from exporter.options import (
    OPTIONS,
    ExportOptions,
    NetOptions,
    Options,
    checked,
    nearest,
    refuse_images,
    spelled_out,
    whole_number,
)
from exporter.passes.profiles import PROFILES
from exporter.problem import task as tasks
from exporter.problem.grid import Grid, shown
from exporter.problem.task import Even, Method, Task


@dataclass(frozen=True)
class Exported:
    path: Path
    entry: dict[str, Any]
    model: Built


# what a choice adds to the name of a file, in this order
SUFFIXES = {
    "bits": "b{}", "domain": "from{0[0]}to{0[1]}", "epsilon": "eps{}", "inputs": "{}-only", "radix": "T{}",
    "tune": "{}", "failure": "p{}", "schedule": "{}", "objective": "{}", "blocks": "{}", "gamma": "gamma{}",
    "depth": "depth{}", "width": "width{}", "certificate": "certificate", "dtype": "{}",
    "quantized": "scale{0[0]}zero{0[1]}", "profile": "{}", "batch": "batch{}", "seed": "seed{}",
}  # fmt: skip


def _suffix(value: Any) -> Any:
    """Numbers with all their digits, so that no two choices share a name."""
    if isinstance(value, tuple):
        return tuple(map(_suffix, value))
    return shown(value) if isinstance(value, float) else value


def file_name(task: Task, options: Options) -> str:
    """`median-radix-d2048.onnx` for the defaults; every other choice adds a readable suffix."""
    given = options.given()
    suffixes = [text.format(_suffix(given[name])) for name, text in SUFFIXES.items() if name in given]
    law = ["uniform"] * lookup(options.construction).uniform
    return "-".join([task.label, options.construction, *law, f"d{task.d}", *suffixes]) + ".onnx"


def export(task: Task, options: Options, out: Path, on_stage: Callable[[str], None] = lambda stage: None) -> Exported:
    """Build, lower and write one model and its manifest entry."""
    on_stage("building")
    model = build(task, options)
    on_stage("writing")
    path = out / file_name(task, options)
    if options.layout == "tflite":
        path, entry = write_tflite(model, path.with_suffix(".tflite"))
    elif options.layout == "triton":
        path, entry = write_repository(to_onnx(model), out, path.stem, model.description())
    elif options.layout == "huggingface":
        path, entry = write_folder(_variants(model), out, path.stem, model.description())
    else:
        entry = write(to_onnx(model), path, model.description())
    return Exported(path, entry, model)


def _variants(model: Built) -> dict[str, onnx.ModelProto]:
    """The model, and its forms in float16 and int8 if it only compares and moves numbers."""
    found = {"model.onnx": to_onnx(model)}
    if only_compares(found["model.onnx"]):
        found["model_fp16.onnx"] = in_float16(found["model.onnx"])
        found["model_int8.onnx"] = to_onnx(
            build(model.task, replace(model.options, dtype="int8", quantized=(1.0, 0.0)))
        )
    return found


def write_tflite(model: Built, path: Path) -> tuple[Path, dict[str, Any]]:
    """Write a TensorFlow Lite file; returns its path and an entry about it. The file itself holds its description."""
    if not model.takes_floats or model.dtype != "float32" or model.options.batch != 1:
        how = f"{spelled('profile', 'minmax')} and {spelled('batch', 1)}"
        raise UserError(f"{spelled('layout', 'tflite')} needs {how}, in float32, int8 or uint8")
    graph = PROFILES[model.profile].graph(model.network, model.dtype, model.options.tune, 1)
    data = tflite_bytes(graph, model.task.d, model.quantised, model.description())
    with writable(path.parent):
        replace_file(path, data)
    return path, entry_of(path.name, data, model.description())


def export_filter(
    task: Task, options: ImageOptions, out: Path, on_stage: Callable[[str], None] = lambda stage: None
) -> tuple[Path, dict[str, Any]]:
    """The same for images: the path and the manifest's entry."""
    on_stage("building")
    model = build_filter(task, options)
    on_stage("writing")
    path = out / filter_name(task, options)
    return path, write(filter_to_onnx(model), path, model.description())


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
        if named := [n for n, v in (("d", d), ("construction", construction), ("task", task)) if v is not None]:
            raise UserError(no_vector(given, named[0]))
        return export_filter(*filter_question(given), Path(out))[0]
    if task is None:
        task = question(2048 if d is None else whole_number("d", d), given)
    elif asked := [name for name in ("op", "rank", "quantile", "method", "even") if name in given]:
        raise UserError(f"the task says what is computed: leave {spelled(asked[0])} out")
    elif d not in (None, task.d):
        raise UserError(f"the task is of {task.d} numbers, not {spelled('d', d)}: leave {spelled('d')} out")
    if construction is None:
        construction, given = _chosen(task, None, given)
    (wanted,) = requests(task, [construction], given, Path(out))
    return export(task, wanted, Path(out)).path


def checked_all(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, with good values."""
    for name in options:
        if name not in OPTIONS:
            raise UserError(f"unknown option {name!r}{nearest(name, OPTIONS)} (there are {', '.join(OPTIONS)})")
    given = {name: checked(name, value) for name, value in options.items() if value is not None and value is not False}
    if not asks_for_images(given):
        refuse_images(given)
    return given


def filter_question(given: Mapping[str, Any]) -> tuple[Task, ImageOptions]:
    """What is computed of every window or of all frames, and how."""
    options = image_options(given)
    return question(options.d, given), options


def no_vector(given: Mapping[str, Any], name: str) -> str:
    """Why an option of vectors is none of images."""
    asked = spelled("window" if "window" in given else "frames")
    return f"{asked} says what goes in and how it is compared: leave {spelled(name)} out"


def question(d: int, given: Mapping[str, Any]) -> Task:
    """What is computed, from the options op, rank, quantile, method and even."""
    kinds = [name for name in ("op", "rank", "quantile") if name in given]
    if len(kinds) > 1:
        raise UserError(f"{spelled(kinds[0])} and {spelled(kinds[1])} ask for different things: give one of them")
    if "method" in given and "quantile" not in given:
        raise UserError(f"{spelled('method')} says how a quantile is computed: it needs {spelled('quantile')}")
    op = given.get("op", "median")
    if "even" in given and (kinds not in ([], ["op"]) or op != "median"):
        asked = spelled("op", op) if kinds == ["op"] else spelled(kinds[0])
        raise UserError(
            f"{spelled('even')} says which median of an even number is meant: it changes nothing with {asked}"
        )
    if "rank" in given:
        return tasks.rank(d, given["rank"])
    if "quantile" in given:
        return tasks.quantile(d, given["quantile"], given.get("method", "linear"))
    if op in ("max", "min"):
        return tasks.extremum(d, op)
    if op == "sort":
        return tasks.sort(d)
    task = tasks.median(d, given.get("even", "mean"))
    if "even" in given and d % 2:
        raise UserError(f"{spelled('even')} says which median of an even number is meant: {d} is odd, so leave it out")
    return task


def requests(
    task: Task, names: Sequence[str] | None, given: Mapping[str, Any], out: Path | None = None
) -> list[Options]:
    """What to build: the named constructions, each with all that was given, or every one with what it takes of it.

    Without names, those that take most of the options come first, and an option that nothing built can take is refused;
    what is for uniform inputs only must be named. `fastest` goes by the table of speeds in `out`, if there is one.
    """
    if names is not None:
        return list(dict.fromkeys(_named(task, name, given, out) for name in names))
    only_compared = "quantized" in given or given.get("layout") == "tflite"
    known = [c for c in CONSTRUCTIONS.values() if not c.uniform and (c.comparators or not only_compared)]
    able = [c for c in known if c.cannot(task.d, task.ranks) is None]
    for option in given:
        if (who := takers(option)) and not any(option in c.takes for c in able):
            reasons = [f"{c.name}: {c.cannot(task.d, task.ranks)}" for c in known if c.name in who]
            raise UserError(f"nothing that can be built here takes {spelled(option)} ({'; '.join(reasons)})")
    ordered = sorted(known, key=lambda c: -len(set(c.takes) & set(given)))
    return [_options(c.name, own(c, given)) for c in ordered]


def _named(task: Task, name: str, given: Mapping[str, Any], out: Path | None) -> Options:
    if name == "fastest":
        name, given = _fastest(task, given, out)
    construction = lookup(name)
    refuse_unread(construction, given)
    return _options(name, given)


def _fastest(task: Task, given: Mapping[str, Any], out: Path | None) -> tuple[str, dict[str, Any]]:
    """The exact construction that a table of speeds has at the top, and the options with its profile and layout.

    The table is of medians; another statistic is taken from it as well, where that can be built. tune="latency" asks for a
    batch of 1, else it is `batch` or 64.
    """
    tune = given.get("tune", "throughput")
    if tune not in ("throughput", "latency"):
        raise UserError(f"fastest is meant for {spelled('tune', 'throughput')} or latency, not {tune}")
    profile = given.get("profile", "auto")
    floats = not (task.may_round or set(given) & set(NOT_WITHOUT_GRID))  # a profile without a grid is as right

    def fits(each: Timed) -> bool:
        known = each.construction in CONSTRUCTIONS and each.profile in PROFILES
        written = known and (
            each.profile == profile if profile != "auto" else floats or not PROFILES[each.profile].floats
        )
        return written and CONSTRUCTIONS[each.construction].cannot(task.d, task.ranks) is None

    mine = out / SPEED_TABLE if out is not None else SHIPPED
    table = read_speed_table(mine if mine.exists() else SHIPPED)
    ranking = table.ranking(task.d, given.get("batch", 1 if tune == "latency" else 64))
    best = next(filter(fits, ranking), None)
    given = {option: value for option, value in given.items() if option != "tune"}  # it has said what is meant
    if best is None:  # a profile that was not measured
        return default(task.op), given
    tuned = {"tune": best.tune} if best.tune != Options.tune else {}
    return best.construction, {**given, **tuned, "profile": best.profile}


def _options(name: str, given: Mapping[str, Any]) -> Options:
    lo, hi = given.get("domain", (0.0, 1.0))
    grid = Grid(lo, hi, given.get("bits", Grid.bits))
    return Options(name, grid=grid, **{f.name: given[f.name] for f in fields(Options) if f.name in given})


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
    """What can be built: names, and what each is.

    >>> sorted(catalogue())[:3]
    ['batcher', 'compact', 'depth3']
    """
    return {name: c.summary for name, c in CONSTRUCTIONS.items()}


DISCRETE = {"lower", "higher", "nearest", "inverted_cdf", "closest_observation"}  # numpy keeps the type of the data


def _chosen(task: Task, construction: str | None, given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The construction, and the options with the profile, where one or both were left out.

    Comparators are the first choice: right on every float, with no domain. An option that needs a grid, or that only another
    construction takes, chooses the exact construction with a grid.
    """
    if construction is not None and construction not in CONSTRUCTIONS:  # fastest, or a name that is refused later
        return construction, dict(given)
    floats = next(p.name for p in PROFILES.values() if p.floats)
    profile, usual = given.get("profile", "auto"), default(task.op)
    names = [construction] if construction is not None else [usual, *CONSTRUCTIONS]
    sorters = [c for c in map(lookup, names) if c.comparators and c.cannot(task.d, task.ranks) is None]
    if profile == floats:
        return construction or (sorters[0].name if sorters else usual), dict(given)
    if profile == "auto" and not set(given) & {*NOT_WITHOUT_GRID, "depth", "width"}:
        for c in sorters:
            if own(c, given) == dict(given):
                return c.name, {**given, "profile": floats}
    return construction or usual, dict(given)


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
    task = question(whole_number("d", d), given)
    name, given = _chosen(task, construction, given)
    (wanted,) = requests(task, [name], given)
    listed = any(np.ndim(value) > 0 for value in asked.values())
    discrete = "quantile" in asked and given.get("method") in DISCRETE
    if wanted.profile in PROFILES and PROFILES[wanted.profile].floats:
        task = task.as_numpy(wide=listed and not discrete)
    return Net(file_name(task, wanted), model=build(task, wanted), listed=listed, discrete=discrete)
