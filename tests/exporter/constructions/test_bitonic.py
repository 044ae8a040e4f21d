"""The products by which a sorting network is served to single vectors: the same answers, and few operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from exporter.analysis.evaluate import trace_values
from exporter.build import build, to_onnx
from exporter.constructions.batcher import merge_exchange, shallowest
from exporter.constructions.bitonic import INNER, bitonic_middle, padding
from exporter.ir.network import network
from exporter.ir.trace import topological, vector
from exporter.options import Options
from exporter.problem import task as tasks
from exporter.problem.families import UNITS
from tests.exporter.constructions.exactness import data
from tests.running import run, session

LENGTHS = (
    1, 2, 3, 5, 9, 16, 17, 24, 25, 32, 33, 34, 47, 63, 64, 65, 100, 127, 128, 129, 256, 500, 1000, 1024, 1025, 2048,
)  # fmt: skip


def latency(task: tasks.Task, **options: Any) -> onnx.ModelProto:
    return to_onnx(build(task, Options("batcher", profile="fused", tune="latency", **options)))


def middle(x: np.ndarray) -> np.ndarray:
    return np.median(x.astype(np.float64), axis=1, keepdims=True).astype(np.float32)


@pytest.mark.parametrize("batch", [None, 1])
@pytest.mark.parametrize("d", LENGTHS)
def test_medians_of_every_family(d: int, batch: int | None) -> None:
    model = session(latency(tasks.median(d), batch=batch))
    for family in UNITS:
        x = data(family, 6, d)
        found = run(model, x) if batch is None else np.concatenate([run(model, row[None]) for row in x])
        assert np.array_equal(found, middle(x)), family


@pytest.mark.parametrize("d", [64, 65, 100])
def test_zeros_and_ones(d: int) -> None:
    """A comparator network that is right on them is right on all; as many ones as make the middle, and one more or less."""
    rng, model = np.random.default_rng(0), session(latency(tasks.median(d)))
    ones = np.clip(d // 2 + rng.integers(-2, 3, 4000), 0, d)
    x = rng.permuted((np.arange(d) < ones[:, None]).astype(np.float32), axis=1)
    runs = (np.arange(d) + rng.integers(0, d, 4000)[:, None]) % d < ones[:, None]  # all ones side by side
    for each in (x, runs.astype(np.float32)):
        assert np.array_equal(run(model, each), middle(each))


@pytest.mark.parametrize("d", [2, 7, 25, 32])
def test_all_ranks_of_few(d: int) -> None:
    """Up to 32 entries the listed networks, every stage two products."""
    proto = latency(tasks.sort(d))
    for family in UNITS:
        x = data(family, 20, d)
        assert np.array_equal(run(proto, x), np.sort(x, axis=1)), family
    stages, _ = shallowest(d, range(1, d + 1))
    ops = [node.op_type for node in proto.graph.node]
    assert (ops.count("Relu"), ops.count("Gemm")) == (len(stages), 2 * len(stages))


@pytest.mark.parametrize("rank", [1, 35, 36, 37, 50, 63, 64, 65, 100])
def test_one_rank(rank: int) -> None:
    """Ranks off the middle are padded into it, as far as less than d numbers do that."""
    proto, x = latency(tasks.rank(100, [rank])), data("uniform", 8, 100)
    assert np.array_equal(run(proto, x), np.sort(x, axis=1)[:, [rank - 1]])
    assert any(node.op_type == "ReduceMax" for node in proto.graph.node) == (36 <= rank <= 64)


def test_data_off_the_grid_and_outside() -> None:
    model, rng = session(latency(tasks.median(200))), np.random.default_rng(1)
    x = rng.normal(0.5, 0.6, (50, 200)).astype(np.float32)
    truth = np.median(np.clip(x, 0, 1).astype(np.float64), axis=1, keepdims=True)
    assert np.abs(run(model, x) - truth).max() <= 2.0**-24


def test_padding() -> None:
    for d in range(1, 300):
        for low in range(1, d + 1):
            found = padding(d, [low])
            if found is None:
                continue
            zeros, ones = found
            size = d + zeros + ones
            assert size & (size - 1) == 0
            assert size < 2 * d
            assert zeros + low == size // 2
            assert min(found) >= 0
    assert padding(64, [32, 33]) == (0, 0)
    assert padding(64, [31, 33]) is None
    assert padding(64, [1]) is None


@pytest.mark.parametrize("d", [17, 40, 300, 2048])
def test_stated_bounds_hold(d: int) -> None:
    x, rows = vector(d), merge_exchange(2**INNER)
    ranks = sorted({(d + 1) // 2, d // 2 + 1})
    net = network(x, bitonic_middle(x, ranks, rows))
    given = np.concatenate([data(family, 4, d, dtype=np.float64) for family in UNITS])
    values = trace_values(net.output, given, keep=True)
    for node in topological(net.output):
        assert values[node].min() >= node.lo, node
        assert values[node].max() <= node.hi, node
    assert np.array_equal(values[net.output], np.sort(given, axis=1)[:, np.array(ranks) - 1])


def test_operations() -> None:
    """Two products a stage, the first with its Relu, beside what a level begins with; no entry is picked one by one."""
    proto = latency(tasks.median(2048), batch=1)
    ops = [node.op_type for node in proto.graph.node]
    rows, _ = shallowest(2**INNER, range(1, 2**INNER + 1))
    stages = len(rows) + sum(range(5, 11))  # the last level is not sorted: it is the middle of two halves
    assert ops.count("Relu") == stages + 1
    assert ops.count("Gemm") == 2 * stages
    assert "Gather" not in ops
    assert "MatMul" not in ops
    assert len(ops) <= 224
    largest = max(np.prod(t.dims) for t in proto.graph.initializer)
    assert largest <= 2**7 * 2
