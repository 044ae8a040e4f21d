"""The numeric contract: what it accepts is exact in any order of summation, what it refuses is really wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from exporter.analysis.contract import DType, Step, dense_bits, fused_bits, structured_bits
from exporter.analysis.evaluate import evaluate
from exporter.build import Built, build
from exporter.errors import ContractError, UserError
from exporter.formula import trace
from exporter.ir.network import Network, Weights, network, weights
from exporter.ir.primitives import compare, compare_saturating
from exporter.ir.trace import constant, stack, vector
from exporter.passes.batch_last import CELLS, ROWS
from exporter.passes.lowering import ONE_VECTOR
from exporter.problem import task as tasks
from exporter.problem.families import UNITS
from exporter.problem.grid import Grid
from exporter.problem.spec import Spec
from tests.catalogue import Case, each_case
from tests.running import DTYPES, exact_dtypes, proto_of, run

Sum = Callable[[np.ndarray], np.ndarray]


def left_to_right(terms: np.ndarray) -> np.ndarray:
    out = np.zeros(terms.shape[:-1], dtype=terms.dtype)
    for i in range(terms.shape[-1]):
        out = out + terms[..., i]
    return out


def pairwise(terms: np.ndarray) -> np.ndarray:
    while terms.shape[-1] > 1:
        half = terms.shape[-1] // 2
        rest = terms[..., 2 * half :]
        terms = np.concatenate([terms[..., :half] + terms[..., half : 2 * half], rest], axis=-1)
    return terms[..., 0]


def positive_first(terms: np.ndarray) -> np.ndarray:
    """All positive terms, then all negative ones: the largest partial sums there can be."""
    return left_to_right(np.sort(terms, axis=-1)[..., ::-1])


def negative_first(terms: np.ndarray) -> np.ndarray:
    return left_to_right(np.sort(terms, axis=-1))


def shuffled(terms: np.ndarray) -> np.ndarray:
    return left_to_right(np.random.default_rng(5).permuted(terms, axis=-1))


ORDERS: list[Sum] = [left_to_right, pairwise, positive_first, negative_first, shuffled]


def gemm_chain(layers: list[Weights], x: np.ndarray, dtype: DType, add: Sum) -> np.ndarray:
    """A dense file as a runtime might compute it: products in the dtype, summed in any order."""
    h = x.astype(dtype)
    for i, layer in enumerate(layers):
        h = np.maximum(h, 0) if i else h
        m = layer.matrix.toarray().astype(dtype)
        terms = np.concatenate(
            [h[:, None, :] * m, np.broadcast_to(layer.bias.astype(dtype), (len(h), len(m)))[..., None]], -1
        )
        h = add(terms)
    return h


@each_case
def test_accepted_chains_are_exact_in_any_order(case: Case) -> None:
    x = case.inputs(np.random.default_rng(11), 20)
    layers, expected = weights(case.net), evaluate(case.net, x)
    for dtype in exact_dtypes(case.net, "dense", case.step):
        for add in ORDERS:
            got = gemm_chain(layers, x, dtype, add)
            assert np.array_equal(got, expected.astype(dtype)), (dtype, add.__name__)


def accepted(construction: str, d: int, bits: int, profile: str, dtype: str, **more: Any) -> Built:
    return build(Spec(tasks.median(d), construction, bits=bits, profile=profile, dtype=dtype, **more))  # type: ignore[arg-type]


REFUSED = [
    ("depth3", 3, 24, "dense", "float32"),
    ("depth3", 5, 24, "structured", "float32"),
    ("depth3", 4, 30, "fused", "float32"),
    ("depth3", 9, 52, "dense", "float64"),
    ("depth3", 4, 52, "structured", "float64"),
    ("batcher", 5, 25, "structured", "float32"),
    ("batcher", 3, 30, "dense", "float32"),
]


@pytest.mark.parametrize(("construction", "d", "bits", "profile", "dtype"), REFUSED)
def test_a_refusal_names_the_largest_bits_that_work(
    construction: str, d: int, bits: int, profile: str, dtype: str
) -> None:
    with pytest.raises(ContractError, match="silently wrong") as caught:
        accepted(construction, d, bits, profile, dtype)
    found = re.search(r"bits=(\d+) is the most that works", str(caught.value))
    assert found, str(caught.value)
    most = int(found[1])
    assert most < bits
    model = accepted(construction, d, most, profile, dtype)
    assert model.exact_on_grid
    grid = model.spec.grid
    x = np.concatenate([grid.values(f(np.random.default_rng(1), 40, d, grid.cells)) for f in UNITS.values()])
    got = run(proto_of(model.network, profile, model.dtype), x)
    assert np.array_equal(got[:, 0], np.median(x.astype(model.dtype), axis=1))
    with pytest.raises(ContractError):
        accepted(construction, d, most + 1, profile, dtype)


def wrong_somewhere(construction: str, d: int, bits: int, profile: str, dtype: DType) -> bool:
    """Whether the network, written all the same, is wrong on some input of the families."""
    spec = Spec(tasks.rank(d, [(d + 1) // 2]), construction, bits=bits)
    net, _ = trace(spec)
    grid = spec.grid
    x = np.concatenate([grid.values(f(np.random.default_rng(2), 300, d, grid.cells)) for f in UNITS.values()])
    x = x.astype(dtype)
    truth = np.sort(x, axis=1)[:, (d - 1) // 2]
    if profile == "dense":
        got = [gemm_chain(weights(net), x, dtype, add)[:, 0] for add in ORDERS]
    else:
        got = [run(proto_of(net, profile, dtype), x)[:, 0]]
    return any(not np.array_equal(g, truth) for g in got)


@pytest.mark.parametrize(
    ("construction", "d", "profile", "dtype"),
    [("depth3", 3, "dense", "float32"), ("depth3", 5, "dense", "float32"), ("depth3", 3, "dense", "float64")],
)
def test_just_beyond_the_contract_answers_are_wrong(construction: str, d: int, profile: str, dtype: DType) -> None:
    """The limit is not timid: within two bits beyond it some answer is wrong."""
    most = max(b for b in range(1, 50) if _fits(construction, d, b, profile, dtype))
    assert not wrong_somewhere(construction, d, most, profile, dtype)
    assert any(wrong_somewhere(construction, d, b, profile, dtype) for b in (most + 1, most + 2))


def _fits(construction: str, d: int, bits: int, profile: str, dtype: DType) -> bool:
    spec = Spec(tasks.rank(d, [(d + 1) // 2]), construction, bits=bits)
    net, _ = trace(spec)
    return _needs(net, profile, spec.grid.step).exact_in(dtype)


def _needs(net: Network, profile: str, step: float) -> Step:
    return dense_bits(net, step) if profile == "dense" else structured_bits(net, step)


def test_auto_takes_the_smallest_dtype_that_is_exact() -> None:
    assert build(Spec(tasks.median(25), "depth3", bits=8)).dtype == "float32"
    assert build(Spec(tasks.median(25), "depth3", bits=24)).dtype == "float64"
    assert build(Spec(tasks.median(25), "batcher", bits=24)).dtype == "float32"
    assert build(Spec(tasks.median(25), "batcher", bits=30)).dtype == "float64"


@pytest.mark.parametrize("cells", [CELLS, ROWS, ONE_VECTOR])
@pytest.mark.parametrize("bits", [1, 24])
@pytest.mark.parametrize(("name", "d"), [("depth3", 1500), ("depth5", 1024), ("compact", 1024), ("linear46", 1024)])
def test_blocks_of_every_size_need_no_more_bits(name: str, d: int, bits: int, cells: int) -> None:
    """Those of the files, beside those that the contract is proven with; with data of one bit counts are what needs most."""
    grid = Grid(bits=bits)
    net, _ = trace(Spec(tasks.median(d), name).on(grid), rounded="float32")
    assert fused_bits(net, grid.step, cells).bits <= fused_bits(net, grid.step).bits


def test_more_bits_never_need_less() -> None:
    for construction in ("depth3", "batcher"):
        for profile in ("dense", "structured"):
            needs = []
            for bits in range(1, 40, 3):
                net, _ = trace(Spec(tasks.median(6), construction, bits=bits))
                needs.append(_needs(net, profile, 2.0**-bits).bits)
            assert needs == sorted(needs)


def test_outputs_that_are_constants_are_judged_with_the_others() -> None:
    x, constants = vector(2), stack([constant([1.0]), constant([3.0])])
    assert dense_bits(network(x, stack([x, constants])), 2.0**-4).bits == 4


def test_the_saturating_form_never_sums_large_numbers() -> None:
    """Counting with pairs in a Gemm needs bits for d slopes; saturating comparisons only for the slope itself."""
    needed = {}
    for test in (compare, compare_saturating):
        x = vector(64)
        count = test(x, 0.5, 2.0**-20).sum().reshape(1)
        net = network(x, count)
        needed[test.__name__] = dense_bits(net, 2.0**-20).bits
    assert needed["compare"] >= 20 + 5
    assert needed["compare_saturating"] <= 21


def test_weights_that_are_no_binary_fractions_are_never_exact() -> None:
    x = vector(1)
    net = network(x, compare(x / 3, 0, 1))
    assert structured_bits(net, 0.25).bits == float("inf")
    assert not structured_bits(net, 0.25).exact_in("float64")


@pytest.mark.parametrize("bits", [0, -3, 53, 64])
def test_bits_that_no_float_carries(bits: int) -> None:
    with pytest.raises(UserError, match="bits must be between 1 and 52"):
        Grid(bits=bits)


@pytest.mark.parametrize("dtype", DTYPES)
def test_options_are_kept(dtype: DType) -> None:
    model = build(Spec(tasks.median(5), "depth3", bits=8, dtype=dtype))
    assert model.dtype == dtype
