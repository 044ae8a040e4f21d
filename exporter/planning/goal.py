"""The request to a planner."""

from __future__ import annotations

from dataclasses import dataclass

from exporter.errors import UserError, spelled
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

    def __post_init__(self) -> None:
        """Refuse goals that no planner can meet."""
        if self.d < 1:
            raise UserError(f"d = {self.d}: a network needs at least one input")
        if not 1 <= self.low <= self.high <= self.d:
            raise UserError(f"ranks {self.low}..{self.high} do not lie in 1..{self.d}")
        if not 0.0 < self.failure < 1.0:
            raise UserError(f"failure = {self.failure}: choose a probability above 0 and below 1, e.g. 1e-3")

    @property
    def gap(self) -> int:
        """The difference of the highest and the lowest rank."""
        return self.high - self.low

    def only_max(self) -> None:
        """Refuse all ranks except the last."""
        if self.low != self.d:
            asked = f"ranks {self.low}..{self.high} of {self.d}"
            raise UserError(f"{self.construction} computes the maximum, not {asked}: use {spelled('op', 'max')}")

    def only_neighbours(self) -> None:
        """Refuse all except one rank or two neighbouring ranks."""
        if self.gap > 1:
            asked = f"{self.low}..{self.high}: build one network per rank"
            raise UserError(f"{self.construction} finds one rank or two neighbours, not {asked}")

    def no_depth(self, depths: str) -> UserError:
        """The error for a depth that the construction never has."""
        return UserError(f"{self.construction} has depth {depths}, not {self.depth}")
