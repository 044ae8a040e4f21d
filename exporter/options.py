"""The options of an export: what each means, which values it takes, and all of them together.

The command line and the library read this one table; what a user chose is one `Options`, of which a planner sees a `Goal`.
Which construction takes which of them stands in the catalogue (`exporter.constructions`). Messages name options as the
command line does, and `in_python` spells them for the library.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import KW_ONLY, dataclass
from difflib import get_close_matches
from fractions import Fraction
from math import isfinite
from numbers import Integral, Real
from typing import Any, Literal, get_args

from exporter.errors import UserError
from exporter.files.profiles import IMAGE_PROFILES, PROFILES
from exporter.planning.goal import Blocks, Goal, Numbers, Objective
from exporter.question.grid import Grid
from exporter.question.task import OPS, Even, Method

Inputs = Literal["any", "grid"]  # whether data is rounded to the grid and clamped first, or must be there already
Tune = Literal["throughput", "latency", "depth", "width"]
Layout = Literal["files", "triton"]
Border = Literal["edge", "reflect", "zero", "valid"]
VECTOR_TYPES = ("auto", "float32", "float64")
LARGEST_WINDOW = 441  # pixels, or frames: 21 x 21 pixels are about 4000 minima and maxima


@dataclass(frozen=True)
class Option:
    """One option. `choices` are its words; without, it is a number (`whole` or not), two (`pair`), HxW (`size`) or a flag.

    `rule` and `holds` are what must be true of a value of its type; what depends on other options is checked where it is
    used. `many`: it can be given several times.
    """

    name: str
    group: Literal["what", "image", "data", "file", "plan"]
    help: str
    metavar: str = ""
    _: KW_ONLY
    choices: tuple[str, ...] = ()
    whole: bool = False
    flag: bool = False
    pair: bool = False
    size: bool = False
    many: bool = False
    rule: str = ""
    holds: Callable[[Any], bool] = lambda value: True


_ONE_OR_MORE: dict[str, Any] = {"whole": True, "rule": "must be 1 or more", "holds": lambda v: v >= 1}

OPTIONS: dict[str, Option] = {
    o.name: o
    for o in (
        Option("op", "what", "default: median", choices=OPS),
        Option("rank", "what", "the K-th smallest, repeatable", "K", whole=True, many=True),
        Option("quantile", "what", "the quantile Q in [0, 1], repeatable", "Q", many=True),
        Option(
            "method", "what", "how a --quantile between two ranks is meant, by numpy's names (default: linear)",
            choices=get_args(Method),
        ),
        Option(
            "even", "what",
            "the median of an even number of values: mean of the middle two as in numpy (default), or one of them",
            choices=get_args(Even),
        ),
        Option(
            "certificate", "what",
            "two more outputs per rank: the counts of x < m and of x <= m, which prove or refute the answer", flag=True,
        ),
        Option(
            "window", "image",
            "a filter for images [n, c, h, w] of any size, in place of --d: the statistic of every window of H x W pixels",
            "HxW", size=True, rule="must have from 2 to 441 pixels", holds=lambda v: 2 <= v[0] * v[1] <= LARGEST_WINDOW,
        ),
        Option(
            "border", "image",
            "what windows see beyond the image, as scipy.ndimage means it: its edge (default), the image reflected (c b a | "
            "a b c), zeros; valid: the output is smaller", choices=get_args(Border),
        ),
        Option(
            "frames", "image", "the statistic of N images [N, c, h, w], pixel by pixel: [1, c, h, w], in place of --d", "N",
            whole=True, rule="must be from 2 to 441", holds=lambda v: 2 <= v <= LARGEST_WINDOW,
        ),
        Option(
            "channels", "image", "how many channels c a filter of --profile conv has, which must know (default: 3)", "C",
            whole=True, rule="must be from 1 to 4096", holds=lambda v: 1 <= v <= 4096,
        ),
        Option(
            "bits", "data",
            "values are told apart on a grid of 2^B steps (default: 24; of images in float16: 8)", "B", whole=True,
        ),
        Option(
            "domain", "data",
            "the range of the data (default: 0 1, of images: 0 255); it goes in and comes out as it is", pair=True,
        ),
        Option(
            "inputs", "data",
            "any: the first layers round data to the grid and clamp it to the domain (default); grid: the bare network of "
            "the construction, right on the grid only",
            choices=get_args(Inputs),
        ),
        Option(
            "epsilon", "data",
            "as in its theorem, with slopes 12 d^4/E in place of a grid: mean squared error at most E on uniform inputs",
            "E", rule="must be above 0 and at most 1", holds=lambda v: 0 < v <= 1,
        ),
        Option(
            "dtype", "file",
            "auto: the smallest that is exact at these bits (default); of images also float16 and uint8, in and out",
            choices=(*VECTOR_TYPES, "float16", "uint8"),
        ),
        Option(
            "profile", "file",
            "; ".join(f"{p.name}: {p.operators}, for {p.purpose}" for p in {**PROFILES, **IMAGE_PROFILES}.values())
            + "; auto: dense where it is small and as exact, else structured (default); of images minmax",
            choices=("auto", *{**PROFILES, **IMAGE_PROFILES}),
        ),
        Option(
            "tune", "file", "for large batches (default), single vectors, few layers or few neurons a layer",
            choices=get_args(Tune),
        ),
        Option(
            "radix", "file", "bins per digit, a power of two; more bins: less depth, more width", "T", whole=True,
            rule="must be a power of two from 2 to 256", holds=lambda v: v in (2, 4, 8, 16, 32, 64, 128, 256),
        ),
        Option(
            "batch", "file", "exactly N vectors in a run (default: any number); for 1 a fused file has fewer nodes", "N",
            whole=True, rule="must be from 1 to 2147483647", holds=lambda v: 1 <= v < 2**31,
        ),
        Option(
            "layout", "file",
            "files: NAME.onnx beside manifest.json, as python -m service reads it (default); triton: a model repository of "
            "Triton, NAME/1/model.onnx and NAME/config.pbtxt with dynamic batching",
            choices=get_args(Layout),
        ),
        Option(
            "seed", "file", "of whatever is drawn at random (default: 0)", "S", whole=True,
            rule="must be 0 or more", holds=lambda v: v >= 0,
        ),
        Option(
            "failure", "plan", "the failure probability that the planner must prove (default: 1e-3)", "P",
            rule="must be a probability above 0 and below 1, such as 1e-3", holds=lambda v: 0 < v < 1,
        ),
        Option(
            "schedule", "plan", "the planner's numbers (default) or the paper's exponents where they fit",
            choices=get_args(Numbers),
        ),
        Option(
            "objective", "plan",
            "what the planner keeps small (default: width); weights: no index offsets, which tell equal entries apart by "
            "slopes d times as large",
            choices=(*get_args(Objective), "weights"),
        ),
        Option("blocks", "plan", "the paper's own building blocks or lean ones", choices=get_args(Blocks)),
        Option(
            "gamma", "plan", "the paper's blocks and window d^(1/3 + G); --schedule paper has G = 0.1", "G",
            rule="must be 0 or more and below 1/3 (a window of d^(2/3) is the whole block)", holds=lambda v: 0 <= v < 1 / 3,
        ),
        Option("depth", "plan", "the depth of the network", "H", **_ONE_OR_MORE),
        Option("width", "plan", "neurons a layer at most", "W", **_ONE_OR_MORE),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """All that a user may choose beside the question, by the names of the table; the defaults are the exporter's."""

    construction: str
    _: KW_ONLY
    grid: Grid = Grid()  # noqa: RUF009, it does not change
    inputs: Inputs = "any"
    epsilon: float | None = None
    certificate: bool = False
    dtype: Literal["auto", "float32", "float64"] = "auto"
    profile: str = "auto"
    tune: Tune = "throughput"
    radix: int | None = None
    batch: int | None = None
    layout: Layout = "files"
    seed: int = 0
    failure: float = Goal.failure
    schedule: Numbers = Goal.schedule
    objective: Objective | Literal["weights"] = Goal.objective
    blocks: Blocks | None = None
    gamma: float | None = None
    depth: int | None = None
    width: int | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name in OPTIONS and value is not None:
                checked(name, value)
        refuse_images(vars(self))

    def given(self) -> dict[str, Any]:
        """The options that are not what they are by default."""
        mine, usual = (
            {**vars(o), "bits": o.grid.bits, "domain": (o.grid.lo, o.grid.hi)}
            for o in (self, Options(self.construction))
        )
        return {name: value for name, value in mine.items() if name in OPTIONS and value != usual[name]}

    def delta(self, d: int) -> Fraction:
        """The least distance of entries that are told apart, in [0, 1]: a step of the grid, or the theorem's ε/(12 d^4)."""
        return Fraction(1, 2**self.grid.bits) if self.epsilon is None else 1 / Fraction(12 * d**4 / self.epsilon)

    def goal(self, d: int, low: int, high: int, failure: float) -> Goal:
        """What a planner is asked for."""
        return Goal(
            d=d, low=low, high=high, failure=failure, schedule=self.schedule,
            objective="width" if self.objective == "weights" else self.objective,
            blocks=self.blocks, gamma=self.gamma, depth=self.depth, width=self.width, construction=self.construction,
        )  # fmt: skip


def refuse_images(given: Mapping[str, Any]) -> None:
    """Refuse what only image filters have; `given` says nothing of a window or frames."""
    found = [f"--{name}" for name in given if name in OPTIONS and OPTIONS[name].group == "image"]
    if given.get("dtype", "auto") not in VECTOR_TYPES:
        found.append(f"--dtype {given['dtype']}")
    if given.get("profile", "auto") not in ("auto", *PROFILES):
        found.append(f"--profile {given['profile']}")
    if found:
        raise UserError(f"{found[0]} is of image filters: it needs a --window or --frames")


def checked(name: str, value: Any) -> Any:
    """The value of an option as the exporter uses it, or UserError with the rule that it breaks."""
    option = OPTIONS[name]
    if not option.many:
        return _one(option, value)
    values = [value] if isinstance(value, str | Real) else _listed(value)
    if not values:
        raise UserError(f"--{name} needs at least one value")
    return [_one(option, v) for v in values]


def whole_number(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UserError(f"--{name} must be a whole number, not {_shown(value)}")
    return int(value)


def _one(option: Option, value: Any) -> Any:
    name = option.name
    if option.choices:
        if not (isinstance(value, str) and value in option.choices):
            near = nearest(value, option.choices)
            raise UserError(f"--{name} must be one of {', '.join(option.choices)}, not {_shown(value)}{near}")
        return value
    if option.flag:
        if not isinstance(value, bool):
            raise UserError(f"--{name} is a switch: True or False, not {_shown(value)}")
        return value
    if option.pair:
        ends = _listed(value)
        if len(ends) != 2:
            raise UserError(f"--{name} takes two numbers LO HI, not {_shown(value)}")
        return tuple(_number(name, end) for end in ends)
    if option.size:
        sides = re.fullmatch(r"(\d{1,4})x(\d{1,4})", value) if isinstance(value, str) else None
        pair = [int(side) for side in sides.groups()] if sides else [] if isinstance(value, str) else _listed(value)
        if len(pair) != 2:
            raise UserError(f"--{name} must be two sizes {option.metavar}, such as 5x5, not {_shown(value)}")
        size = tuple(whole_number(name, side) for side in pair)
        if min(size) < 1 or not option.holds(size):
            raise UserError(f"--{name} {option.rule}, not {size[0]}x{size[1]}")
        return size
    number = whole_number(name, value) if option.whole else _number(name, value)
    if option.rule and not (isfinite(number) and option.holds(number)):
        raise UserError(f"--{name} {option.rule}, not {_shown(value)}")
    return number


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise UserError(f"--{name} must be a number, not {_shown(value)}")
    try:
        return float(value)
    except OverflowError:
        raise UserError(f"--{name} is beyond the range of float64") from None


def _listed(value: Any) -> list[Any]:
    """The entries of a list, tuple or array; a single thing is a list of one."""
    if isinstance(value, str | Mapping | Set):  # a set has no order
        return [value]
    try:
        return list(value)
    except TypeError:
        return [value]


def _shown(value: Any) -> str:
    text = str(value) if isinstance(value, Real) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def nearest(word: Any, known: Iterable[str]) -> str:
    """`: did you mean 'fused'?` where one is near."""
    found = get_close_matches(word, list(known), 1) if isinstance(word, str) else []
    return f": did you mean {found[0]!r}?" if found else ""


_SPELLED = re.compile(r"--([a-z]+)(?: ([\w.+-]*\w))?")


def in_python(message: str) -> str:
    """A message as the library says it: `--bits 8` is bits=8, `--profile dense` is profile='dense'."""

    def spell(found: re.Match[str]) -> str:
        name, value = found[1], found[2]
        if value is None:
            return name
        if name in OPTIONS and value in OPTIONS[name].choices:
            return f"{name}={value!r}"
        return f"{name}={value}" if re.fullmatch(r"-?[\d.]+(e[+-]?\d+)?", value) else f"{name} {value}"

    return _SPELLED.sub(spell, message)
