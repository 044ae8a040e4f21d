"""The conversion of options to `Spec`s, for the command line and the library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from exporter.constructions import CONSTRUCTIONS, default, lookup, own, refuse_unread, takers
from exporter.errors import UserError, nearest, spelled
from exporter.options import NOT_WITHOUT_GRID, OLD_NAMES, OPTIONS, checked, needs_quantisation, refuse_images
from exporter.passes.int8 import INTEGERS
from exporter.passes.profiles import IMAGE_PROFILES, PROFILES
from exporter.problem import task as tasks
from exporter.problem.grid import shown
from exporter.problem.spec import Spec
from exporter.problem.task import Task

QUESTION = ("op", "rank", "quantile", "method", "even")
# the options that an image filter uses
IMAGES = [o.name for o in OPTIONS.values() if o.group != "research" and o.name not in ("certificate", "optimize_for")]
# the suffix that an option adds to a file name, in this order
SUFFIXES = {
    "border": "{}", "bits": "b{}", "domain": "from{0[0]}to{0[1]}", "epsilon": "eps{}", "inputs": "{}-only", "radix": "T{}",
    "optimize_for": "{}", "failure": "p{}", "objective": "{}",
    "depth": "depth{}", "width": "width{}", "certificate": "certificate", "dtype": "{}",
    "quantized": "scale{0[0]}zero{0[1]}", "profile": "{}", "channels": "c{}",
    "size": "{0[0]}x{0[1]}", "batch": "batch{}", "seed": "seed{}",
}  # fmt: skip


def file_name(spec: Spec) -> str:
    """`median-radix-d2048.onnx` or `median-window5x5.onnx`. Every option that is not at its default adds a suffix."""
    given = spec.given()
    suffixes = [text.format(_suffix(given[name])) for name, text in SUFFIXES.items() if name in given]
    if not spec.construction:
        return "-".join([spec.task.label, spec.images, *suffixes]) + ".onnx"
    law = ["uniform"] * lookup(spec.construction).uniform
    return "-".join([spec.task.label, spec.construction, *law, f"d{spec.task.d}", *suffixes]) + ".onnx"


def _suffix(value: Any) -> Any:
    """The text of a value in a file name. Numbers have all their digits, so that different options have different names."""
    if isinstance(value, tuple):
        return tuple(map(_suffix, value))
    return shown(value) if isinstance(value, float) else value


def checked_all(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, with checked values."""
    given: dict[str, Any] = {}
    for name, value in options.items():
        option = OLD_NAMES.get(name, name)
        if option not in OPTIONS:
            raise UserError(f"unknown option {name!r}{nearest(name, OPTIONS)} (there are {', '.join(OPTIONS)})")
        if value is not None and value is not False:
            if option in given:
                raise UserError(f"{spelled('tune')} is the old name of {spelled(option)}: give one of them")
            given[option] = checked(option, value)
    if not asks_for_images(given):
        refuse_images(given)
    return given


def asks_for_images(given: Mapping[str, Any]) -> bool:
    return "window" in given or "frames" in given


def question(d: int, given: Mapping[str, Any]) -> Task:
    """The task that the options op, rank, quantile, method and even describe."""
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


def image_spec(given: Mapping[str, Any], **vectors: Any) -> Spec:
    """The spec of an image filter. Options that it does not use are rejected, and so are the arguments for `vectors`."""
    if named := [name for name, value in vectors.items() if value is not None]:
        asked = spelled("window" if "window" in given else "frames")
        raise UserError(f"{asked} says what goes in and how it is compared: leave {spelled(named[0])} out")
    if "window" in given and "frames" in given:
        raise UserError(f"{spelled('window')} and {spelled('frames')} ask for different things: give one of them")
    for name in given:
        if name not in IMAGES:
            raise UserError(f"image filters do not use {spelled(name)}, which would change nothing: leave it out")
    if given.get("op") == "sort":
        raise UserError(
            f"{spelled('op', 'sort')} has many answers, and an image filter has one for each pixel: ask for a rank"
        )
    for name in ("rank", "quantile"):
        if len(given.get(name, ())) > 1:
            raise UserError(
                f"an image filter has one answer for each pixel: give one {spelled(name)}, and a file to each"
            )
    for name in ("border", "batch") if "frames" in given else ():
        if name in given:
            raise UserError(
                f"{spelled('frames')} goes pixel by pixel and over the whole batch: leave {spelled(name)} out"
            )
    profile = given.get("profile", "auto")
    if profile not in ("auto", *IMAGE_PROFILES):
        raise UserError(
            f"image filters are written as {', '.join(IMAGE_PROFILES)}, not as {spelled('profile', profile)}"
        )
    if "channels" in given and given.get("layout") != "tflite":
        raise UserError(f"any number of channels goes in: leave {spelled('channels')} out")
    _check_layout(given, profile)
    height, width = given.get("window", (1, given.get("frames")))
    return _spec(question(height * width, given), "", given)


def _check_layout(given: Mapping[str, Any], profile: str) -> None:
    """Refuse options that a TensorFlow Lite file of a filter cannot have."""
    layout, dtype = given.get("layout", "files"), given.get("dtype", "float32")
    lite = spelled("layout", "tflite")
    if layout not in ("files", "tflite"):
        raise UserError(f"image filters are files: leave {spelled('layout')} out, or take {lite}")
    if (layout == "tflite") != ("size" in given):
        raise UserError(
            f"{lite} and {spelled('size')} belong together, because such a file has fixed lengths: give both"
        )
    if layout != "tflite":
        return
    if profile not in ("auto", "minmax") or "frames" in given or given.get("batch", 1) != 1:
        raise UserError(f"{lite} is {spelled('window')} over one image, with {spelled('profile', 'minmax')}")
    if dtype not in ("float32", *INTEGERS):
        raise UserError(f"{lite} is in float32, int8 or uint8, not in {dtype}")
    if dtype in INTEGERS and "quantized" not in given:
        raise UserError(needs_quantisation(dtype))
    if given.get("border") == "valid" and any(a < b for a, b in zip(given["size"], given["window"], strict=True)):
        raise UserError(f"the window does not fit into {spelled('size')}: take a smaller window, or another border")


def _spec(task: Task, construction: str, given: Mapping[str, Any]) -> Spec:
    spec = Spec(task, construction, **{name: value for name, value in given.items() if name not in QUESTION})
    if construction:
        spec.grid  # noqa: B018, a domain or bits that make no grid are rejected here
    return spec


def requests(task: Task, names: Sequence[str] | None, given: Mapping[str, Any]) -> list[Spec]:
    """The specs to build: the named constructions with all options, or every construction with the options that it takes.

    Without names, the constructions that take most of the options come first. An option that none of them takes is rejected.
    A construction for uniform inputs only must be named.
    """
    if names is not None:
        return list(dict.fromkeys(named(task, name, given) for name in names))
    only_compared = "quantized" in given or given.get("layout") == "tflite"
    known = [c for c in CONSTRUCTIONS.values() if not c.uniform and (c.comparators or not only_compared)]
    able = [c for c in known if c.cannot(task.d, task.ranks) is None]
    for option in given:
        if (who := takers(option)) and not any(option in c.takes for c in able):
            reasons = [f"{c.name}: {c.cannot(task.d, task.ranks)}" for c in known if c.name in who]
            raise UserError(f"nothing that can be built here takes {spelled(option)} ({'; '.join(reasons)})")
    ordered = sorted(known, key=lambda c: -len(set(c.takes) & set(given)))
    return [_spec(task, c.name, own(c, given)) for c in ordered]


def named(task: Task, name: str, given: Mapping[str, Any]) -> Spec:
    """The spec of a named construction."""
    refuse_unread(lookup(name), given)
    return _spec(task, name, given)


def preferred(task: Task, construction: str | None, given: Mapping[str, Any]) -> Spec:
    """The spec of the library's functions, which may leave out the construction and the profile.

    Comparators are the first choice, because they are right on every float without a domain. If an option needs a grid, or
    only another construction takes it, the exact construction with a grid is chosen.
    """
    floats = next(p.name for p in PROFILES.values() if p.floats)
    profile, usual = given.get("profile", "auto"), default(task.op)
    names = [construction] if construction is not None else [usual, *CONSTRUCTIONS]
    sorters = [c for c in map(lookup, names) if c.comparators and c.cannot(task.d, task.ranks) is None]
    if profile == floats:
        usual = sorters[0].name if sorters else usual
    elif profile == "auto" and not set(given) & {*NOT_WITHOUT_GRID, "depth", "width"}:
        for c in sorters:
            if own(c, given) == dict(given):
                return named(task, c.name, {**given, "profile": floats})
    return named(task, construction or usual, given)
