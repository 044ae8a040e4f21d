"""Run a file in onnxruntime: on every input where they can be counted, or on inputs that are likely to refute it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from exporter.formats.session import Session
from exporter.problem.families import UNITS
from exporter.problem.grid import Grid
from exporter.problem.task import Task

FEW, MOST = 1 << 21, 1 << 25  # inputs: tried before any other method; tried at all
PART = 1 << 18


def wrong_row(session: Session, task: Task, x: npt.NDArray[Any], allowed: float) -> npt.NDArray[Any] | None:
    """The first row whose answer is not numpy's, or not within the error that a mixture of ranks is allowed."""
    got, truth = session.run(x), task.answers(x)
    if got.shape != truth.shape:
        return np.asarray(x[0])
    same = (got == truth) | (np.isnan(got) & np.isnan(truth))
    if task.may_round:
        same |= np.abs(got.astype(np.float64) - truth) <= 2 * allowed
    bad = np.flatnonzero(~same.all(axis=1))
    return np.asarray(x[bad[0]]) if len(bad) else None


def exhaust(
    session: Session, task: Task, grid: Grid, allowed: float, parts: Callable[[int], Iterable[int]]
) -> npt.NDArray[Any] | None:
    """An input of the grid with a wrong answer, None if there is none. `parts`: how many -> those still to do."""
    base, d = grid.cells + 1, session.d
    total = base**d
    powers = base ** np.arange(d, dtype=np.int64)[::-1]
    for part in parts(-(-total // PART)):
        index = np.arange(part * PART, min((part + 1) * PART, total), dtype=np.int64)
        found = wrong_row(session, task, grid.values(index[:, None] // powers % base).astype(session.dtype), allowed)
        if found is not None:
            return found
    return None


def search(session: Session, task: Task, grid: Grid, allowed: float) -> npt.NDArray[Any] | None:
    """An input with a wrong answer, from the families of `verify` and from inputs of two values with every count of ones."""
    rng, d = np.random.default_rng(0), session.d
    n = max(2, min(256, 2**14 // d))
    drawn = [draw(rng, n, d, grid.cells) for draw in UNITS.values()]
    ranks = np.array(task.ranks)
    counts = np.unique(np.clip(np.concatenate([d - ranks, d - ranks + 1, rng.integers(0, d + 1, n)]), 0, d))
    ones = rng.permuted(np.arange(d) < np.repeat(counts, 4)[: 4 * n, None], axis=1)
    low = rng.integers(0, grid.cells, (len(ones), 1))
    drawn += [np.where(ones, grid.cells, 0), np.where(ones, low + 1, low), np.where(ones, grid.cells, low)]
    for units in drawn:
        found = wrong_row(session, task, grid.values(units).astype(session.dtype), allowed)
        if found is not None:
            return found
    return None
