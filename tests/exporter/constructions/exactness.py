"""Exported models against numpy, bit for bit: shared by the tests of the constructions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from exporter.build import build, to_onnx
from exporter.problem.families import UNITS
from exporter.problem.grid import Grid
from exporter.problem.spec import Spec
from exporter.problem.task import Task
from tests.running import run

Array = npt.NDArray[Any]


def answers(construction: str, task: Task, x: Array, grid: Grid | None = None, **options: Any) -> Array:
    """What the model that the exporter would write returns for data x, through onnxruntime."""
    model = build(Spec(task, construction, **options).on(grid or Grid()))
    assert model.exact_on_grid or task.may_round
    return run(to_onnx(model), x)


def data(family: str, n: int, d: int, grid: Grid | None = None, dtype: Any = np.float32) -> Array:
    """n vectors of a family on the grid, as data values."""
    grid = grid or Grid()
    return grid.values(UNITS[family](np.random.default_rng(d), n, d, grid.cells)).astype(dtype)


def all_inputs(d: int, cells: int) -> Array:
    """Every vector of d grid numbers 0..cells."""
    return np.stack(np.meshgrid(*[np.arange(cells + 1)] * d, indexing="ij"), axis=-1).reshape(-1, d)


def numpy_quantile(x: Array, q: float, method: Any) -> Array:
    return np.asarray(np.quantile(x.astype(np.float64), q, axis=1, method=method))
