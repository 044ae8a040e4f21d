"""Windows of a hard round: the margins within which the wanted rank of a sample stands, proven for every n and rank."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from exporter.planning import reproducible, tails


def window_miss(shortest: int, longest: int, size: int, margin: int, side: str, failure: float) -> float | None:
    """A bound <= failure of the probability that a hard round's window misses its target on one side, else None.

    X ~ hypergeometric(n, r, size) counts sampled entries at or below a target of rank r among n live ones; the lower end
    misses when X <= floor(r size / n) - margin - 1. By reflection the upper end, ceil(r size / n) + margin, misses when
    X <= floor((r - 1) size / n) - margin with r counted from above. All n in [shortest, longest] and all r are checked:
    by monotonicity a cell of pairs is bounded at its corners, and only cells above the target are split.
    """
    shift, extra = (0, 1) if side == "below" else (1, 0)
    worst = 0.0
    n0, n1 = np.array([shortest]), np.array([longest])
    r0, r1 = np.array([1]), np.array([longest])
    while n0.size:
        if n0.size > 1_000_000:
            return None
        cut = ((r1 - shift) * size) // n0 - margin - extra
        bound = tails.lower_tail(n1, r0, size, cut)
        bad = bound > failure
        worst = max(worst, float(bound[~bad].max(initial=0.0)))
        n0, n1, r0, r1 = n0[bad], n1[bad], r0[bad], r1[bad]
        if np.any((n0 == n1) & (r0 == r1)):
            return None
        nm, rm = (n0 + n1) // 2, (r0 + r1) // 2
        wide, tall = n1 > n0, r1 > r0
        cells = [
            (n0, nm, r0, rm, np.ones_like(wide)),
            (nm + 1, n1, r0, rm, wide),
            (n0, nm, rm + 1, r1, tall),
            (nm + 1, n1, rm + 1, r1, wide & tall),
        ]
        n0, n1, r0, r1 = (np.concatenate([cell[i][cell[4]] for cell in cells]) for i in range(4))
        keep = r0 <= n1
        n0, n1, r0, r1 = n0[keep], n1[keep], r0[keep], r1[keep]
    return worst


@lru_cache(maxsize=1024)
def least_margin(shortest: int, longest: int, size: int, side: str, failure: float) -> int:
    """A margin below which `window_miss` can prove nothing: all ranks are tried, but of few n."""
    shift, extra = (0, 1) if side == "below" else (1, 0)
    middle = (longest // 2 - shift) * size // longest - extra
    quick = tails.lower_tail(longest, longest // 2, size, middle - np.arange(size))
    margin = int(np.count_nonzero(quick > failure))  # falls with the margin
    for n in {shortest, (shortest + longest) // 2, longest}:
        ranks = reproducible.evenly(1, n, min(n, 2000))
        centre = ((ranks - shift) * size) // n - extra
        while margin < size:
            if not np.any(bad := tails.lower_tail(n, ranks, size, centre - margin) > failure):
                break
            ranks, centre = ranks[bad], centre[bad]
            margin += 1
    return margin


@lru_cache(maxsize=1024)
def smallest_margin(shortest: int, longest: int, size: int, side: str, failure: float) -> tuple[int, float] | None:
    """The smallest margin that `window_miss` can prove, and its bound."""
    start = least_margin(shortest, longest, size, side, failure)
    for margin in range(start, min(size, start + 4) + 1):
        proved = window_miss(shortest, longest, size, margin, side, failure)
        if proved is not None:
            return margin, proved
    return None
