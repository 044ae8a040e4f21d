"""Prove that a file computes its order statistic, or refute it: the methods in the order they are tried.

    exhaustive    every input of the grid, in onnxruntime: up to 2^25 inputs
    zero-one      files that only compare and move: the 0-1 principle, component by component
    counting      files that count: a search is a function of one entry, evaluated at every grid value; all pairs give ranks
    search        inputs that may refute the file, in onnxruntime

A proof by `zero-one` or `counting` reads the stored weights as exact rational numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx

from exporter.analysis.promise import without_grid
from exporter.check import check
from exporter.errors import UserError
from exporter.formats.description import grid_of, task_of
from exporter.formats.model_file import decode, load
from exporter.formats.session import Session
from exporter.problem.grid import Grid, at_most
from exporter.problem.task import Task
from exporter.prove.counting import Counting
from exporter.prove.exhaustive import FEW, MOST, exhaust, search, wrong_row
from exporter.prove.forms import Comparators, Form, Forms
from exporter.prove.graph import NotProvedError, input_length, run
from exporter.prove.scalars import Order, Scenario
from exporter.prove.zero_one import zero_one

SLACK = Fraction(1, 1 << 40)  # weights of a mean are floats
PART = 1 << 18  # grid values that are evaluated at once
Parts = Callable[[str, int], Iterable[int]]  # (method, how many parts) -> those still to do
BATCH = "a vector is treated alike in every batch: the graph is read for one vector"
STORED = "weights are read as the exact numbers that are stored"


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


def digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def prove(path: Path, parts: Parts = lambda method, n: range(n)) -> Verdict:
    """A proof, a counterexample that was run in onnxruntime, or the reason why there is neither."""
    load(path)  # refuses what is no valid file
    model = onnx.load(path, load_external_data=False)
    try:
        about = decode(model)
        if about.get("failure_bound"):
            bound = f"at most {about['failure_bound']:.3g} of its inputs or seeds fail"
            reason = f"{about['construction']} is not exact: {bound}, and no method proves such a bound"
            return Verdict("not proved", reason)
        input_length(model)
        session = Session(path)
        claim = _Claim.of(path, about, session)
    except (NotProvedError, UserError) as error:
        return Verdict("not proved", str(error))
    total = (claim.grid.cells + 1) ** session.d
    found = (
        _first_run(claim, session)
        or (_run(claim, session, parts, total) if total <= FEW else None)
        or _searched(claim, session)
    )
    if found:
        return found
    reasons = []
    for name, method in (("zero-one", _by_zero_one), ("counting", _by_counting)):
        try:
            return method(model, claim, session, parts)
        except NotProvedError as error:
            reasons.append(f"{name}: {error}")
    if total <= MOST and (verdict := _run(claim, session, parts, total)):
        return verdict
    many = f"{claim.grid.cells + 1}^{session.d} inputs are more than 2^25 (fewer --bits make fewer)"
    many = "the file is said to take all numbers" if claim.free else many
    return Verdict("not proved", "; ".join([*reasons, f"exhaustive: {many}"]))


@dataclass(frozen=True)
class _Claim:
    """What a file says that it computes, and on which data."""

    task: Task
    grid: Grid
    allowed: float
    free: bool  # every number, not those of a grid alone

    @staticmethod
    def of(path: Path, about: dict[str, Any], session: Session) -> _Claim:
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
        return _Claim(task, grid, min(float(about.get("grid_error") or 0), most), without_grid(about))

    @property
    def wanted(self) -> list[dict[int, Fraction]]:
        """The weight of every rank, for each output; a rank may be listed twice."""
        found: list[dict[int, Fraction]] = []
        for output in self.task.outputs:
            found.append({})
            for rank, weight in zip(output.ranks, output.weights, strict=True):
                found[-1][rank] = found[-1].get(rank, Fraction(0)) + Fraction(weight)
        return found

    @property
    def text(self) -> str:
        def one(weights: dict[int, Fraction]) -> str:
            return " + ".join(f"{'' if w == 1 else f'{w} '}x({r})" for r, w in weights.items())

        listed = ", ".join(one(w) for w in self.wanted[:3])
        more = f", ... ({len(self.wanted)} outputs)" if len(self.wanted) > 3 else ""
        values = f"the {self.grid.cells + 1} grid values of [{self.grid.lo:g}, {self.grid.hi:g}]"
        where = "all numbers" if self.free else values
        return f"y = {listed}{more} of {self.task.d} numbers, for all inputs from {where}; x(k) is the k-th smallest"

    def refuted(self, session: Session, x: npt.NDArray[Any]) -> Verdict:
        got, truth = session.run(x[None])[0].tolist(), self.task.answers(x[None])[0].tolist()
        at = next((i for i, (a, b) in enumerate(zip(got, truth, strict=False)) if a != b), 0)
        shown = f"output {at} is {got[at]!r} where numpy gives {truth[at]!r}"
        return Verdict("refuted", shown, "a run in onnxruntime", str(session.dtype), (), [float(v) for v in x])


def _first_run(claim: _Claim, session: Session) -> Verdict | None:
    """A verdict if a few vectors in one run have wrong answers, or an output of another shape than [N, p]."""
    units = np.random.default_rng(0).integers(0, claim.grid.cells + 1, (session.batch or 5, session.d))
    x = claim.grid.values(units).astype(session.dtype)
    try:
        shape = np.shape(session.session.run(None, {session.input: x})[0])
        wrong = wrong_row(session, claim.task, x, claim.allowed)
        if wrong is not None and wrong_row(session, claim.task, wrong[None], claim.allowed) is not None:
            return claim.refuted(session, wrong)
    except Exception as error:
        return Verdict("not proved", f"onnxruntime does not run {len(x)} vectors at once: {str(error).splitlines()[0]}")
    if wrong is not None or shape != (len(x), len(claim.task.outputs)):
        return Verdict("not proved", f"{len(x)} vectors in one run have other answers than each alone")
    return None


def _searched(claim: _Claim, session: Session) -> Verdict | None:
    """A verdict if an input of a search has a wrong answer."""
    found = search(session, claim.task, claim.grid, claim.allowed)
    if found is None:
        return None
    if wrong_row(session, claim.task, found[None], claim.allowed) is None:
        return Verdict("not proved", "a vector in a large batch has another answer than alone")
    return claim.refuted(session, found)


def _run(claim: _Claim, session: Session, parts: Parts, total: int) -> Verdict | None:
    if claim.free:
        return None
    found = exhaust(session, claim.task, claim.grid, claim.allowed, lambda n: parts("exhaustive", n))
    if found is not None:
        return claim.refuted(session, found)
    arithmetic = f"{session.dtype} as onnxruntime computes on this machine"
    if claim.task.may_round:
        arithmetic += f"; the weighted sums are within {at_most(2 * claim.allowed)} of numpy's"
    method = f"exhaustive: all {total} inputs were run"
    return Verdict("proved", claim.text, method, arithmetic, ("onnxruntime gives the same answers in every batch",))


def _by_zero_one(model: onnx.ModelProto, claim: _Claim, session: Session, parts: Parts) -> Verdict:
    low, step = Fraction(claim.grid.low), Fraction(claim.grid.step)
    domain = Comparators() if claim.free else Comparators(low, low + claim.grid.cells * step)
    outputs = [_ordered(domain.forms, code) for code in run(model, domain)]
    ranks = _probed(domain.forms, session.d)
    wanted: dict[int, int] = {}
    for (terms, constant), weights in zip(outputs, claim.wanted, strict=True):
        found: dict[int, Fraction] = {}
        for w, c in terms:
            found[ranks[w]] = found.get(ranks[w], Fraction(0)) + c
        if constant or found != weights:
            raise NotProvedError("the outputs are not the weighted sums of ranks that the file claims")
        wanted |= {w: ranks[w] for w, _ in terms}
    tried, wrong = zero_one(domain.forms.wires, wanted, session.d)
    if wrong is not None:
        ends = np.array([0, claim.grid.cells])
        x = claim.grid.values(ends[wrong][None]).astype(session.dtype)
        if wrong_row(session, claim.task, x, claim.allowed) is None:
            raise NotProvedError(
                "an input of zeros and ones has the answer of another rank, which the output does not show"
            )
        return claim.refuted(session, x[0])
    comparators = sum(w.kind in ("max", "min") for w in domain.forms.wires)
    method = f"zero-one: {comparators} maxima and minima read off the graph, {tried} inputs of zeros and ones tried"
    return _proved(model, claim, session, method)


def _ordered(forms: Forms, code: int) -> Form:
    """A form, where the sum of two wires with one weight is that of the smaller and the larger one."""
    terms, constant = forms.forms[code]
    if len(terms) != 2 or terms[0][1] != terms[1][1]:
        return terms, constant
    (a, weight), (b, _) = terms
    return tuple((forms.extremum(a, b, largest), weight) for largest in (False, True)), constant


def _probed(forms: Forms, d: int) -> dict[int, int]:
    """The rank that every wire has on one input of distinct entries."""
    order = np.random.default_rng(0).permutation(d) + 1
    values: list[int] = []
    for wire in forms.wires:
        if wire.kind == "entry":
            values.append(int(order[wire.a]))
        else:
            a, b = values[wire.a], values[wire.b]
            values.append(max(a, b) if wire.kind == "max" else min(a, b) if wire.kind == "min" else max(a - b, 0))
    return dict(enumerate(values))


def _by_counting(model: onnx.ModelProto, claim: _Claim, session: Session, parts: Parts) -> Verdict:
    if claim.free:
        raise NotProvedError("a file for all numbers has no grid to count on")
    cells, low = claim.grid.cells, Fraction(claim.grid.low)
    n = -(-(cells + 1) // PART)
    bounds = [(cells + 1) * i // n for i in range(n + 1)]
    ranks_only = False
    for part in parts("counting", n):
        at = Scenario(session.d, cells, Fraction(claim.grid.step), bounds[part], bounds[part + 1])
        domain = Counting(at, low)
        found = [domain.scalar_of(int(code)) for code in run(model, domain)]
        for scalar, weights in zip(found, claim.wanted, strict=True):
            wrong = at.holds(scalar, weights, low)
            if wrong:
                raise NotProvedError(wrong)
        ranks_only = all(isinstance(part, Order) for s in found for part in s.parts)
        if ranks_only:
            break
    pairs = "counting: each entry is compared once with every other, ties by index; each output selects its ranks"
    counts = f"counting: each search depends on the entry of its rank alone, and is run at all {cells + 1} grid values"
    return _proved(model, claim, session, pairs if ranks_only else counts)


def _proved(model: onnx.ModelProto, claim: _Claim, session: Session, method: str) -> Verdict:
    """The verdict on a file that was read: in its dtype if `exporter.check` proves that nothing rounds."""
    rounding = check(model)
    if claim.free and not rounding.proven:
        raise NotProvedError(f"the file is said to take all numbers, and does more than compare them ({rounding})")
    if not rounding.proven:
        silent = f"no operation of the graph rounds in {session.dtype} on grid inputs"
        return Verdict("proved", f"{claim.text}, in real arithmetic", method, "real numbers", (STORED, BATCH, silent))
    if claim.free:
        last = "values are compared and moved, sums of ranks are the last step"
        return Verdict("proved", claim.text, method, f"{session.dtype}: {last}", (STORED, BATCH))
    last = "it is proven that no operation rounds on grid inputs"
    if rounding.bound:
        last = f"it is proven that only the last sum rounds, by {at_most(rounding.bound)} at most"
    return Verdict("proved", claim.text, method, f"{session.dtype}: {last}", (STORED,))
