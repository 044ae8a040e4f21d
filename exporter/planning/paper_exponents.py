"""`--schedule paper`: the literal exponents of Theorem 3.3, and which inequality fails at a d that fits in a computer."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, log10
from typing import NoReturn

from exporter.errors import UserError, spelled
from exporter.planning.goal import Goal
from exporter.planning.reproducible import power

# (y', z') of rounds 2 to 4 in hundredths (step 1 of Algorithm 5)
EXPONENTS = {2: (76, 50), 3: (52, 50), 4: (28, 26)}
LARGEST = 10**71  # of round 3; round 4 asks for 10^95.4


def paper_linear46(goal: Goal) -> NoReturn:
    """UserError with the first inequality of Algorithm 6 that fails: one does for every d < 10^71."""
    d = goal.d
    if d >= LARGEST:
        raise UserError(f"no computer holds d = {d:.0e} entries")
    i, (y, z) = next((i, (y, z)) for i, (y, z) in EXPONENTS.items() if _taken(d, i, y, z)[2] > d)
    blocks, block, all_ = _taken(d, i, y, z)
    least = i * log10(3) / (y - z) * 100  # 3^i d^(z' - y') <= 1
    raise UserError(
        f"the paper's exponents do not fit d = {d}: round {i} takes {blocks} blocks of {block} = {all_} entries "
        f"(ceil(z/d^0.01) blocks of ceil(3^{i} d^1.01/y), which needs 3^{i} d^({z / 100:g} - {y / 100:g}) <= 1, "
        f"d >= 10^{least:.1f}); use {spelled('schedule', 'tuned')}"
    )


def _taken(d: int, i: int, y: int, z: int) -> tuple[int, int, int]:
    """Blocks of round i, their length, and the entries they take together."""
    blocks = ceil(ceil(power(d, Fraction(z, 100))) / power(d, Fraction(1, 100)))
    block = ceil(3**i * power(d, Fraction(101 - y, 100)))
    return blocks, block, blocks * block
