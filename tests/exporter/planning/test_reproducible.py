"""Arithmetic with the same bits everywhere: accuracy against decimals, and the same files without vector instructions."""

from __future__ import annotations

import os
import subprocess
import sys
from decimal import Context, Decimal, localcontext
from pathlib import Path

import numpy as np
import pytest
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

from exporter.planning import reproducible

ROOT = Path(__file__).resolve().parents[3]
EXPORTS = """
import hashlib
from exporter.build import build
from exporter.problem.spec import Spec
from tests.exporter.planning.planners import planner
from exporter.planning.goal import Goal
from exporter.build import to_onnx
from exporter.problem.task import median
for name, goal in (
    ("depth5", Goal(d=128, low=64, high=65)), ("linear-max", Goal(d=128, low=128, high=128)),
    ("linear46", Goal(d=32, low=15, high=15)), ("window6", Goal(d=256, low=128, high=129)),
    ("window4", Goal(d=64, low=32, high=32, failure=0.3)), ("vote-max", Goal(d=64, low=64, high=64, failure=0.4)),
):
    print(planner(name).schedule(goal))
for name in ("compact", "linear46"):
    model = to_onnx(build(Spec(median(32), name, failure=1e-2)))
    print(hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest())
"""


def error(found: np.ndarray, exact: list[Decimal]) -> float:
    with localcontext(Context(prec=90)):
        return float(max(abs(Decimal(float(a)) / b - 1) for a, b in zip(found, exact, strict=True)))


def test_functions_are_accurate() -> None:
    rng = np.random.default_rng(0)
    with localcontext(Context(prec=90)):
        x = np.concatenate([rng.uniform(-700, 700, 500), rng.normal(size=500), 1e-6 * rng.normal(size=200)])
        assert error(reproducible.exp(x), [Decimal(v).exp() for v in x.tolist()]) < 1e-15
        x = np.concatenate(
            [reproducible.exp(rng.uniform(-700, 700, 500)), 1 + 1e-3 * rng.normal(size=500), rng.random(200)]
        )
        assert error(reproducible.log(x), [Decimal(v).ln() for v in x.tolist()]) < 1e-15
        x = reproducible.exp(rng.uniform(-80, 3, 500))
        assert error(reproducible.log1p(x), [(1 + Decimal(v)).ln() for v in x.tolist()]) < 1e-15
    assert reproducible.exp(np.array([-np.inf, 0.0, -1e9])).tolist() == [
        0.0,
        1.0,
        reproducible.exp(np.array([-700.0]))[0],
    ]


def test_logarithms_of_factorials() -> None:
    table = reproducible.log_factorials(1 << 17)
    with localcontext(Context(prec=40)):
        exact, wanted = Decimal(0), []
        for n in range(2, 4000):
            exact += Decimal(n).ln()
            wanted.append(exact)
        assert error(table[2:4000], wanted) < 1e-15
        # beyond, the table is held by its own steps: ln (n + 1)! - ln n! = ln (n + 1)
        large = (5000, 65536, 131071)
        steps = [Decimal(float(table[i])) - Decimal(float(table[i - 1])) - Decimal(i).ln() for i in large]
        assert all(abs(s) <= Decimal("2e-15") * Decimal(float(table[i])) for s, i in zip(steps, large, strict=True))


def test_sums_have_one_order() -> None:
    x = np.random.default_rng(1).normal(size=(7, 300, 5))
    for axis in range(3):
        wanted = np.zeros(np.delete(x.shape, axis))
        for i in range(x.shape[axis]):
            wanted = wanted + np.take(x, i, axis=axis)
        assert np.array_equal(reproducible.total(x, axis), wanted)
    flat = 0.0
    for v in x[0, :, 0].tolist():
        flat += v
    assert float(reproducible.total(x[0, :, 0])) == flat
    assert float(reproducible.dot(np.zeros(0), np.zeros(0))) == 0.0


@pytest.mark.parametrize(
    ("bound", "stated"), [(0.0, 0.0), (0.00073961529, 0.00074), (0.000739, 0.00074), (1.2345e-9, 1.24e-9), (1.3, 1.0)]
)
def test_bounds_are_stated_from_above(bound: float, stated: float) -> None:
    assert reproducible.outward(bound) == stated


def test_no_optional_instruction_changes_a_plan() -> None:
    """numpy with and without its vector code, OpenBLAS as for another processor: the same plans, the same bytes."""
    optional = " ".join(name for name in __cpu_dispatch__ if __cpu_features__.get(name))
    plain, changed = (
        subprocess.run(
            [sys.executable, "-c", EXPORTS],
            env=os.environ | {"PYTHONPATH": str(ROOT)} | more,
            capture_output=True,
            check=True,
        ).stdout
        for more in ({}, {"NPY_DISABLE_CPU_FEATURES": optional, "OPENBLAS_CORETYPE": "Prescott"})
    )
    assert plain.count(b"\n") == 8
    assert plain == changed
