"""Prove that a file computes its order statistic, or refute it: the methods in the order they are tried.

    exhaustive    every input of the grid, in onnxruntime: up to 2^25 inputs
    zero-one      files that only compare and move: the 0-1 principle, component by component
    counting      files that count: a search is a function of one entry, evaluated at every grid value; all pairs give ranks
    search        inputs that may refute the file, in onnxruntime

A proof by `zero-one` or `counting` reads the stored weights as exact rational numbers.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import onnx

from exporter.check import check
from exporter.errors import UserError
from exporter.formats.model_file import decode, load
from exporter.formats.session import Session
from exporter.problem.grid import at_most
from exporter.progress import Progress
from exporter.prove.claim import Claim, Verdict
from exporter.prove.counting import Counting
from exporter.prove.exhaustive import FEW, MOST, exhaust, first_run, search
from exporter.prove.forms import Comparators, Form, Forms, summed
from exporter.prove.graph import NotProvedError, input_length, run
from exporter.prove.scalars import Scenario
from exporter.prove.zero_one import zero_one

PART = 1 << 18  # grid values that are evaluated at once
BATCH = "a vector is treated alike in every batch: the graph is read for one vector"
STORED = "weights are read as the exact numbers that are stored"


def prove(path: Path) -> Verdict:
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
        claim = Claim.of(Session(path), about)
    except (NotProvedError, UserError) as error:
        return Verdict("not proved", str(error))
    total = (claim.grid.cells + 1) ** claim.task.d
    if found := first_run(claim) or (exhaust(claim) if total <= FEW else None) or search(claim):
        return found
    reasons = []
    for name, method in (("zero-one", _by_zero_one), ("counting", _by_counting)):
        try:
            return method(model, claim)
        except NotProvedError as error:
            reasons.append(f"{name}: {error}")
    if total <= MOST and (found := exhaust(claim)):
        return found
    many = f"{claim.grid.cells + 1}^{claim.task.d} inputs are more than 2^25 (fewer --bits make fewer)"
    many = "the file is said to take all numbers" if claim.free else many
    return Verdict("not proved", "; ".join([*reasons, f"exhaustive: {many}"]))


def _by_zero_one(model: onnx.ModelProto, claim: Claim) -> Verdict:
    low, step, d = Fraction(claim.grid.low), Fraction(claim.grid.step), claim.task.d
    domain = Comparators() if claim.free else Comparators(low, low + claim.grid.cells * step)
    outputs = [_ordered(domain.forms, code) for code in run(model, domain)]
    ranks = _probed(domain.forms, d)
    wanted: dict[int, int] = {}
    for (terms, constant), weights in zip(outputs, claim.wanted, strict=True):
        if constant or summed((ranks[w], c) for w, c in terms) != weights:
            raise NotProvedError("the outputs are not the weighted sums of ranks that the file claims")
        wanted |= {w: ranks[w] for w, _ in terms}
    tried, wrong = zero_one(domain.forms.wires, wanted, d)
    if wrong is not None:
        x = claim.data(np.array([0, claim.grid.cells])[wrong])
        if claim.wrong(x[None]) is None:
            raise NotProvedError(
                "an input of zeros and ones has the answer of another rank, which the output does not show"
            )
        return claim.refuted(x)
    comparators = sum(w.kind in ("max", "min") for w in domain.forms.wires)
    method = f"zero-one: {comparators} maxima and minima read off the graph, {tried} inputs of zeros and ones tried"
    return _proved(model, claim, method)


def _ordered(forms: Forms, code: int) -> Form:
    """A form, where the sum of two wires with one weight is that of the smaller and the larger one."""
    terms, constant = forms.forms[code]
    if len(terms) != 2 or terms[0][1] != terms[1][1]:
        return terms, constant
    (a, weight), (b, _) = terms
    return tuple((forms.extremum(a, b, largest), weight) for largest in (False, True)), constant


def _probed(forms: Forms, d: int) -> list[int]:
    """The rank that every wire has on one input of distinct entries."""
    order = np.random.default_rng(0).permutation(d) + 1
    values: list[int] = []
    for wire in forms.wires:
        if wire.kind == "entry":
            values.append(int(order[wire.a]))
        else:
            a, b = values[wire.a], values[wire.b]
            values.append(max(a, b) if wire.kind == "max" else min(a, b) if wire.kind == "min" else max(a - b, 0))
    return values


def _by_counting(model: onnx.ModelProto, claim: Claim) -> Verdict:
    if claim.free:
        raise NotProvedError("a file for all numbers has no grid to count on")
    cells, low = claim.grid.cells, Fraction(claim.grid.low)
    n = -(-(cells + 1) // PART)
    bounds = [(cells + 1) * i // n for i in range(n + 1)]
    for part in Progress(range(n), "proving (counting)", "part"):
        at = Scenario(claim.task.d, cells, Fraction(claim.grid.step), bounds[part], bounds[part + 1])
        domain = Counting(at, low)
        found = [domain.scalar_of(int(code)) for code in run(model, domain)]
        for scalar, weights in zip(found, claim.wanted, strict=True):
            wrong = at.holds(scalar, weights, low)
            if wrong:
                raise NotProvedError(wrong)
        if all(scalar.by_rank for scalar in found):
            pairs = "each entry is compared once with every other, ties by index; each output selects its ranks"
            return _proved(model, claim, f"counting: {pairs}")
    searches = f"each search depends on the entry of its rank alone, and is run at all {cells + 1} grid values"
    return _proved(model, claim, f"counting: {searches}")


def _proved(model: onnx.ModelProto, claim: Claim, method: str) -> Verdict:
    """The verdict on a file that was read: in its dtype if `exporter.check` proves that nothing rounds."""
    rounding, dtype = check(model), claim.session.dtype
    if claim.free and not rounding.proven:
        raise NotProvedError(f"the file is said to take all numbers, and does more than compare them ({rounding})")
    if not rounding.proven:
        silent = f"no operation of the graph rounds in {dtype} on grid inputs"
        return Verdict("proved", f"{claim.text}, in real arithmetic", method, "real numbers", (STORED, BATCH, silent))
    if claim.free:
        last = "values are compared and moved, sums of ranks are the last step"
        return Verdict("proved", claim.text, method, f"{dtype}: {last}", (STORED, BATCH))
    last = "it is proven that no operation rounds on grid inputs"
    if rounding.bound:
        last = f"it is proven that only the last sum rounds, by {at_most(rounding.bound)} at most"
    return Verdict("proved", claim.text, method, f"{dtype}: {last}", (STORED,))
