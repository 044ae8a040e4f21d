"""depth3: what the theorem promises of its size and accuracy."""

from __future__ import annotations

import numpy as np
import pytest

from exporter.build import build, to_onnx
from exporter.errors import ContractError, UserError
from exporter.problem import task as tasks
from exporter.problem.spec import Spec
from tests.running import run

SIZES = [1, 2, 3, 5, 9, 25, 64, 100]


@pytest.mark.parametrize(
    ("d", "ranks"), [*((d, r) for d in SIZES for r in ("first", "middle", "all")), (2048, "middle")]
)
def test_depth_and_width(d: int, ranks: str) -> None:
    middle = [(d + 1) // 2, d // 2 + 1]
    chosen = {"first": [1], "middle": middle, "all": list(range(1, d + 1))}[ranks]
    counted = build(Spec(tasks.rank(d, chosen), "depth3", inputs="grid")).accounting
    p = len(set(chosen))
    assert counted.depth == 3
    assert counted.width <= max(2 * d * d + 2 * d + 2 * p, 4 * p * d)
    assert counted.max_weight == (2**24 if d > 1 else 1)
    assert counted.widths == (2 * d * d + d, 4 * p * d)


def test_sorting_has_the_width_of_the_proposition() -> None:
    """Proposition B.1: width 4 d^2, for d >= 2 (at d = 1 the carried input needs max(4, 6))."""
    for d in (2, 3, 8, 30):
        assert build(Spec(tasks.sort(d), "depth3")).accounting.width == 4 * d * d


@pytest.mark.parametrize(("d", "epsilon"), [(2, 1e-3), (3, 1e-2), (5, 1e-2), (10, 0.05), (25, 0.5)])
@pytest.mark.parametrize("profile", ["auto", "dense", "structured", "fused"])
def test_mean_squared_error_of_the_theorem(d: int, epsilon: float, profile: str) -> None:
    """δ = ε/(12 d^4) keeps the mean squared error on uniform inputs below ε, and the weights below 12 d^4/ε."""
    task = tasks.rank(d, [(d + 1) // 2])
    model = build(Spec(task, "depth3", epsilon=epsilon, profile=profile))
    assert not model.exact_on_grid
    assert model.accounting.depth == 3
    assert model.accounting.max_weight <= 12 * d**4 / epsilon * (1 + 1e-12)
    x = np.random.default_rng(1).random((4000, d)).astype(model.dtype)
    got = run(to_onnx(model), x)
    assert ((got - task.answers(x)) ** 2).mean() <= epsilon


def test_mean_squared_error_at_the_edge_of_float64() -> None:
    """Slopes just below 2^53 still work; the smallest ε that is named in a refusal is one of them."""
    d = 100
    with pytest.raises(ContractError, match="smallest ε that works is") as caught:
        build(Spec(tasks.median(d, "lower"), "depth3", epsilon=1e-8))
    smallest = float(str(caught.value).split("smallest ε that works is ")[1].split(";")[0])
    model = build(Spec(tasks.median(d, "lower"), "depth3", epsilon=smallest * 1.01))
    assert model.dtype == "float64"
    x = np.random.default_rng(2).random((300, d))
    error = run(to_onnx(model), x)[:, 0] - np.sort(x, axis=1)[:, d // 2 - 1]
    assert (error**2).mean() <= 1e-6


def test_float32_is_refused_where_its_mantissa_ends() -> None:
    with pytest.raises(ContractError, match="float32 can still tell"):
        build(Spec(tasks.median(10), "depth3", epsilon=1e-3, dtype="float32"))
    assert build(Spec(tasks.median(10), "depth3", epsilon=1e-3)).dtype == "float64"


@pytest.mark.parametrize("epsilon", [0, -1, 1.5, float("nan")])
def test_epsilon_out_of_range(epsilon: float) -> None:
    with pytest.raises(UserError, match="epsilon must be"):
        build(Spec(tasks.median(3), "depth3", epsilon=epsilon))


def test_epsilon_is_of_depth3_alone() -> None:
    with pytest.raises(UserError, match="batcher does not use epsilon"):
        build(Spec(tasks.median(3), "batcher", epsilon=0.1))


def test_the_tie_rule_is_needed_on_a_grid() -> None:
    """The theorem's own network adds up equal entries; the grid form does not."""
    x = np.array([[0.25, 0.5, 0.5]])
    plain = build(Spec(tasks.median(3), "depth3", epsilon=12 * 81 / 2.0**20))
    assert run(to_onnx(plain), x)[0, 0] == 1.0
    assert run(to_onnx(build(Spec(tasks.median(3), "depth3", bits=8))), x)[0, 0] == 0.5


@pytest.mark.parametrize("d", [2, 3, 9, 10, 25, 32, 33])
def test_fused_pairs_of_few_entries(d: int) -> None:
    """As a list of pairs up to 32 entries, in few operations; right on ties, on neighbours of the grid and beside it."""
    model = build(Spec(tasks.median(d), "depth3", profile="fused"))
    proto = to_onnx(model)
    assert model.dtype == "float32"
    assert len(proto.graph.node) <= (11 if d % 2 else 17) + 10 * (d > 32)
    rng, cells = np.random.default_rng(d), 2**24
    few = rng.integers(0, 3, (300, d))
    for x in (rng.integers(0, cells, (300, d), endpoint=True) / cells, few / 2, few / cells, 1 - few / cells):
        assert np.array_equal(run(proto, x.astype(np.float32))[:, 0], np.median(x.astype(np.float32), axis=1))
    off = rng.random((300, d), dtype=np.float32)
    assert np.abs(run(proto, off)[:, 0] - np.median(off.astype(np.float64), axis=1)).max() <= 0.75 / cells
