"""The counting that proves answers, and the bound of a network's own number. TopK, or a fixed claim, stands in for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from onnx import TensorProto, helper, numpy_helper

from exporter.build import build, to_onnx
from exporter.problem.spec import Spec
from exporter.problem.task import median
from service.statistics import counting
from service.statistics.counting import with_counting
from service.statistics.fed_grid import FedGrid
from service.statistics.layout import Target, median_target
from service.statistics.padding import padding_for
from service.statistics.solve import ModelCall, Models, Use, solve
from service.statistics.statistic import Statistic
from service.statistics.vectors import Vectors
from tests.service.statistics.alone import run

F32 = FedGrid(24, 0.0, 1.0, np.dtype(np.float32))
F64 = FedGrid(40, 0.0, 1.0, np.dtype(np.float64))
SHIFTED = FedGrid(16, -1.0, 1.0, np.dtype(np.float32))
MAX = np.finfo(np.float64).max

finite = st.floats(allow_nan=False, allow_infinity=False, width=64)
matrices = arrays(np.float64, array_shapes(min_dims=2, max_dims=2, max_side=9), elements=finite)


@cache
def session(n: int, grid: FedGrid, target: Target, claim: float | None = None) -> Any:
    """The served graph of a network that returns `target` of n numbers, or the same claim for all."""
    kind = helper.np_dtype_to_tensor_dtype(grid.dtype)
    mix = np.zeros((n, 1), grid.dtype)
    mix[target.low - 1] += 1 - target.weight
    mix[target.high - 1] += target.weight
    constants = {"k": np.array([n]), "mix": mix * (claim is None), "claim": np.array(claim or 0.0, grid.dtype)}
    nodes = [
        helper.make_node("TopK", ["x", "k"], ["sorted", "order"], axis=1, largest=0),
        helper.make_node("MatMul", ["sorted", "mix"], ["answer"]),
        helper.make_node("Add", ["answer", "claim"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, kind, ["batch_size", size]) for name, size in (("x", n), ("y", 1)))
    stored = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "sort", [x], [y], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    served = with_counting(model, n, (target,), grid)
    return ort.InferenceSession(served.SerializeToString(), providers=["CPUExecutionProvider"])


def proven(rows: np.ndarray, target: Target, grid: FedGrid, claim: float | None = None) -> np.ndarray:
    """Both ranks of each row, NaN where counting refutes the claim."""
    counted = session(rows.shape[1], grid, target, claim).run(None, {"x": rows})[0]
    return ends(counted, target, rows.shape[1], grid)


def ends(counted: np.ndarray, target: Target, d: int, grid: FedGrid) -> np.ndarray:
    """Both ranks of each row, read of all rows at once and of each alone; NaN where they are not proven."""
    low, high, right = counting.proven(counted.T, target, d, grid)
    for i, row in enumerate(counted.tolist()):
        alone = counting.proven(row, target, d, grid)
        assert alone[2] == right[i]
        assert not right[i] or alone[:2] == (low[i], high[i])
    return np.where(right, [low, high], np.nan).T


@dataclass(frozen=True)
class Sorting(Models):
    """TopK in place of a network for the median of d numbers."""

    d: int
    grid: FedGrid
    name: str = "sorting"

    @property
    def columns(self) -> tuple[Target, ...]:
        return (median_target(self.d),)

    @property
    def counted(self) -> list[slice]:
        return [slice(0, counting.width(self.columns[0]))]

    def choose(self, n: int, target: Target) -> Use:
        found = padding_for(self.columns, self.d, n, target)
        assert found is not None
        return Use(self, found)

    def instead(self, n: int, target: Target, failed: Any) -> None:
        return None

    def run(self, call: ModelCall) -> Any:
        units = (call.rows.astype(np.float64) - self.grid.low) / self.grid.unit
        assert np.array_equal(units, np.rint(units)), "rows are grid numbers"
        assert 0 <= units.min() <= units.max() <= 2**self.grid.bits
        return session(self.d, self.grid, self.columns[0]).run(None, {"x": call.rows})[0]


def bounded(values: np.ndarray, grid: FedGrid) -> tuple[np.ndarray, np.ndarray]:
    """The number of the network for each row, and its bound."""
    model = Sorting(values.shape[1], grid)
    answer = run(solve(Vectors.matrix(values), [Statistic()], model, grid=True), model.run)
    assert answer.bounds is not None
    return answer.values[0], answer.bounds[0]


def numpy_median(values: np.ndarray) -> np.ndarray:
    """numpy.median, with the overflow of its sum of two huge numbers repaired."""
    with np.errstate(over="ignore"):
        answers = np.median(values, axis=1)
    for i in np.flatnonzero(~np.isfinite(answers)):
        ordered = np.sort(values[i])
        answers[i] = ordered[(len(ordered) - 1) // 2] * 0.5 + ordered[len(ordered) // 2] * 0.5
    return answers


@pytest.mark.parametrize("grid", [F32, F64, SHIFTED], ids=["float32", "float64", "shifted"])
@settings(max_examples=300, deadline=None)
@example(values=np.array([[MAX, -MAX, 0.0, 1.0]]))
@example(values=np.array([[MAX, MAX]]))
@example(values=np.array([[5e-324, 0.0, -5e-324]]))
@example(values=np.array([[1e-310, 3e-310, 2e-310, 0.0]]))
@example(values=np.array([[0.0, -0.0, -0.0]]))
@example(values=np.array([[-0.0, 0.0], [1.0, -1.0]]))
@example(values=np.array([[7.25, 7.25, 7.25]]))
@example(values=np.array([[1e300, 1.0, 2.0]]))
@given(values=matrices)
def test_the_bound_of_the_networks_number_holds(grid: FedGrid, values: np.ndarray) -> None:
    answers, bounds = bounded(values, grid)
    assert ((values.min(axis=1) <= answers) & (answers <= values.max(axis=1))).all()
    assert (
        np.abs(answers / 4 - numpy_median(values) / 4) <= bounds / 4 * (1 + 1e-15) + 1e-323
    ).all()  # a quarter of the least floats rounds


def test_numbers_that_the_grid_holds_have_no_error() -> None:
    rng = np.random.default_rng(0)
    for values in (rng.integers(-(2**22), 2**22, (50, 9)), rng.random((50, 9)).astype("f4") / 4 + 1):
        answers, bounds = bounded(values, F32)
        assert np.array_equal(answers, np.median(values, axis=1))
        assert not bounds.any()


def test_the_bound_is_relative_for_ordinary_numbers() -> None:
    values = np.random.default_rng(1).random((20, 101)) + 1e-3
    _, bounds = bounded(values, F32)
    assert (bounds > 0).all()
    assert bounds.max() < 2.0**-17


@pytest.mark.parametrize("grid", [F32, SHIFTED], ids=["from zero", "shifted"])
@pytest.mark.parametrize("n", [9, 10])
def test_counting_refutes_every_wrong_answer(n: int, grid: FedGrid) -> None:
    rng = np.random.default_rng(n)
    target = median_target(n)
    units = rng.integers(0, 6, (200, n))
    rows = (units * grid.unit + grid.low).astype(grid.dtype)
    ordered = np.sort(units, axis=1)
    truth = (ordered[:, target.low - 1] + ordered[:, target.high - 1]) / 2
    for claim in np.arange(-1, 7.5, 0.5):
        found = proven(rows, target, grid, claim * grid.unit + grid.low)
        accepted = ~np.isnan(found[:, 0])
        assert accepted[truth == claim].all()
        # a mean may have been rounded to the dtype; whatever is accepted, the two ends found are the true ones
        assert (np.abs(truth - claim)[accepted] * grid.unit <= (0 if target.single else grid.tolerance)).all()
        units_found = (found[accepted] - grid.low) / grid.unit
        assert np.array_equal(units_found, ordered[accepted][:, [target.low - 1, target.high - 1]])


def test_nan_from_a_model_is_no_answer() -> None:
    for rows, target in (
        (np.zeros((1, 3), np.float32), Target.rank(2)),
        (np.eye(4, dtype=np.float32), Target(2, 3, 0.5)),
    ):
        assert np.isnan(proven(rows, target, F32, np.nan)).all()


@pytest.mark.parametrize("construction", ["radix", "batcher", "depth3", "depth5", "compact", "linear18", "linear46"])
@pytest.mark.parametrize("d", [24, 25])
def test_counting_proves_the_answers_of_every_construction(construction: str, d: int) -> None:
    optimize_for: Literal["latency", "throughput"] = "latency" if construction == "radix" else "throughput"
    model = to_onnx(build(Spec(median(d), construction, profile="fused", optimize_for=optimize_for)))
    target = median_target(d)
    grid = F32 if model.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT else F64
    session = ort.InferenceSession(with_counting(model, d, (target,), grid).SerializeToString())
    rows = (np.random.default_rng(d).integers(0, 2**24, (40, d)) / 2.0**24).astype(grid.dtype)
    told = session.run(None, {"x": rows})[0]
    assert np.array_equal(told, np.concatenate([session.run(None, {"x": row[None]})[0] for row in rows]))
    assert np.array_equal(ends(told, target, d, grid), np.sort(rows, axis=1)[:, [target.low - 1, target.high - 1]])
