"""The table of options, and the check of each value.

The command line and the library read this table and build a `Spec` from the values. The catalogue
(`exporter.constructions`) says which construction takes which option. `exporter.errors.spelled` writes an option in a
message as the reader would.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import KW_ONLY, dataclass, fields, replace
from math import isfinite
from numbers import Integral, Real
from typing import Annotated, Any, Literal, TypedDict, TypeVar, get_args, get_origin, get_type_hints

from exporter.errors import UserError, nearest, spelled
from exporter.passes.profiles import IMAGE_PROFILES, PROFILES
from exporter.problem.spec import Border, DType, Inputs, Layout, Objective, OptimizeFor, Spec
from exporter.problem.task import Even, Method, Op

OLD_NAMES = {"tune": "optimize_for"}  # still accepted
DEFAULTS = {"op": "median", "method": "linear", "even": "mean"} | {f.name: f.default for f in fields(Spec)}
LARGEST_WINDOW = 441  # pixels, or frames: 21 x 21 pixels are about 4000 minima and maxima


Kind = Literal["words", "switch", "whole", "number", "pair", "size"]


@dataclass(frozen=True)
class Option:
    """One option: its group, its help, its default in words (empty: as in `Spec`), and the rule for its values.

    The type annotation decides the kind, and `many`: whether one value or a list of values is given. A value of the right
    type must satisfy `holds`; `rule` states this in words. Rules that involve several options are checked elsewhere.
    """

    group: Literal["what", "image", "data", "file", "research"]
    help: str
    default: str = ""
    metavar: str = ""
    _: KW_ONLY
    rule: str = ""
    holds: Callable[[Any], bool] = lambda value: True
    choices: tuple[str, ...] = ()
    name: str = ""
    kind: Kind = "number"
    many: bool = False

    def of(self, name: str, hint: Any) -> Option:
        """The option with its name and with the kind that its type annotation (`... | None`) implies."""
        kinds = set(get_args(hint)) - {type(None)}
        words = next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), self.choices)
        listed = any(get_origin(kind) is Sequence for kind in kinds)
        found: dict[Kind, Any] = {
            "words": words,
            "switch": bool in kinds,
            "size": listed and str in kinds,
            "pair": listed and len(kinds) == 1,
            "whole": int in kinds,
        }
        kind: Kind = next((kind for kind, holds in found.items() if holds), "number")
        default = self.default or str(DEFAULTS[name])
        return replace(
            self, name=name, default=default, choices=words, kind=kind, many=listed and kind in ("whole", "number")
        )


# fmt: off
class NetOptions(TypedDict, total=False):
    """Keyword parameters of every function that builds a network. None means that the option is not given."""

    certificate: Annotated[bool | None, Option(
        "what", "add two outputs per rank: the counts of x < m and of x <= m, which prove or refute the answer m",
        "off",
    )]
    domain: Annotated[Sequence[float] | None, Option("data", "the range of your data", "0 1; images: 0 255", "LO HI")]
    bits: Annotated[int | None, Option("data", "a grid of 2^B steps on it", "24; float16: 8", "B")]
    inputs: Annotated[Inputs | None, Option(
        "data",
        "any: the first layers round data to the grid and clamp it to the domain; grid: the bare network of the "
        "construction, right on the grid only", "any",
    )]
    dtype: Annotated[str | None, Option(
        "data", "the type of the numbers, in and out; auto: the smallest that is exact at these bits", metavar="TYPE",
        choices=get_args(DType),
    )]
    profile: Annotated[str | None, Option(
        "file", "the operators of the file, listed below", metavar="OPERATORS",
        choices=("auto", *{**PROFILES, **IMAGE_PROFILES}),
    )]
    optimize_for: Annotated[OptimizeFor | None, Option(
        "file", "for large batches, for single vectors, for few layers, or for few neurons in a layer",
    )]
    batch: Annotated[int | None, Option(
        "file", "exactly N vectors or images in a run; with 1 a fused file has fewer nodes", "any number", "N",
        rule="must be from 1 to 2147483647", holds=lambda v: 1 <= v < 2**31,
    )]
    epsilon: Annotated[float | None, Option(
        "research", "no grid, but slopes 12 d^4/E as in the theorem: mean squared error at most E on uniform inputs",
        "a grid", "E", rule="must be above 0 and at most 1", holds=lambda v: 0 < v <= 1,
    )]
    radix: Annotated[int | None, Option(
        "research", "bins per digit, a power of two; more bins: less depth, more width", "by --optimize-for", "T",
        rule="must be a power of two from 2 to 256", holds=lambda v: v in (2, 4, 8, 16, 32, 64, 128, 256),
    )]
    seed: Annotated[int | None, Option(
        "research", "the seed of all random choices", metavar="S", rule="must be 0 or more", holds=lambda v: v >= 0,
    )]
    failure: Annotated[float | None, Option(
        "research", "the probability of a wrong answer, at most, which the planner must prove", metavar="P",
        rule="must be a probability above 0 and below 1, such as 1e-3", holds=lambda v: 0 < v < 1,
    )]
    objective: Annotated[Objective | None, Option(
        "research",
        "what is kept small; weights: no index offsets, which tell equal entries apart by slopes d times as large",
    )]
    depth: Annotated[int | None, Option(
        "research", "the depth of the network, in layers", "as the planner chooses", "H", rule="must be 1 or more",
        holds=lambda v: v >= 1,
    )]
    width: Annotated[int | None, Option(
        "research", "neurons in a layer, at most", "as the planner chooses", "W", rule="must be 1 or more",
        holds=lambda v: v >= 1,
    )]


class ExportOptions(NetOptions, total=False):
    """Keyword parameters of `export_model`: the options of the command line. None means that the option is not given."""

    op: Annotated[Op | None, Option("what", "what is computed", metavar="STATISTIC")]
    rank: Annotated[int | Sequence[int] | None, Option("what", "the K-th smallest; repeatable", "the median", "K")]
    quantile: Annotated[float | Sequence[float] | None, Option(
        "what", "quantile, from 0 to 1; repeatable", "the median", "Q",
    )]
    method: Annotated[Method | None, Option(
        "what", "how a quantile between two ranks is computed, by numpy's names",
    )]
    even: Annotated[Even | None, Option(
        "what", "the median of an even number of values: the mean of the middle two, as in numpy, or one of them",
    )]
    window: Annotated[str | Sequence[int] | None, Option(
        "image", "windows of H x W pixels, at most 441", "none", "HxW", rule="must have from 2 to 441 pixels",
        holds=lambda v: 2 <= v[0] * v[1] <= LARGEST_WINDOW,
    )]
    frames: Annotated[int | None, Option(
        "image", "N images, pixel by pixel, at most 441", "none", "N", rule="must be from 2 to 441",
        holds=lambda v: 2 <= v <= LARGEST_WINDOW,
    )]
    border: Annotated[str | None, Option(
        "image",
        "pixels beyond the image, as in scipy.ndimage: its edge, the image reflected (c b a | a b c), or zeros; "
        "valid: none, and the output is smaller", metavar="RULE", choices=get_args(Border),
    )]
    size: Annotated[str | Sequence[int] | None, Option(
        "image", "images of H x W pixels, for layout tflite, where every length is fixed", "any size", "HxW",
        rule="must have at least one pixel", holds=lambda v: min(v) >= 1,
    )]
    channels: Annotated[int | None, Option(
        "image", "how many channels the images have, for layout tflite", "1", "C",
        rule="must be from 1 to 4096", holds=lambda v: 1 <= v <= 4096,
    )]
    quantized: Annotated[Sequence[float] | None, Option(
        "data", "int8 or uint8 numbers q stand for (q - ZERO_POINT) * SCALE, and every node works on them (QDQ)",
        "none", "SCALE ZERO_POINT",
    )]
    layout: Annotated[Layout | None, Option(
        "file",
        "files: NAME.onnx and manifest.json, as python -m service reads them; triton: a model repository of Triton, "
        "NAME/1/model.onnx and NAME/config.pbtxt with dynamic batching; tflite: NAME.tflite for "
        "LiteRT and compilers of NPUs, with profile minmax, and batch 1 or the size of the images; huggingface: a "
        "folder for a model hub, NAME/onnx/model.onnx with float16 and int8 forms where they are exact, a model card "
        "and config.json",
    )]
# fmt: on


HINTS = {name: get_args(hint) for name, hint in get_type_hints(ExportOptions, include_extras=True).items()}


def _options() -> dict[str, Option]:
    """The options by name. The options that choose the statistic come first."""
    options = [option.of(name, hint) for name, (hint, option) in HINTS.items()]
    groups = ("what", "image", "data", "file", "research")
    return {o.name: o for o in sorted(options, key=lambda o: (groups.index(o.group), o.name == "certificate"))}


OPTIONS = _options()
for _table in (NetOptions, ExportOptions):
    _table.__doc__ = "\n\n".join([_table.__doc__ or "", *(f"{n}: {OPTIONS[n].help}" for n in _table.__annotations__)])


def needs_quantisation(dtype: str) -> str:
    """The message that 8-bit integers need a scale and a zero point."""
    return (
        f"{spelled('dtype', dtype)} needs {spelled('quantized')}, two numbers SCALE and ZERO_POINT: an integer q stands for "
        "(q - ZERO_POINT) * SCALE (1 and 0: for itself)"
    )


# the reason why a profile that only compares numbers does not use an option
NOT_WITHOUT_GRID = {
    "bits": "there is no grid",
    "domain": "data of any range goes in and comes out as it is",
    "inputs": "there is no grid",
    "epsilon": "there are no slopes",
    "certificate": "counting entries below a value needs a grid",
}


def refuse_images(given: Mapping[str, Any]) -> None:
    """Refuse options and types that only image filters have. `given` has neither a window nor frames."""
    found = [spelled(name) for name in given if OPTIONS[name].group == "image"]
    if given.get("dtype") == "float16":
        found.append(spelled("dtype", "float16"))
    if given.get("dtype") in ("int8", "uint8") and given.get("quantized") is None:
        raise UserError(
            f"{needs_quantisation(given['dtype'])}; a filter for 8-bit images needs {spelled('window')} or "
            f"{spelled('frames')}"
        )
    if given.get("profile", "auto") not in ("auto", *PROFILES):
        found.append(spelled("profile", given["profile"]))
    if found:
        raise UserError(f"{found[0]} is only for image filters: it needs {spelled('window')} or {spelled('frames')}")


def checked(name: str, value: Any) -> Any:
    """The value of an option in the exporter's own type, or UserError with the rule that the value breaks."""
    option = OPTIONS[name]
    if not option.many:
        return _one(option, value)
    values = [value] if isinstance(value, str | Real) else _listed(value)
    if not values:
        raise UserError(f"{spelled(name)} needs at least one value")
    return [_one(option, v) for v in values]


def whole_number(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UserError(f"{spelled(name)} must be a whole number, not {_shown(value)}")
    return int(value)


def _one(option: Option, value: Any) -> Any:
    name = option.name
    match option.kind:
        case "words":
            if isinstance(value, str) and value in option.choices:
                return value
            near = nearest(value, option.choices)
            raise UserError(f"{spelled(name)} must be one of {', '.join(option.choices)}, not {_shown(value)}{near}")
        case "switch":
            if isinstance(value, bool):
                return value
            raise UserError(f"{spelled(name)} is a switch: True or False, not {_shown(value)}")
        case "pair":
            ends = _listed(value)
            if len(ends) != 2:
                raise UserError(f"{spelled(name)} takes two numbers {option.metavar}, not {_shown(value)}")
            return tuple(_number(name, end) for end in ends)
        case "size":
            sides = re.fullmatch(r"(\d{1,4})x(\d{1,4})", value) if isinstance(value, str) else None
            pair = [int(side) for side in sides.groups()] if sides else _listed(value)
            if len(pair) != 2:
                raise UserError(f"{spelled(name)} must be two sizes {option.metavar}, such as 5x5, not {_shown(value)}")
            size = tuple(whole_number(name, side) for side in pair)
            if min(size) < 1 or not option.holds(size):
                raise UserError(f"{spelled(name)} {option.rule}, not {size[0]}x{size[1]}")
            return size
    number = whole_number(name, value) if option.kind == "whole" else _number(name, value)
    if option.rule and not (isfinite(number) and option.holds(number)):
        raise UserError(f"{spelled(name)} {option.rule}, not {_shown(value)}")
    return number


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise UserError(f"{spelled(name)} must be a number, not {_shown(value)}")
    try:
        return float(value)
    except OverflowError:
        raise UserError(f"{spelled(name)} is beyond the range of float64") from None


def _listed(value: Any) -> list[Any]:
    """The entries of a list, tuple or array. A single value becomes a list of one."""
    if isinstance(value, str | Mapping | Set):  # a set has no order
        return [value]
    try:
        return list(value)
    except TypeError:
        return [value]


def _shown(value: Any) -> str:
    text = str(value) if isinstance(value, Real) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


_F = TypeVar("_F", bound=Callable[..., Any])


def spelled_out(options: type) -> Callable[[_F], _F]:
    """Give a function with `**options` a signature that names every option, for help() and completion."""

    def named(function: _F) -> _F:
        signature = inspect.signature(function)
        *own, _ = signature.parameters.values()
        kind = inspect.Parameter.KEYWORD_ONLY
        more = [
            inspect.Parameter(name, kind, default=None, annotation=HINTS[name][0]) for name in options.__annotations__
        ]
        function.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return function

    return named
