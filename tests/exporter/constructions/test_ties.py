"""Equal entries: no matter where the network tells them apart or needs not, flagged by the certificate where it cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from exporter.analysis.evaluate import evaluate
from exporter.build import Built, build, to_onnx
from exporter.cli.parser import main
from exporter.constructions import CONSTRUCTIONS
from exporter.library import export
from exporter.problem import task as tasks
from exporter.problem.families import UNITS
from exporter.problem.grid import Grid
from exporter.problem.spec import Spec
from exporter.tools.describe import describe, describe_lines
from exporter.tools.verify import verify
from tests.running import run
from tests.tiers import telling

PIXELS = Grid(0, 255, 8)
LOOSE = {"failure": 1e-2}
SAMPLED: dict[str, tuple[str, dict[str, Any]]] = {
    "depth5": ("depth5", {}),
    "linear46": ("linear46", LOOSE),
    "compact 7": ("compact", {"depth": 7}),
    "compact 9": ("compact", {"depth": 9}),
    "compact 13": ("compact", {"depth": 13}),
    "compact 15": ("compact", {"depth": 15}),
    "compact 16": ("compact", {"depth": 16}),
    "linear18": ("linear18", LOOSE),
    "linear-max": ("linear-max", {}),
}


def built(case: str, d: int, grid: Grid, **options: Any) -> Built:
    name, ask = SAMPLED[case]
    task = tasks.extremum(d, "max") if "max" in name else tasks.median(d)
    return build(Spec(task, name, **ask, **options).on(grid))


def hostile(grid: Grid, d: int, n: int) -> np.ndarray:
    """Every family, and what sampling fears most: nearly all entries equal, one heavy value beside or at the median."""
    rng = np.random.default_rng(d)
    rows = [family(rng, n, d, grid.cells) for family in UNITS.values()]
    value = rng.integers(1, grid.cells, (n, 1))
    for share in (0.1, 0.45, 0.5, 0.55, 0.9):
        heavy = rng.permuted(np.arange(d) < round(share * d), axis=0)
        others = rng.integers(0, grid.cells, (n, d), endpoint=True)
        rows.append(np.where(heavy, value, others))
        rows.append(np.where(heavy, value, np.maximum(others, value)))
        rows.append(np.sort(np.where(heavy, value, np.minimum(others, value)), axis=1))
    return grid.values(np.concatenate(rows))


def wrong(model: Built, x: np.ndarray, got: np.ndarray) -> np.ndarray:
    return np.asarray((got[:, : len(model.task.outputs)] != model.task.answers(x)).any(axis=1))


def proved(model: Built, got: np.ndarray) -> np.ndarray:
    """Whether the certificate says that every rank is right."""
    ranks = np.array(model.task.ranks)
    counts = got[:, len(model.task.outputs) :].reshape(len(got), len(ranks), 2)
    return np.asarray(((counts[:, :, 0] < ranks) & (ranks <= counts[:, :, 1])).all(axis=1))


@pytest.mark.parametrize(
    ("d", "grid"),
    telling([(33, PIXELS), (64, Grid(bits=24)), (200, Grid(bits=12))], [(33, PIXELS)], ids=lambda case: f"{case[0]}"),
)
@pytest.mark.parametrize("case", SAMPLED)
def test_ties_are_no_worse_than_distinct_entries(case: str, d: int, grid: Grid) -> None:
    model = built(case, d, grid)
    assert model.ties == "exact"
    x = hostile(grid, d, 12)
    got = evaluate(model.network, x)
    assert got.min() >= grid.lo
    assert got.max() <= grid.hi
    # three standard deviations: the bound holds for every input, over the seeds
    bound = model.failure.bound * len(x)
    assert wrong(model, x, got).sum() <= bound + 3 * bound**0.5 + 1


@pytest.mark.parametrize("optimize_for", ["throughput", "latency"])
@pytest.mark.parametrize(("case", "d"), [("depth5", 65), ("linear46", 65)])
def test_fused_files_answer_as_the_network_where_it_fails(case: str, d: int, optimize_for: str) -> None:
    """What tells equal entries apart is another formula there: the same answers, the wrong ones too."""
    grid, (name, ask) = Grid(bits=6), SAMPLED[case]
    asked = ask | {"failure": 0.4, "optimize_for": optimize_for}
    model = build(Spec(tasks.median(d), name, profile="fused", **asked).on(grid))
    rng = np.random.default_rng(d)
    few = grid.values(np.sort(rng.integers(0, 3, (60, d)), axis=1) + 20)
    x = np.concatenate([hostile(grid, d, 12), few, few[:, ::-1]])
    expected = evaluate(model.network, x)
    assert name == "depth5" or wrong(model, x, expected).any()
    assert np.array_equal(run(to_onnx(model), x.astype(model.dtype)), expected)


@pytest.mark.parametrize("case", ["compact 9", "linear18", "linear-max"])
def test_open_intervals_need_no_bits(case: str) -> None:
    """At the most bits that the network carries at all, equal entries are as good as others."""
    model = built(case, 64, Grid(bits=40))
    assert model.ties == "exact"
    x = hostile(Grid(bits=40), 64, 30)
    assert wrong(model, x, evaluate(model.network, x)).mean() <= 0.01


@pytest.mark.parametrize("case", ["depth5", "linear46"])
def test_without_bits_for_offsets_every_wrong_answer_is_flagged(case: str) -> None:
    grid, d = Grid(bits=43), 64
    model = built(case, d, grid, certificate=True)
    assert (model.ties, model.dtype) == ("capacity", "float64")
    x = hostile(grid, d, 20)
    got = evaluate(model.network, x)
    assert got[:, 0].min() >= 0
    assert got[:, 0].max() <= 1
    assert np.array_equal(proved(model, got), ~wrong(model, x, got))
    assert wrong(model, x, got).any(), "otherwise the offsets would not be needed"
    few = grid.values(UNITS["clustered"](np.random.default_rng(1), 50, d, grid.cells))
    few[:, 3:] = grid.values(UNITS["grid"](np.random.default_rng(2), 50, d - 3, grid.cells))
    few[:, 4] = few[:, 5]
    assert wrong(model, few, evaluate(model.network, few)).sum() <= 3, "a few equal entries fit the capacity"


def test_offsets_are_taken_before_a_smaller_dtype() -> None:
    """float32 carries these grids without offsets, so taking it would give up equal entries."""
    model = built("depth5", 64, Grid(bits=14))
    assert (model.ties, model.dtype) == ("exact", "float64")
    assert built("depth5", 64, Grid(bits=14), dtype="float32").ties == "capacity"


def test_ties_are_described(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for bits, ties in ((8, "exact"), (43, "capacity")):
        made = export(Spec(tasks.median(33), "linear46", bits=bits, certificate=True, failure=1e-2), tmp_path)
        about = describe(made.path)
        assert about["description"]["ties"] == ties
        assert ("Export with a certificate" in "\n".join(describe_lines(about))) == (ties == "capacity")
        assert verify(made.path, 20).kept
    assert main(["--d", "33", "--construction", "depth5", "--bits", "46", "--out", str(tmp_path)]) == 0
    assert "the dtype has no bits left" in capsys.readouterr().err


def test_constructions_that_need_offsets() -> None:
    assert [c.name for c in CONSTRUCTIONS.values() if c.offsets] == ["depth5", "linear46"]


def test_no_failure_on_distinct_entries_is_no_promise_for_equal_ones() -> None:
    with_room, without = (build(Spec(tasks.rank(32, [16]), "linear46", bits=bits, failure=1e-15)) for bits in (24, 44))
    assert (with_room.failure.bound, with_room.ties, with_room.exact_on_grid) == (0, "exact", True)
    assert (without.failure.bound, without.ties, without.exact_on_grid) == (0, "capacity", False)
