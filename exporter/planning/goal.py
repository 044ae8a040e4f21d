"""The request to a planner."""

from __future__ import annotations

from dataclasses import dataclass

from exporter.errors import UserError
from exporter.problem.spec import Spec


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A request for the entries of ranks low .. high of d numbers, wrong with probability at most `failure`.

    The planner looks for the narrowest plan within `depth` and `width` (None: no limit). `cells` is the number of steps of
    the data's grid; networks for uniform inputs need this number. `construction` is the name in messages.
    """

    d: int
    low: int
    high: int
    failure: float = Spec.failure
    depth: int | None = None
    width: int | None = None
    cells: int = 1 << 24
    construction: str = "it"

    @property
    def gap(self) -> int:
        """The difference of the highest and the lowest rank."""
        return self.high - self.low

    def no_depth(self, depths: str) -> UserError:
        """The error for a depth that the construction never has."""
        return UserError(f"{self.construction} has depth {depths}, not {self.depth}")
