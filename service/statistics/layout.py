"""The requested order statistic of a vector: one rank, or a mix of two neighbouring ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import get_args

from exporter.problem import task
from exporter.problem.task import Even

EVEN: tuple[Even, ...] = get_args(Even)


@dataclass(frozen=True)
class Target:
    """(1 - weight) v_low + weight v_high, with `high` equal to `low` or its upper neighbour. Ranks count from 1."""

    low: int
    high: int
    weight: float = 0.0

    @property
    def single(self) -> bool:
        return self.low == self.high

    @classmethod
    def rank(cls, k: int) -> Target:
        return cls(k, k)


@lru_cache(maxsize=4096)
def median_target(n: int, even: Even = "mean") -> Target:
    """The median of n values: the middle rank, or the choice `even` among the two middle ranks."""
    output = task.median(n, even).outputs[0]
    return Target(output.ranks[0], output.ranks[-1], float(output.weights[1]) if output.weights[1:] else 0.0)
