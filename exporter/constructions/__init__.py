"""The catalogue of constructions: one module per theorem, one entry here.

A construction is a function. Its arguments are the normalised input (entries in [0, 1], on a grid of step δ) and the wanted
ranks. It returns the entries of these ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from exporter.constructions.batcher import batcher
from exporter.constructions.compact import COMPACT, LINEAR18
from exporter.constructions.depth3 import depth3
from exporter.constructions.depth5 import DEPTH5
from exporter.constructions.entry import Claims as Claims
from exporter.constructions.entry import Construction as Construction
from exporter.constructions.entry import Idle
from exporter.constructions.entry import Statistics as Statistics
from exporter.constructions.linear46 import LINEAR46
from exporter.constructions.linear_max import LINEAR_MAX, TREE_MAX
from exporter.constructions.radix import Digit, Digits, even_digits, radix
from exporter.constructions.radix import Form as Form
from exporter.constructions.vote import VOTE_MAX
from exporter.constructions.window import WINDOW4, WINDOW5, WINDOW6
from exporter.errors import UserError, nearest, spelled, spoken
from exporter.ir.trace import LayerNames, Node
from exporter.passes.profiles import in_batches
from exporter.problem.spec import OptimizeFor, Spec


def default(op: str) -> str:
    """The construction for a task if the user names none. It is exact, and shallow or fast."""
    named = {asked: c.name for c in CONSTRUCTIONS.values() for asked in c.answers}
    return named.get(op, named["median"])


MAX_PAIRS = 8192


def _no_depth3(d: int, ranks: Sequence[int]) -> str | None:
    if d > MAX_PAIRS:
        return f"all pairs of {d} entries are {2 * d * d:.2g} neurons; it is built up to d = {MAX_PAIRS}"
    if len(ranks) * d > MAX_PAIRS**2 // 4:
        return f"{len(ranks)} ranks of {d} entries are {4 * len(ranks) * d:.2g} neurons in the second layer"
    return None


def _no_batcher(d: int, ranks: Sequence[int]) -> str | None:
    return f"a sorting network of {d} wires is built up to d = {1 << 17}" if d > 1 << 17 else None


MAX_SEARCHES = 16


def _no_radix(d: int, ranks: Sequence[int]) -> str | None:
    if len(ranks) > MAX_SEARCHES:
        return f"{len(ranks)} ranks need as many searches, at most {MAX_SEARCHES} are possible (sort with batcher or depth3)"
    return None


def usual_radix(d: int, optimize_for: OptimizeFor) -> int:
    """The bins per digit for each `optimize_for`. docs/radix.md has the measurements behind the choice."""
    match optimize_for:
        case "throughput" | "width":
            return 2
        case "latency":
            return 4 if d >= 1024 else 8
        case "depth":
            return 16


def _radix(x: Node, ranks: Sequence[int], spec: Spec, form: Form, offsets: bool) -> Statistics:
    bits, optimize_for = spec.grid.bits, spec.optimize_for
    if (spec.radix or 2) > 2**bits:
        raise UserError(f"{spelled('radix', spec.radix)}: {bits} bits have {2**bits} values, so no digit has more bins")
    each = even_digits(bits, min(spec.radix or usual_radix(x.size, optimize_for), 2**bits))
    digits = Digits(
        2**bits,
        each,
        form,
        share=optimize_for != "depth",
        saturated_moves=form == "saturating" and optimize_for == "latency",
        rows=optimize_for == "latency" and form != "bounded",
        block=16 if optimize_for == "latency" else 1,
        # after the rounding layers every entry is on the grid, so the last digit can be shorter
        served=(*each, Digit(1, 1)) if optimize_for == "throughput" and spec.rounds else (),
    )
    names = LayerNames()
    return Statistics(radix(x, ranks, digits, names), names=names)


def _depth3(x: Node, ranks: Sequence[int], spec: Spec, form: Form, offsets: bool) -> Statistics:
    values, names = depth3(x, ranks, spec.delta, spec.epsilon is None, form == "saturating"), LayerNames()
    for level in range(x.level + 1, values.level + 1):
        names.add(level, "comparison" if level < values.level else "indicator product")
    return Statistics(values, names=names)


def _batcher(x: Node, ranks: Sequence[int], spec: Spec, form: Form, offsets: bool) -> Statistics:
    values, names = batcher(x, ranks, single=not in_batches(spec.optimize_for, spec.batch)), LayerNames()
    for stage in range(1, values.level - x.level + 1):
        names.add(x.level + stage, f"stage {stage}")
    return Statistics(values, names=names)


MAX_RANKS = 8


def _few_ranks(d: int, ranks: Sequence[int]) -> str | None:
    if d < 16:
        return (
            f"{d} entries are too few to sample from: use depth3"
            if d > 1
            else "one entry cannot be sampled: use depth3"
        )
    if len(ranks) > MAX_RANKS:
        return f"{len(ranks)} ranks need {len(ranks)} networks side by side, at most {MAX_RANKS} are possible"
    return None


def _only_max(d: int, ranks: Sequence[int]) -> str | None:
    return None if list(ranks) == [d] else f"it computes the maximum: use {spelled('op', 'max')}"


def _only_sampled_max(d: int, ranks: Sequence[int]) -> str | None:
    return _only_max(d, ranks) or _few_ranks(d, ranks)


def _no_depth5(d: int, ranks: Sequence[int]) -> str | None:
    if d > 2 * MAX_PAIRS:
        return f"its {d ** (5 / 3):.2g} comparisons and more are built up to d = {2 * MAX_PAIRS}"
    return _few_ranks(d, ranks)


_GRIDLESS = Idle("epsilon", ("bits", "inputs"), "its slopes are 12 d^4/E, in place of a grid")

_SMALL = (9, 16, 17, 64, 65)  # small enough for the service's page to draw every neuron

CONSTRUCTIONS: dict[str, Construction] = {
    c.name: c
    for c in (
        Construction(
            "radix",
            "ours: threshold counts, digit by digit",
            "a search by counting: width about 2 (T - 1) d, depth 2 log2(2^bits)/log2(T); exact on every grid input",
            _radix,
            _no_radix,
            ("pair", "saturating", "bounded"),
            takes=("radix", "optimize_for"),
            searched={"radix": (2, 4, 8, 16, 32, 64), "optimize_for": ("throughput", "depth")},
            everywhere=True,
            dense_bits=8,
            answers=("median",),
            shown=_SMALL,
        ),
        Construction(
            "depth3",
            "Theorem 3.1",
            "all pairs compared at once: depth 3, width about 2 d^2; exact on every grid input",
            _depth3,
            _no_depth3,
            ("pair", "saturating"),
            form_first=True,
            takes=("epsilon",),
            idle=(_GRIDLESS,),
            claims=Claims(3, 2.0, 4),
            counted=True,
            dense_bits=16,
            shown=_SMALL,
        ),
        Construction(
            "batcher",
            "Batcher's merge exchange; up to d = 32 a published network where that is shallower",
            "a sorting network: depth about log2(d)^2 / 2, width about 1.5 d; exact on every grid input",
            _batcher,
            _no_batcher,
            everywhere=True,
            comparators=True,
            dense_bits=16,
            answers=("min", "sort"),
            shown=_SMALL,
        ),
        Construction(
            "depth5",
            "Theorem 3.2",
            "central ranks of blocks against all entries: depth 5, width O(d^(5/3))",
            DEPTH5,
            _no_depth5,
            offsets=True,
            takes=("failure", "objective", "seed"),
            claims=Claims(5, 5 / 3, 6),
            counted=True,
            shown=(64, 65),
        ),
        Construction(
            "linear46",
            "Theorem 3.3",
            "the paper's main network, module by module: depth 46, width O(d); the failure probability is at most `failure`",
            LINEAR46,
            _few_ranks,
            offsets=True,
            takes=("failure", "objective", "width", "seed"),
            claims=Claims(46, 1.0),
        ),
        Construction(
            "compact",
            "ours: pivots, soft rounds, block ending",
            "depth 9 at about 24 d, or of a given depth and width",
            COMPACT,
            _few_ranks,
            takes=("failure", "depth", "width", "seed"),
            claims=Claims(9),
            searched={"depth": (7, 9, 12, 13, 15, 16)},
            shown=(256, 257, 2048),
        ),
        Construction(
            "linear18",
            "ours: Theorem 4 of docs/frontier.md, pivots of two samples, block ending",
            "depth 18, about 9 d from d = 256 to 65536; the failure probability is at most `failure`",
            LINEAR18,
            _few_ranks,
            takes=("failure", "width", "seed"),
            claims=Claims(18),
        ),
        Construction(
            "window4",
            "ours: Theorem 3 of docs/frontier.md, cells of constants, a vote in every cell",
            "uniform inputs only: depth 4, width O(d^(5/4) log(1/failure)); for failures of a percent and more",
            WINDOW4,
            _few_ranks,
            takes=("failure", "width", "seed"),
            claims=Claims(4, 1.25),
            uniform=True,
        ),
        Construction(
            "window5",
            "ours: Theorem 1 of docs/frontier.md, a window of constants, block ending",
            "uniform inputs only: depth 5, width d^(1 + o(1)), about 41 d where Theorem 3.2 has d^(5/3)",
            WINDOW5,
            _few_ranks,
            takes=("failure", "width"),
            claims=Claims(5, 1.0),
            uniform=True,
        ),
        Construction(
            "window6",
            "ours: Theorem 2 of docs/frontier.md, a window that follows a count, block ending",
            "uniform inputs only: depth 6, about 12 d",
            WINDOW6,
            _few_ranks,
            takes=("failure", "width"),
            claims=Claims(6, 1.0),
            uniform=True,
        ),
        Construction(
            "vote-max",
            "ours: Theorem 7 of docs/frontier.md, the Q-th largest slot of Q hash functions",
            "uniform inputs only: the maximum at depth 4; width d from d = 1,980 (failure 0.13) or 267,264 (0.01) on",
            VOTE_MAX,
            _only_sampled_max,
            takes=("failure", "width", "seed"),
            op="max",
            claims=Claims(4, 1.0),
            uniform=True,
        ),
        Construction(
            "linear-max",
            "Algorithms 1 and 2",
            "the maximum by two sparsification rounds and hashing: depth 13, width O(d)",
            LINEAR_MAX,
            _only_sampled_max,
            takes=("failure", "width", "seed"),
            op="max",
            claims=Claims(exponent=1.0),
        ),
        Construction(
            "tree-max",
            "maxima of block maxima",
            "the exact maximum: depth about log2(d) at width d, depth 7 at 2 d for a given width or depth",
            TREE_MAX,
            _only_max,
            takes=("depth", "width"),
            idle=(Idle("depth", ("width",), "the tree of a given depth is as narrow as it can be"),),
            op="max",
            comparators=True,
            answers=("max",),
        ),
    )
}


GONE = {
    "fastest": "fastest is gone: docs/performance.md says which file is fastest at which d and batch",
    "linear22": "linear22 is gone: use linear18, which is shallower and narrower (docs/frontier.md)",
}


def lookup(name: str) -> Construction:
    """The construction of this name, or UserError with all names."""
    if isinstance(name, str) and name in GONE:
        raise UserError(GONE[name])
    if not isinstance(name, str) or name not in CONSTRUCTIONS:
        known = ", ".join(CONSTRUCTIONS)
        raise UserError(f"unknown construction {name!r}: choose from {known}{nearest(name, CONSTRUCTIONS)}")
    return CONSTRUCTIONS[name]


def takers(option: str) -> list[str]:
    """The constructions that take an option. The list is empty for an option that every export has."""
    return [c.name for c in CONSTRUCTIONS.values() if option in c.takes]


def own(construction: Construction, given: Mapping[str, Any]) -> dict[str, Any]:
    """The given options that a construction takes."""
    return {o: value for o, value in given.items() if _reads(construction, o, given) or not takers(o)}


def _reads(construction: Construction, option: str, given: Mapping[str, Any]) -> bool:
    """Whether an option changes the network of a construction or the layout of its fused file."""
    layout = given.get("profile") == "fused" and given.get("optimize_for") == "latency"
    return option in construction.takes or (option == "optimize_for" and layout)


def refuse_unread(construction: Construction, given: Mapping[str, Any]) -> None:
    """Refuse an option that would change nothing, because the file's name would state the option all the same."""
    name = construction.name
    for option in given:
        if (others := takers(option)) and not _reads(construction, option, given):
            own = spoken([spelled(o) for o in construction.takes]) if construction.takes else "no options of its own"
            raise UserError(
                f"{name} does not use {spelled(option)}, which would change nothing: it is an option of {spoken(others)}; "
                f"{name} has {own}"
            )
    for rule in construction.idle:
        unread = [o for o in rule.unread if o in given]
        if unread and rule.option in given:
            chosen, other = spelled(rule.option), spelled(unread[0])
            raise UserError(f"{name} with {chosen} does not use {other}: {rule.why}; leave one of them out")
