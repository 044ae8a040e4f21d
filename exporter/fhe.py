"""Order statistics on encrypted whole numbers: comparator networks as functions for Zama's concrete-python.

    from exporter.fhe import compiled
    circuit = compiled(9, bits=4)                       # the median of 9 encrypted numbers 0..15
    circuit.encrypt_run_decrypt([3, 1, 4, 1, 5, 9, 2, 6, 5])

Additions of encrypted numbers are cheap. Nearly all time goes to table lookups (bootstraps). A comparator needs one lookup,
r = max(a - b, 0), for both of its ends: the minimum is a - r and the maximum is b + r. So the network with the fewest
comparators is the cheapest. docs/encryption.md has the figures; `python -m exporter.fhe` measures them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from exporter.constructions.batcher import known, merge_exchange, pruned
from exporter.constructions.known_networks import comparators
from exporter.errors import UserError

Pair = tuple[int, int]
Function = Callable[[Any], Any]

# Medians with the fewest comparators: Paeth, Graphics Gems (1990), and Devillard, Fast median search (1998).
FEWEST_MEDIANS = {
    5: "0:1 3:4 0:3 1:4 1:2 2:3 1:2",
    7: "0:5 0:3 1:6 2:4 0:1 3:5 2:6 2:3 3:6 4:5 1:4 1:3 3:4",
    9: "1:2 4:5 7:8 0:1 3:4 6:7 1:2 4:5 7:8 0:3 5:8 4:7 3:6 1:4 2:5 4:7 4:2 6:4 4:2",
}


def fewest_comparators(d: int, rank: int) -> list[Pair]:
    """The listed network with the fewest comparators that puts rank `rank` of d numbers on wire rank - 1.

    A pair (i, j) puts the smaller number on wire i and the larger number on wire j.
    """
    if not 1 <= rank <= d:
        raise UserError(f"rank {rank} of {d} numbers: ranks are 1 to {d}")
    candidates = [merge_exchange(d), *known(d, {rank - 1})]
    if d in FEWEST_MEDIANS and 2 * rank == d + 1:
        candidates.append([np.array([pair]) for pair in comparators(FEWEST_MEDIANS[d])])
    networks = [pruned(stages, {rank - 1}, d)[0] for stages in candidates]
    best = min(networks, key=lambda stages: sum(map(len, stages)))
    return [(int(i), int(j)) for stage in best for i, j in stage]


def order_statistic(d: int, rank: int | None = None, bits: int | None = None) -> Function:
    """A function of d whole numbers that returns the given rank (default: the lower median), one lookup per comparator.

    The function accepts numpy arrays and concrete-python's encrypted tensors. The compiler of concrete-python derives the
    range of every value from sample inputs, and samples can miss a range. With `bits` the function states the ranges: every
    wire carries numbers 0..2^bits - 1, and differences are made non-negative before the lookup.
    """
    rank = (d + 1) // 2 if rank is None else rank
    pairs = fewest_comparators(d, rank)
    top = 0 if bits is None else 2**bits - 1
    hint = None if bits is None else _concrete().hint

    def upto(value: Any, largest: int) -> Any:
        return value if hint is None else hint(value, can_store=largest)

    def select(x: Any) -> Any:
        wires = [x[i] for i in range(d)]
        for i, j in pairs:
            a, b = wires[i], wires[j]
            excess = upto(np.maximum(upto(a - b + top, 2 * top) - top, 0), top)
            wires[i], wires[j] = upto(a - excess, top), upto(b + excess, top)
        return wires[rank - 1]

    return select


def minimum_and_maximum(d: int, rank: int | None = None) -> Function:
    """A rival: the same network, with np.minimum and np.maximum for the ends that are used."""
    rank = (d + 1) // 2 if rank is None else rank
    pairs = fewest_comparators(d, rank)

    def select(x: Any) -> Any:
        needed, used = {rank - 1}, []
        for i, j in reversed(pairs):
            used.append((i in needed, j in needed))
            needed |= {i, j}
        wires = [x[i] for i in range(d)]
        for (i, j), (low, high) in zip(pairs, reversed(used), strict=True):
            a, b = wires[i], wires[j]
            if low:
                wires[i] = np.minimum(a, b)
            if high:
                wires[j] = np.maximum(a, b)
        return wires[rank - 1]

    return select


def all_pairs(d: int, rank: int | None = None) -> Function:
    """A rival: compare all pairs, count the rank of each number, and sum the numbers whose rank is the wanted rank."""
    rank = (d + 1) // 2 if rank is None else rank

    def select(x: Any) -> Any:
        before: list[Any] = [0] * d  # how many numbers come before each, ties in the order of the input
        for i in range(d):
            for j in range(i + 1, d):
                first = x[i] - x[j] <= 0
                before[i] = before[i] + (1 - first)
                before[j] = before[j] + first
        found: Any = 0
        for i in range(d):
            found = found + x[i] * (before[i] == rank - 1)
        return found

    return select


def _concrete() -> Any:
    try:
        from concrete import fhe  # noqa: PLC0415
    except ImportError as error:
        raise UserError(
            f"encrypted networks need concrete-python ({error}). It needs Python 3.11 or 3.12 and numpy below 2, so give it "
            "an environment of its own: make fhe, or pip install -r tests/fhe/requirements.txt"
        ) from None
    return fhe


def compiled(
    d: int, *, bits: int, rank: int | None = None, function: Callable[..., Function] = order_statistic, **settings: Any
) -> Any:
    """The circuit of concrete-python for d encrypted numbers 0..2^bits - 1; `settings` go to its Configuration."""
    if not 1 <= bits <= 8:
        raise UserError(f"bits={bits}: encrypted lookups take numbers of 1 to 8 bits here")
    fhe = _concrete()
    rng, top = np.random.default_rng(0), 2**bits - 1
    made = function(d, rank, bits) if function is order_statistic else function(d, rank)
    # the compiler derives ranges from these inputs: random inputs, and inputs with the extreme differences
    samples = [np.zeros(d, np.int64), np.full(d, top)]
    samples += [top * ((np.arange(d) + i) % d < n) for n in range(1, d) for i in range(d)]
    samples += list(top * rng.integers(0, 2, (300, d))) + list(rng.integers(0, top + 1, (300, d)))
    return fhe.Compiler(made, {"x": "encrypted"}).compile(samples, fhe.Configuration(**settings))


def rivals() -> dict[str, tuple[Callable[..., Function], dict[str, Any]]]:
    """Ways to compute the same median: the function, and the compiler's settings."""
    one_lookup = {"min_max_strategy_preference": _concrete().MinMaxStrategy.ONE_TLU_PROMOTED}
    return {
        "one lookup a comparator": (order_statistic, {}),
        "np.minimum and np.maximum, one lookup each": (minimum_and_maximum, one_lookup),
        "np.minimum and np.maximum, default settings": (minimum_and_maximum, {}),
        "all pairs, ranks by counting": (all_pairs, {}),
    }


def measured(lengths: Iterable[int], bits: Iterable[int]) -> Iterable[str]:
    """A row of a table for each length, number of bits and rival: bootstraps and the compiler's complexity."""
    yield "| d | bits | way | bootstraps | complexity |\n|---|---|---|---|---|"
    for d in lengths:
        for b in bits:
            for name, (function, settings) in rivals().items():
                try:
                    circuit = compiled(d, bits=b, function=function, **settings)
                    figures = f"{circuit.programmable_bootstrap_count:,} | {circuit.complexity:.2e}"
                except RuntimeError as error:  # no parameters for numbers so wide
                    figures = f"- | not compiled: {str(error).splitlines()[0][:60]}"
                yield f"| {d} | {b} | {name} | {figures} |"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m exporter.fhe", description="Bootstraps of encrypted medians.")
    parser.add_argument("--d", type=int, nargs="+", default=[5, 9, 25], help="lengths (default: 5 9 25)")
    parser.add_argument("--bits", type=int, nargs="+", default=[4, 6, 8], help="bits of the numbers (default: 4 6 8)")
    parsed = parser.parse_args(argv)
    try:
        for line in measured(parsed.d, parsed.bits):
            print(line, flush=True)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
