"""Every shape of sample, pivots, rounds and block ending up to a depth: the narrowest network that the planner proves.

    python tests/benchmarks/bench_shapes.py --d 2048 65536 [--failure 1e-3] [--depth 18]

A shape says how many sets of pivots the first sample has (0, 1 or 2), and so for every round; a round without pivots is a
soft one. `SHAPES` of exporter.planning.compact should hold the best of every depth worth having: exit status 1 if another
shape of such a depth is narrower at every d, by more than the half percent to which widths are searched.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import product

from exporter.planning.compact import SHAPES, depth_of, narrowest
from exporter.planning.goal import Goal


def shapes(deepest: int) -> Iterator[tuple[int, ...]]:
    for rounds in range(deepest // 4):
        for shape in product(range(3), repeat=rounds + 1):
            if depth_of(shape) <= deepest:
                yield shape


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d", type=int, nargs="+", required=True)
    parser.add_argument("--failure", type=float, default=1e-3)
    parser.add_argument("--depth", type=int, default=18)
    args = parser.parse_args()
    goals = [Goal(d=d, low=d // 2, high=d // 2 + 1, failure=args.failure) for d in args.d]
    found: dict[tuple[int, ...], list[float]] = {}
    print(f"{'depth':>5} {'shape':12} " + " ".join(f"{f'd = {d}':>10}" for d in args.d))
    for shape in sorted(shapes(args.depth), key=lambda s: (depth_of(s), s)):
        plans = [narrowest(goal, shape) for goal in goals]
        found[shape] = [plan.width / plan.d if plan else float("inf") for plan in plans]
        chosen = "*" if shape in SHAPES.values() else " "
        print(
            f"{depth_of(shape):5d} {f'{shape}{chosen}':12} " + " ".join(f"{w:8.2f} d" for w in found[shape]), flush=True
        )
    better = [
        (shape, SHAPES[depth])
        for shape in found
        if (depth := depth_of(shape)) in SHAPES
        and all(mine < 0.995 * theirs for mine, theirs in zip(found[shape], found[SHAPES[depth]], strict=True))
    ]
    for shape, worse in better:
        print(f"{shape} is narrower than {worse}")
    return 1 if better else 0


if __name__ == "__main__":
    sys.exit(main())
