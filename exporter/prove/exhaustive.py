"""Run a file in onnxruntime: on every input where they can be counted, or on inputs that are likely to refute it."""

from __future__ import annotations

import numpy as np

from exporter.problem.families import UNITS
from exporter.problem.grid import at_most
from exporter.progress import Progress
from exporter.prove.claim import Claim, Verdict

FEW, MOST = 1 << 21, 1 << 25  # inputs: tried before any other method; tried at all
PART = 1 << 18


def first_run(claim: Claim) -> Verdict | None:
    """A verdict if a few vectors in one run have wrong answers, or an output of another shape than [N, p]."""
    session = claim.session
    x = claim.data(np.random.default_rng(0).integers(0, claim.grid.cells + 1, (session.batch or 5, session.d)))
    try:
        shape = np.shape(session.session.run(None, {session.input: x})[0])
        wrong = claim.wrong(x)
        if wrong is not None and claim.wrong(wrong[None]) is not None:
            return claim.refuted(wrong)
    except Exception as error:
        return Verdict("not proved", f"onnxruntime does not run {len(x)} vectors at once: {str(error).splitlines()[0]}")
    if wrong is not None or shape != (len(x), len(claim.task.outputs)):
        return Verdict("not proved", f"{len(x)} vectors in one run have other answers than each alone")
    return None


def search(claim: Claim) -> Verdict | None:
    """A verdict if an input has a wrong answer: families of `verify`, and inputs of two values with every count of ones."""
    rng, d, cells = np.random.default_rng(0), claim.session.d, claim.grid.cells
    n = max(2, min(256, 2**14 // d))
    drawn = [draw(rng, n, d, cells) for draw in UNITS.values()]
    ranks = np.array(claim.task.ranks)
    counts = np.unique(np.clip(np.concatenate([d - ranks, d - ranks + 1, rng.integers(0, d + 1, n)]), 0, d))
    ones = rng.permuted(np.arange(d) < np.repeat(counts, 4)[: 4 * n, None], axis=1)
    low = rng.integers(0, cells, (len(ones), 1))
    drawn += [np.where(ones, cells, 0), np.where(ones, low + 1, low), np.where(ones, cells, low)]
    for units in drawn:
        found = claim.wrong(claim.data(units))
        if found is not None and claim.wrong(found[None]) is None:
            return Verdict("not proved", "a vector in a large batch has another answer than alone")
        if found is not None:
            return claim.refuted(found)
    return None


def exhaust(claim: Claim) -> Verdict | None:
    """The verdict of running every input of the grid; None for a file of all numbers."""
    if claim.free:
        return None
    base, d = claim.grid.cells + 1, claim.session.d
    total, powers = base**d, base ** np.arange(d, dtype=np.int64)[::-1]
    for start in Progress(range(0, total, PART), "proving (exhaustive)", "part"):
        index = np.arange(start, min(start + PART, total), dtype=np.int64)
        found = claim.wrong(claim.data(index[:, None] // powers % base))
        if found is not None:
            return claim.refuted(found)
    arithmetic = f"{claim.session.dtype} as onnxruntime computes on this machine"
    if claim.task.may_round:
        arithmetic += f"; the weighted sums are within {at_most(2 * claim.allowed)} of numpy's"
    method = f"exhaustive: all {total} inputs were run"
    return Verdict("proved", claim.text, method, arithmetic, ("onnxruntime gives the same answers in every batch",))
