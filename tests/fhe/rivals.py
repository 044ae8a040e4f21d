"""Other ways to compute a median of encrypted numbers, and their bootstraps beside ours: `python -m tests.fhe.rivals`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from exporter.fhe import Function, compiled, concrete, fewest_comparators, order_statistic


def minimum_and_maximum(d: int, rank: int | None = None) -> Function:
    """The same network, with np.minimum and np.maximum for the ends that are used."""
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
    """Compare all pairs, count the rank of each number, and sum the numbers whose rank is the wanted rank."""
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


def rivals() -> dict[str, tuple[Callable[..., Function], dict[str, Any]]]:
    """Ways to compute the same median: the function, and the compiler's settings."""
    one_lookup = {"min_max_strategy_preference": concrete().MinMaxStrategy.ONE_TLU_PROMOTED}
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.fhe.rivals", description="Bootstraps of encrypted medians.")
    parser.add_argument("--d", type=int, nargs="+", default=[5, 9, 25], help="lengths (default: 5 9 25)")
    parser.add_argument("--bits", type=int, nargs="+", default=[4, 6, 8], help="bits of the numbers (default: 4 6 8)")
    parsed = parser.parse_args()
    for line in measured(parsed.d, parsed.bits):
        print(line, flush=True)
