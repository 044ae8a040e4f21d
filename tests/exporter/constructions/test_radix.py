"""radix: right on every grid input, within a step of every other, and as small as claimed."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.analysis.evaluate import evaluate
from exporter.build import build, to_onnx
from exporter.constructions.radix import Digits, even_digits, radix
from exporter.ir.network import Network, network
from exporter.ir.trace import vector
from exporter.problem import task as tasks
from exporter.problem.families import UNITS
from exporter.problem.spec import Spec
from tests.running import run, session
from tests.tiers import telling

FORMS = ("pair", "saturating", "bounded")


def search(
    d: int, ranks: list[int], bits: int, bins: int, form: str, *, share: bool = True, rows: bool = False
) -> Network:
    x, each = vector(d), even_digits(bits, bins)
    return network(x, radix(x, ranks, Digits(2**bits, each, form, share, rows=rows)))  # type: ignore[arg-type]


@pytest.mark.parametrize(("form", "rows"), [*((form, False) for form in FORMS), ("pair", True), ("saturating", True)])
@pytest.mark.parametrize("bins", [2, 4, 8])
@pytest.mark.parametrize(("d", "bits"), [(2, 4), (2, 5), (3, 3), (4, 2), (5, 2)])
def test_every_grid_input_and_rank(d: int, bits: int, bins: int, form: str, rows: bool) -> None:
    x = np.array(list(itertools.product(range(2**bits + 1), repeat=d))) / 2**bits
    net = search(d, list(range(1, d + 1)), bits, min(bins, 2**bits), form, rows=rows)
    assert np.array_equal(evaluate(net, x), np.sort(x, axis=1))


@pytest.mark.parametrize("optimize_for", ["throughput", "latency"])
@pytest.mark.parametrize("profile", ["structured", "fused"])
@pytest.mark.parametrize("bins", [2, 4, 8])
@pytest.mark.parametrize(("d", "bits"), [(2, 5), (3, 3), (4, 3), (5, 2)])
def test_every_grid_input_in_onnx(d: int, bits: int, bins: int, profile: str, optimize_for: str) -> None:
    """The shortest files, with digits of one size, with a shorter first one, and with a single one."""
    bins = min(bins, 2**bits)
    spec = Spec(tasks.median(d), "radix", bits=bits, profile=profile, optimize_for=optimize_for, radix=bins)  # type: ignore[arg-type]
    x = np.array(list(itertools.product(range(2**bits + 1), repeat=d))) / 2**bits
    assert np.array_equal(run(to_onnx(build(spec)), x)[:, 0], np.median(x, axis=1))
    both = build(replace(spec, task=tasks.rank(d, [d - 1, d])))
    assert np.array_equal(run(to_onnx(both), x), np.sort(x, axis=1)[:, -2:])


@pytest.mark.parametrize("optimize_for", ["throughput", "latency"])
def test_files_for_grid_inputs_are_within_a_step_off_the_grid(optimize_for: str) -> None:
    """The shorter end of a fused file is for entries that are on the grid for certain: here one between would spoil it."""
    task, kind = tasks.median(4), "float64"
    spec = Spec(task, "radix", bits=4, profile="fused", optimize_for=optimize_for, inputs="grid", dtype=kind)  # type: ignore[arg-type]
    rng = np.random.default_rng(7)
    x = np.clip((rng.integers(0, 17, (4000, 4)) + rng.choice([0.0, 0.5, -0.25, 0.99], (4000, 4))) / 16, 0, 1)
    error = np.abs(run(to_onnx(build(spec)), x)[:, 0] - np.median(x, axis=1))
    assert error.max() < 1 / 16


@pytest.mark.parametrize("profile", ["structured", "fused"])
@pytest.mark.parametrize("optimize_for", ["throughput", "latency"])
def test_the_mean_of_two_ranks_rounds_once(optimize_for: str, profile: str) -> None:
    """Two of 24 bits whose mean has 25, near and far: numpy rounds it once; a sum of more than two parts may do so twice."""
    model = session(to_onnx(build(Spec(tasks.median(2), "radix", profile=profile, optimize_for=optimize_for))))  # type: ignore[arg-type]
    rng = np.random.default_rng(5)
    low = rng.integers(2**23, 2**24, 20_000)
    high = np.minimum(low + rng.integers(0, 2 ** rng.integers(1, 24, 20_000)), 2**24)
    x = (np.stack([low, high], axis=1) / 2.0**24).astype(np.float32)
    assert np.array_equal(run(model, x)[:, 0], np.median(x, axis=1))


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_off_the_grid_within_one_step(form: str, rows: bool, data: st.DataObject) -> None:
    """Any reals: clusters inside one step, values a hair beside a threshold, and strangers far away."""
    d = data.draw(st.integers(2, 7))
    k = data.draw(st.integers(1, d - 1))
    bins = data.draw(st.sampled_from([2, 3, 4, 5, 7, 8]))
    unit = st.builds(lambda n, f: min(max((n + f) / 16, 0.0), 1.0), st.integers(0, 16), st.floats(-1.5, 1.5))
    x = np.array([data.draw(st.lists(unit, min_size=d, max_size=d))])
    net = search(d, [k, k + 1], 4, bins, form, rows=rows and form != "bounded")
    error = np.abs(evaluate(net, x) - np.sort(x, axis=1)[:, k - 1 : k + 1])
    assert error.max() < 1 / 16


@pytest.mark.parametrize("optimize_for", ["throughput", "latency", "depth", "width"])
@pytest.mark.parametrize("profile", ["structured", "fused", "dense"])
@pytest.mark.parametrize("d", telling([1, 2, 3, 9, 25, 64, 100, 257], [1, 2, 3, 9, 25]))
def test_medians_bit_for_bit(d: int, profile: str, optimize_for: str) -> None:
    if profile == "dense" and (d > 64 or (d == 64 and optimize_for in ("depth", "latency"))):
        d = 10  # a dense chain of that size is no use to anyone
    model = build(Spec(tasks.median(d), "radix", profile=profile, optimize_for=optimize_for))  # type: ignore[arg-type]
    assert model.dtype == "float32"
    proto = session(to_onnx(model))
    rng = np.random.default_rng(d)
    for name, family in UNITS.items():
        x = model.spec.grid.values(family(rng, 12, d, 2**24)).astype(np.float32)
        assert np.array_equal(run(proto, x)[:, 0], np.median(x, axis=1)), name


@pytest.mark.parametrize("profile", ["structured", "fused"])
@pytest.mark.parametrize("bits", [24, 48])
def test_2048_entries(bits: int, profile: str) -> None:
    model = build(Spec(tasks.median(2048), "radix", bits=bits, profile=profile))
    assert model.dtype == ("float32" if bits == 24 else "float64")
    proto = session(to_onnx(model))
    rng = np.random.default_rng(0)
    for name, family in UNITS.items():
        x = model.spec.grid.values(family(rng, 4, 2048, 2**bits)).astype(model.dtype)
        assert np.array_equal(run(proto, x)[:, 0], np.median(x, axis=1)), name


@pytest.mark.parametrize("profile", ["structured", "fused"])
@pytest.mark.parametrize("optimize_for", ["throughput", "latency"])
def test_float32_files_round_data_to_the_grid(profile: str, optimize_for: str) -> None:
    """Off the grid a factored file is the exact median of the data rounded to it: half a step, and the mean's rounding."""
    model = build(Spec(tasks.median(10), "radix", profile=profile, optimize_for=optimize_for))  # type: ignore[arg-type]
    proto = session(to_onnx(model))
    rng = np.random.default_rng(1)
    centre = rng.random((4000, 1)) * rng.choice([1, 1e-3, 1e-6], (4000, 1))
    near = np.clip(centre + rng.normal(0, 2.0**-25, (4000, 10)), 0, 1)
    x = np.where(rng.random((4000, 10)) < 0.7, near, rng.random((4000, 10))).astype(np.float32)
    error = np.abs(run(proto, x)[:, 0].astype(np.float64) - np.median(x.astype(np.float64), axis=1))
    assert error.max() <= 0.75 * 2.0**-24


@pytest.mark.parametrize(("bins", "depth", "width"), [(16, 13, 32), (4, 25, 8), (2, 49, 4)])
def test_depth_and_width_of_one_search(bins: int, depth: int, width: int) -> None:
    d = 2048
    model = build(Spec(tasks.median(d, "lower"), "radix", radix=bins, optimize_for="width", inputs="grid"))
    assert model.accounting.depth == depth
    assert model.accounting.width <= width * d


@pytest.mark.parametrize("bins", [2, 4, 8])
def test_size_with_the_mean_of_two_ranks(bins: int) -> None:
    d = 2048
    model = build(Spec(tasks.median(d), "radix", radix=bins, optimize_for="width"))
    assert model.accounting.size <= 130 * d
    single = build(Spec(tasks.median(d, "lower"), "radix", radix=bins, optimize_for="width")).accounting
    assert model.accounting.size <= 1.1 * single.size


def test_several_ranks_and_quantiles() -> None:
    x = np.random.default_rng(3).integers(0, 2**24, (50, 101), endpoint=True) / 2.0**24
    model = build(Spec(tasks.quantile(101, [0.25, 0.5, 0.75]), "radix"))
    assert np.array_equal(run(to_onnx(model), x.astype(model.dtype)), np.quantile(x, [0.25, 0.5, 0.75], axis=1).T)


def test_a_million_entries() -> None:
    d = 1_000_000
    model = build(Spec(tasks.median(d), "radix", profile="structured"))
    written = to_onnx(model)
    assert written.ByteSize() < 20e6
    proto, rng = session(written), np.random.default_rng(4)
    for name in ("uniform", "constant", "two-values"):
        x = (UNITS[name](rng, 1, d, 2**24) / 2.0**24).astype(np.float32)
        assert np.array_equal(run(proto, x)[:, 0], np.median(x, axis=1)), name
