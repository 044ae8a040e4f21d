"""vote-max: the maximum of uniform inputs in 3 hidden layers, the first of them d wide (docs/frontier.md has the proof)."""

from __future__ import annotations

from fractions import Fraction

from exporter.constructions.sampling import groups, lean_ranks, lean_select, permutation
from exporter.constructions.scheduled import Planned
from exporter.ir.linear import Scalar
from exporter.ir.trace import Node, assume, relu, stack, trim
from exporter.planning.vote import VoteSchedule, vote_max_nearest, vote_max_plans


def vote_max(u: Node, plan: VoteSchedule, delta: Scalar, seed: int = 0, *_: bool) -> Node:
    """The Q-th largest of all slots of Q functions, plus the constant F. Entries below F do not count.

    A slot is the sum of the excesses [x - F]+ of a block of positions, so it is affine in the first layer. The slots are
    compared untrimmed. They are trimmed to 1 - F before the selection, so every answer lies in [F, 1].
    """
    step, d, p = Fraction(delta), plan.d, plan.slots
    most = plan.reach * step
    excess = assume(relu(u - (1 - most)), 0.0, float(most))
    slots = []
    for function in range(plan.functions):
        order = permutation(d, seed, function + 1)
        for start, blocks, size in groups(d, p):
            block = excess.take(order[start : start + blocks * size]).reshape(blocks, size)
            slots.append(assume(block.sum(1), 0.0, float(size * most)))
    pool = stack(slots)
    unit = Fraction(1)  # a power of two, so division by it is exact
    while unit / 2 >= most:
        unit /= 2
    wanted = plan.functions * p - plan.functions + 1
    found = lean_select(trim(pool, most) / unit, lean_ranks(pool, step), [wanted]) * unit
    return assume(found + (1 - most), float(1 - most), 1.0)


VOTE_MAX = Planned(
    vote_max_plans, vote_max, ("excess", "pairs", "select"),
    vote_max_nearest, gridded=True,
)  # fmt: skip
