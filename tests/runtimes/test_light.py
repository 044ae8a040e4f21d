"""The light part of the matrix: promised files in the runtimes of the normal environment, exact on every family."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from exporter.problem.families import FLOATS
from exporter.problem.task import median
from tests.runtimes.adapters import RUNTIMES, one_by_one
from tests.runtimes.cases import EXACT, Case, promised, rewritten

LIGHT = [r.module for r in RUNTIMES.values() if r.env == ""]
CASES = [
    *promised(),
    *(Case(name, 25, 16, "float32", profile) for name in EXACT for profile in ("matmul", "fused")),
    *(Case(name, 9, 16, "float32", profile, 1) for name in EXACT for profile in ("dense", "structured", "fused")),
    *(Case("batcher", d, 24, "float32", "minmax") for d in (9, 24, 25, 64)),
    Case("batcher", 9, 24, "float32", "minmax", 1),
    *rewritten(),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_exact_in_every_light_runtime(case: Case, folder: Path) -> None:
    path = case.export(folder)
    x = case.rows(3)
    truth = case.answers(x)
    for module in LIGHT:
        run = RUNTIMES[module].adapter().load(path)
        y = np.asarray(one_by_one(run, x) if case.batch else run(x)).reshape(len(x), -1)
        wrong = np.flatnonzero((y != truth).any(axis=1))
        assert len(wrong) == 0, f"{module}: {len(wrong)} of {len(x)} rows, the first is {wrong[0]}"


def test_the_required_runtimes_are_all_there() -> None:
    required = {r.module for r in RUNTIMES.values() if r.required}
    assert required == {
        "onnxruntime", "reference", "openvino", "opencv", "tract", "pytorch", "jax", "mnn", "web",
    }  # fmt: skip
    assert LIGHT == ["onnxruntime", "reference", "openvino", "opencv", "tract"]


@pytest.mark.parametrize("d", [9, 10])
def test_minmax_is_exact_on_every_float(d: int, folder: Path) -> None:
    """Infinities and subnormals too, but for OpenCV, which takes subnormals for 0 (docs/runtimes.md)."""
    path = Case("batcher", d, 24, "float32", "minmax").export(folder)
    rng, kind = np.random.default_rng(0), np.dtype(np.float32)
    x = np.concatenate([family(rng, 100, d, kind) for family in FLOATS.values()])
    tiny = np.finfo(kind).tiny
    for module in LIGHT:
        seen, least = (np.where(np.abs(x) < tiny, 0, x), tiny) if module == "opencv" else (x, 0)
        truth = median(d).answers(seen)
        truth[np.abs(truth) < least] = 0
        y = np.asarray(RUNTIMES[module].adapter().load(path)(x)).reshape(len(x), -1)
        wrong = np.flatnonzero(((y != truth) & ~(np.isnan(y) & np.isnan(truth))).any(axis=1))
        assert len(wrong) == 0, f"{module}: {len(wrong)} of {len(x)} rows, {x[wrong[0]]} gives {y[wrong[0]]}"
