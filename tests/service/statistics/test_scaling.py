"""Scaling, its error bound, and the counting that proves answers. TopK, or a fixed claim, stands in for the network."""

from __future__ import annotations

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
from exporter.options import Options
from exporter.problem.task import median
from service.statistics import counting
from service.statistics.counting import with_counting
from service.statistics.layout import Target, median_target
from service.statistics.scaling import FedGrid, NotFiniteError, Scaled, scale

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
    found = counting.proven(counted, target, d, grid)
    return np.where(found.right, [found.low, found.high], np.nan).T


def solve(values: np.ndarray, grid: FedGrid) -> tuple[Scaled, np.ndarray, np.ndarray]:
    """Scale, sort in place of a network, count, scale back."""
    n = values.shape[1]
    target = median_target(n)
    scaled = scale(values, 0, n, grid)
    found = proven(scaled.rows, target, grid)
    return scaled, found, scaled.back(found[:, 0], found[:, 1], target.weight)


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
def test_the_bound_holds(grid: FedGrid, values: np.ndarray) -> None:
    scaled, found, answers = solve(values, grid)
    assert not np.isnan(found).any()
    units = (scaled.rows.astype(np.float64) - grid.low) / grid.unit
    assert np.array_equal(units, np.rint(units))
    assert units.min() >= 0
    assert units.max() <= 2**grid.bits
    reference = numpy_median(values)
    assert ((values.min(axis=1) <= answers) & (answers <= values.max(axis=1))).all()
    with np.errstate(over="ignore"):
        assert (np.abs(answers / 4 - reference / 4) <= scaled.bounds(False) / 4 * (1 + 1e-15) + 5e-324).all()


def test_data_on_a_power_of_two_grid_comes_back_unchanged() -> None:
    rng = np.random.default_rng(0)
    for values in (
        rng.integers(0, 2**24, (50, 9), endpoint=True) / 2.0**24,
        rng.integers(-(2**22), 2**22, (50, 9)) * 1.0,
    ):
        assert np.array_equal(solve(values, F32)[2], np.median(values, axis=1))


def test_half_a_step_is_all_the_bound_says_for_ordinary_numbers() -> None:
    scaled, _, _ = solve(np.random.default_rng(1).random((20, 101)), F32)
    assert scaled.bounds(False).max() < 2.0**-25 * 1.0001


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_located(bad: float) -> None:
    values = np.ones((3, 4))
    values[2, 1] = bad
    with pytest.raises(NotFiniteError) as caught:
        solve(values, F32)
    assert (caught.value.row, caught.value.index) == (2, 1)


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
    tune: Literal["latency", "throughput"] = "latency" if construction == "radix" else "throughput"
    model = to_onnx(build(median(d), Options(construction, profile="fused", tune=tune)))
    target = median_target(d)
    grid = F32 if model.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT else F64
    session = ort.InferenceSession(with_counting(model, d, (target,), grid).SerializeToString())
    rows = (np.random.default_rng(d).integers(0, 2**24, (40, d)) / 2.0**24).astype(grid.dtype)
    told = session.run(None, {"x": rows})[0]
    assert np.array_equal(told, np.concatenate([session.run(None, {"x": row[None]})[0] for row in rows]))
    assert np.array_equal(ends(told, target, d, grid), np.sort(rows, axis=1)[:, [target.low - 1, target.high - 1]])
