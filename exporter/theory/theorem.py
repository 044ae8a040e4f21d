"""The asymptotic theorems (docs/frontier.md), counted at any d and run at a small one.

    python -m exporter theory theorem 10 --d 1e100 1e200 --failure 1e-6     neurons of every layer, in units of d
    python -m exporter theory theorem 10 --d 512 --run 200                  the network itself, with windows that fit

At a small d the theorem's windows do not fit. So a run uses narrower windows, without a proven failure bound. But each proof
has two parts: on certain events the network is right, and these events are likely. `holds` decides from the ranks of an
input whether the events happen, without a network. If they happen, the network must agree with numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import ceil

import numpy as np
import numpy.typing as npt

from exporter.analysis.evaluate import evaluate
from exporter.constructions.sampling import permutation
from exporter.errors import UserError
from exporter.ir.network import Network, network
from exporter.ir.trace import vector
from exporter.theory import asymptotic as networks
from exporter.theory.asymptotic_plan import (
    EVENTS,
    RUN,
    THEOREMS,
    Depth6,
    Depth10,
    Hashing,
    Layered,
    Theorem,
    ceil_div,
    ceil_root,
    floor_root,
    tail_for,
)

Ints = npt.NDArray[np.int64]
BITS = 14  # bits of the inputs: together with offsets and a carried entry all numbers are exact in float64
AT_ONCE = 1 << 24  # numbers of the widest layer that are in memory at a time
LARGEST = 2048  # the largest d of a network that is run


def planned(depth: int, d: int, failure: float = 1e-3, exponent: Fraction | None = None) -> tuple[Layered, int]:
    """The network of the theorem for the median (rank ⌈d/2⌉), and λ: from the failure, or ⌊d^exponent⌋."""
    if exponent is None:
        tail = tail_for(depth, failure)
    else:
        tail = max(1, floor_root(d**exponent.numerator, exponent.denominator))
    return THEOREMS[depth](d, ceil_div(d, 2), tail), tail


def relaxed(depth: int, d: int) -> Depth6 | Depth10:
    """The network of a theorem with windows that fit a small d."""
    k = ceil_div(d, 2)
    if depth == 6:
        w = 2 * ceil_root(ceil_root(d))
        return Depth6(d=d, rank=k, margin=w, ending=Hashing(4, w, 4 * w, 6))
    counted, candidates, cuts = floor_root(d * d, 3), floor_root(d, 3) + 2, floor_root(d * d, 7) + 1
    block = cuts + 2
    blocks = d // cuts // block
    sample = blocks * block
    margin, middle, spread = ceil_root(counted * sample, d) + 1, k * cuts // d, ceil_root(cuts, 2)
    live = 2 * margin * d // sample
    return Depth10(
        d=d, rank=k, candidates=candidates, counted=counted, cuts=cuts, blocks=blocks, block=block, entries=7,
        first=max(0, middle - spread), last=min(cuts, middle + spread), margin=margin,
        ending=Hashing(6, ceil_div(live, 3), 2 * live, 9),
    )  # fmt: skip


def built(plan: Depth6 | Depth10, seed: int = 0, bits: int = BITS) -> Network:
    """The network for inputs on a grid of 2^bits steps."""
    x = vector(plan.d)
    if isinstance(plan, Depth6):
        return network(x, networks.depth6(x, plan, Fraction(1, 2**bits), seed))
    return network(x, networks.depth10(x, plan, Fraction(1, 2**bits), seed))


def holds(plan: Depth6 | Depth10, x: Ints, seed: int, bits: int = BITS) -> bool:
    """Whether the events of the proof happen for one input of grid values. If they do, the network is right."""
    live = window6(plan, x, bits) if isinstance(plan, Depth6) else window10(plan, x, seed)
    return live is not None and any(separates(slots, plan.ending) for slots in _slots(plan, seed)[:, live])


def _slots(plan: Theorem, seed: int) -> Ints:
    return networks.functions_of(plan.d, plan.ending, seed)


def separates(slots: Ints, ending: Hashing) -> bool:
    """Whether no slot has two live entries, and no block more than c."""
    if slots.size == 0:
        return True
    crowd = np.bincount(slots // ending.length).max()
    return bool(np.bincount(slots).max() <= 1 and crowd <= ending.entries)


def window6(plan: Depth6, x: Ints, bits: int) -> Ints | None:
    """The positions of the live entries, if the target is one of them."""
    d, k, w = plan.d, plan.rank, plan.margin
    per = 2**bits // d
    n = int((x < k * per).sum())
    lower, upper = (2 * k - w - n) * per, (2 * k + w - n) * per
    return np.flatnonzero((x >= lower) & (x <= upper)) if lower <= np.sort(x)[k - 1] <= upper else None


def window10(plan: Depth10, x: Ints, seed: int) -> Ints | None:
    """The positions of the live entries, if the target is one of them. Equal entries are ranked by index."""
    d, k, s = plan.d, plan.rank, plan.sample
    rank = np.empty(d, np.int64)
    rank[np.argsort(x, kind="stable")] = np.arange(1, d + 1)
    a, b, c, sample = (rank[permutation(d, seed, 1)[:n]] for n in (plan.candidates, plan.counted, plan.cuts, s))
    under = a[(b[None, :] < a[:, None]).sum(1) < plan.below]
    if not under.size:
        return None
    n, sampled = int(under.max()) - 1, int((sample < under.max()).sum())
    cell = (c[None, :] < sample[:, None]).sum(1)
    middle = (cell >= plan.first) & (cell <= plan.last)
    crowd = np.bincount((cell * plan.blocks + np.arange(s) // plan.block)[middle])
    if crowd.max(initial=0) > plan.entries:
        return None
    at = sampled + (k - n) * s // d
    low, high = at - plan.margin, at + plan.margin + 1
    if low < 1 or high > s:
        return None
    order = np.argsort(sample)
    ends = order[[low - 1, high - 1]]
    first, last = sample[ends]
    return np.flatnonzero((rank >= first) & (rank <= last)) if middle[ends].all() and first <= k <= last else None


@dataclass(frozen=True)
class Run:
    """The result of a network on random inputs: their number, how often the events held, and how often it was wrong."""

    depth: int
    widths: tuple[int, ...]
    trials: int
    held: int
    wrong_where_held: int
    right_elsewhere: int


def measured(depth: int, d: int, trials: int, seed: int = 0, equal: bool = False) -> Run:
    """The result of a run at a small d on uniform grid values. `equal`: only a few distinct values, each many times."""
    if depth not in RUN:
        raise UserError(
            f"theorem {depth} is counted only, and theorem {' or '.join(map(str, RUN))} can be run"
            + f": --construction window{depth} is its network" * (depth == 4)
        )
    if not 64 <= d <= LARGEST:
        raise UserError(f"a network is run at d = 64 to {LARGEST}, not {d}: without --run any d can be counted")
    if depth == 6 and d & (d - 1):
        raise UserError(f"the window of depth 6 moves in steps of 1/d, exact for d a power of two only: not d = {d}")
    plan = relaxed(depth, d)
    net = built(plan, seed)
    x = np.random.default_rng([seed, d]).integers(0, 2**BITS + 1, (trials, d))
    if equal:
        x = x // 2 ** (BITS - 4) * 2 ** (BITS - 4)
    parts = ceil(trials * net.width / AT_ONCE)
    out = np.concatenate([evaluate(net, part / 2.0**BITS) for part in np.array_split(x, parts)])[:, 0]
    right = out * 2**BITS == np.sort(x, axis=1)[:, plan.rank - 1]
    held = np.array([holds(plan, row, seed) for row in x])
    return Run(
        net.depth, tuple(layer.width for layer in net.layers), trials, int(held.sum()), int((held & ~right).sum()),
        int((right & ~held).sum()),
    )  # fmt: skip


def run_lines(depth: int, d: int, found: Run) -> list[str]:
    plan = relaxed(depth, d)
    lines = [f"theorem {depth} at d = {d}, with windows that fit there: depth {found.depth}, size {sum(found.widths)}"]
    lines += [
        f"  layer {i}  {width:9d} neurons, by the formula {counted:9d}  {purpose}"
        for i, (width, (purpose, counted)) in enumerate(zip(found.widths, plan.layers.items(), strict=True), 1)
    ]
    lines.append(
        f"{found.trials} random inputs: the events of the proof hold on {found.held}, where it is wrong on "
        f"{found.wrong_where_held}; elsewhere it is right on {found.right_elsewhere}"
    )
    return lines


def table_lines(depth: int, ds: list[int], failure: float, exponent: Fraction | None) -> list[str]:
    """A table of the neurons of every layer, in units of d."""
    about = f"at most {failure:g}" if exponent is None else f"at most {EVENTS[depth]} exp(-d^({exponent}))"
    lines = [f"theorem {depth}: neurons of the {depth - 1} hidden layers over d; failure {about}"]
    lines.append(f"{'d':>8} {'λ':>6} {'width/d':>9}  layers 1 .. {depth - 1}, over d")
    for d in ds:
        try:
            plan, tail = planned(depth, d, failure, exponent)
        except UserError as error:
            lines.append(f"{_short(d):>8} {error}")
            continue
        widths = " ".join(f"{_over(width, d):>8}" for width in plan.widths)
        lines.append(f"{_short(d):>8} {tail:6d} {_over(plan.width, d):>9}  {widths}")
    return lines


def _short(d: int) -> str:
    return str(d) if d < 10**6 else f"{Decimal(d):.3g}".replace("e+", "e")


def _over(width: int, d: int) -> str:
    quotient = float(Fraction(width, d))
    return f"{quotient:.3f}" if quotient < 10**4 else f"{quotient:.2e}"


def report(
    theorem: int, d: list[int], failure: float, exponent: Fraction | None, run: int | None, seed: int
) -> list[str]:
    """The lines that the command prints."""
    if run is None:
        return table_lines(theorem, d, failure, exponent)
    return [line for each in d for line in run_lines(theorem, each, measured(theorem, each, run, seed))]
