"""What a file says that it computes, on which data, and the verdict on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from exporter.analysis.promise import without_grid
from exporter.formats.session import Session
from exporter.problem.description import Description, grid_of, task_of
from exporter.problem.grid import Grid
from exporter.problem.task import Task
from exporter.prove.forms import summed
from exporter.prove.graph import NotProvedError

SLACK = Fraction(1, 1 << 40)  # weights of a mean are floats


@dataclass(frozen=True)
class Verdict:
    """What was found: the statement in words, the method and what it takes for granted, or an input with a wrong answer."""

    status: Literal["proved", "refuted", "not proved"]
    text: str
    method: str = ""
    arithmetic: str = ""
    assumes: tuple[str, ...] = ()
    counterexample: list[float] = field(default_factory=list)

    @property
    def exit_status(self) -> int:
        return {"proved": 0, "refuted": 1, "not proved": 2}[self.status]

    def lines(self) -> list[str]:
        found = [f"{self.status}: {self.text}"]
        if self.method:
            found += [f"method: {self.method}", f"arithmetic: {self.arithmetic}"]
        found += [f"assumes: {line}" for line in self.assumes]
        if self.counterexample:
            found.append("input: " + " ".join(map(repr, self.counterexample)))
        return found


@dataclass(frozen=True, eq=False)
class Claim:
    """The answers of `task` on the grid, or on every number if `free`, up to the error that a mixture of ranks may have."""

    session: Session
    task: Task
    grid: Grid
    allowed: float
    free: bool

    @staticmethod
    def of(session: Session, about: Description) -> Claim:
        task = task_of(about, session.d)
        columns = session.run(np.zeros((1, session.d), session.dtype)).shape[1]
        if columns != len(task.outputs):
            raise NotProvedError(
                f"the file gives {columns} numbers, and {len(task.outputs)} are claimed (certificates are not read)"
            )
        for output in task.outputs:
            apart, several = abs(sum(map(Fraction, output.weights), Fraction(-1))), len(output.ranks) > 1
            if apart > SLACK * several or (task.interpolation != "sum" and len(output.ranks) > 2):
                raise NotProvedError("a claimed output is neither a rank nor a mean of ranks: its weights do not fit")
        grid = grid_of(about)
        low, high, step = map(Fraction, (grid.low, grid.high, grid.step))
        ends = low, low + step, high - step, high
        if session.dtype.kind != "f" or any(Fraction(session.dtype.type(float(e)).item()) != e for e in ends):
            raise NotProvedError(f"the grid has numbers that {session.dtype} does not hold")
        # one rounding of each product, and of each sum
        terms = max(len(o.ranks) for o in task.outputs)
        most = 2 * terms * float(np.finfo(session.dtype).eps) * max(abs(grid.low), abs(grid.high))
        return Claim(session, task, grid, min(float(about.get("grid_error") or 0), most), without_grid(about))

    @property
    def wanted(self) -> list[dict[int, Fraction]]:
        """The weight of every rank, for each output; a rank may be listed twice."""
        return [summed(zip(o.ranks, map(Fraction, o.weights), strict=True)) for o in self.task.outputs]

    @property
    def text(self) -> str:
        def one(weights: dict[int, Fraction]) -> str:
            return " + ".join(f"{'' if w == 1 else f'{w} '}x({r})" for r, w in weights.items())

        listed = ", ".join(one(w) for w in self.wanted[:3])
        more = f", ... ({len(self.wanted)} outputs)" if len(self.wanted) > 3 else ""
        values = f"the {self.grid.cells + 1} grid values of [{self.grid.lo:g}, {self.grid.hi:g}]"
        where = "all numbers" if self.free else values
        return f"y = {listed}{more} of {self.task.d} numbers, for all inputs from {where}; x(k) is the k-th smallest"

    def data(self, units: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Grid values in the dtype of the file, given as numbers of steps."""
        return self.grid.values(units).astype(self.session.dtype)

    def wrong(self, x: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
        """The first row whose answer is not numpy's, or not within the error that a mixture of ranks is allowed."""
        got, truth = self.session.run(x), self.task.answers(x)
        if got.shape != truth.shape:
            return np.asarray(x[0])
        same = (got == truth) | (np.isnan(got) & np.isnan(truth))
        if self.task.may_round:
            same |= np.abs(got.astype(np.float64) - truth) <= 2 * self.allowed
        bad = np.flatnonzero(~same.all(axis=1))
        return np.asarray(x[bad[0]]) if len(bad) else None

    def refuted(self, x: npt.NDArray[Any]) -> Verdict:
        got, truth = self.session.run(x[None])[0].tolist(), self.task.answers(x[None])[0].tolist()
        at = next((i for i, (a, b) in enumerate(zip(got, truth, strict=False)) if a != b), 0)
        shown = f"output {at} is {got[at]!r} where numpy gives {truth[at]!r}"
        counterexample = [float(v) for v in x]
        return Verdict("refuted", shown, "a run in onnxruntime", str(self.session.dtype), (), counterexample)
