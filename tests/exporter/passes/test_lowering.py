"""Shorter forms of a formula in ONNX, and when they are not taken."""

from __future__ import annotations

from functools import partial
from itertools import product
from math import prod

import numpy as np
import pytest
from onnx import numpy_helper

from exporter.analysis.contract import fused_bits, structured_bits
from exporter.analysis.evaluate import evaluate
from exporter.build import build, to_onnx
from exporter.ir.fused_forms import all_pairs, largest_within
from exporter.ir.graph import Graph
from exporter.ir.linear import grain
from exporter.ir.network import network
from exporter.ir.primitives import rank_select
from exporter.ir.trace import (
    Node,
    constant,
    largest_of,
    relu,
    stack,
    trim,
    variant,
    vector,
)
from exporter.passes.batch_last import column_graph
from exporter.passes.lowering import structured_graph
from exporter.problem.spec import Spec
from exporter.problem.task import median
from tests.running import model_of, run


def test_only_fused_files_have_another_formula() -> None:
    x = vector(6)
    net = network(x, x * 2, again=lambda: variant(x * 2, lambda cells: x * cells))
    for fused, factor in ((False, 2), (True, 1 << 19)):
        (node,) = (graph := structured_graph(net, "float64", fused)).nodes
        assert node.op_type == "Mul"
        assert numpy_helper.to_array(graph.initializers[node.input[1]]) == factor


def test_neighbours_are_gathered_as_rows() -> None:
    """Groups of eight, in another order: one index for each, in fused files and in those of Max and Min."""
    order = np.random.default_rng(0).permutation(32)
    assert grain((8 * order[:, None] + np.arange(8)).ravel(), 256) == 8
    assert grain((8 * order[:, None] + np.arange(8)).ravel() + 4, 264) == 4
    assert grain(np.arange(8), 256) == 1
    for profile in ("fused", "minmax"):
        model = to_onnx(build(Spec(median(256), "batcher", profile=profile)))
        stored = {t.name: prod(t.dims) for t in model.graph.initializer}
        gathered = [stored[node.input[1]] for node in model.graph.node if node.op_type == "Gather"]
        assert gathered.count(256) <= 1
        x = np.random.default_rng(1).integers(0, 1000, (3, 256)).astype(np.float32) / 1024
        assert np.array_equal(run(model, x)[:, 0], np.median(x, axis=1))


def test_what_is_there_is_not_made_again() -> None:
    graph = Graph(np.dtype(np.float32), once=True)
    first = graph.add("Relu", ["x"])
    graph.add("Relu", [first])
    assert graph.add("Relu", ["x"]) == first
    graph.finish(first)
    assert [(node.op_type, *node.input, *node.output) for node in graph.nodes] == [("Relu", "x", "y")]


@pytest.mark.parametrize(
    ("name", "d"), [("depth3", 40), ("compact", 64), ("depth3", 300), ("batcher", 33), ("depth5", 64)]
)
@pytest.mark.parametrize("optimize_for", ["throughput", "latency"])
def test_fused_files_need_no_more_bits_than_the_data(name: str, d: int, optimize_for: str) -> None:
    """24 bits in float32, on entries that differ by one step at either end of the range, on ties and anywhere."""
    model = build(Spec(median(d), name, profile="fused", optimize_for=optimize_for))  # type: ignore[arg-type]
    assert (model.dtype, model.step.bits) == ("float32", 24)
    rng, top = np.random.default_rng(d), 2**24
    near = rng.integers(0, 3, (60, d)) + rng.choice([0, 1, top // 2 - 1, top - 3, top - 2], (60, 1))
    ends = rng.choice([0, 1, top - 1, top], (60, d))
    x = (np.concatenate([near, ends, rng.integers(0, top, (60, d), endpoint=True)]) / top).astype(np.float32)
    wrong = run(to_onnx(model), x)[:, 0] != np.median(x, axis=1)
    assert np.count_nonzero(wrong) <= (3 if model.failure.bound else 0)


def test_a_clip_forgives_what_rounds_outside_its_bounds() -> None:
    x = vector(2)
    a, b = x.take([0]), x.take([1])
    pairs = (a - b) * 2.0**24
    net = network(x, trim(pairs + 1))  # up to 2^24 + 1
    assert (structured_bits(net, 2.0**-24).bits, fused_bits(net, 2.0**-24).bits) == (25, 24)
    # what is read beside the Clip must be exact, and so must what a Clip keeps
    v = pairs + 1
    for output in (stack([trim(v), relu(v)]), trim(v, 2**24 + 1)):
        assert fused_bits(network(x, output), 2.0**-24).bits == 25


@pytest.mark.parametrize("rows", [1, 2, 5, 8])
def test_all_pairs_in_blocks(rows: int) -> None:
    x = vector(7, 0.0, 1.0)
    data = np.random.default_rng(0).integers(0, 4, (200, 7)) / 4
    ranks = evaluate(network(x, all_pairs(x, 0.25, 7 * rows)), data)
    assert np.array_equal(ranks, 1 + np.argsort(np.argsort(data, axis=1, kind="stable"), axis=1))


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("last", [False, True], ids=["batch first", "batch last"])
def test_the_entry_of_a_rank_is_the_largest_that_is_in(rows: int, last: bool) -> None:
    """All ranks of all vectors of five entries from four values, equal ones inside a block and across blocks."""
    x, ranks = vector(5), constant(np.arange(1.0, 6.0))
    entries = rank_select(x, [1, 2, 3, 4, 5], 0.25, ties=True)

    def again() -> Node:
        below = all_pairs(x, 0.25, 5 * rows, unique=False)
        return largest_within(x, below.spread(0, 5) - ranks.spread(1, 5), entries)

    net = network(x, entries, again=again)
    graph = (column_graph if last else partial(structured_graph, fused=True))(net, "float32")
    data = np.array(list(product(range(4), repeat=5))) / 4
    assert np.array_equal(run(model_of(graph, 5, 5), data), np.sort(data, axis=1))
    assert max(prod(tensor.dims) for tensor in graph.initializers.values()) <= 5  # no matrix of positions


def test_the_largest_entry_forgives_what_rounds_below_it() -> None:
    """An entry that is out may round, if what is left is known not to be negative; one that is in may not."""
    x = vector(3)

    def bits(q: Node, lo: float) -> float:
        found = x.take([0]) + lo
        net = network(x, found, again=lambda: largest_of(q, found.reshape()).reshape(1))
        return fused_bits(net, 2.0**-24).bits

    out = relu(x * 2.0**24)  # integers
    assert bits(x - out, 0.0) == 24
    assert bits(x - out, -1.0) == 48
    assert bits(x + out, 0.0) == 49


def test_constants_are_stored_once_along_an_axis() -> None:
    """The thresholds of the first digit, spread over all entries, and the wanted ranks."""
    for name, d in (("radix", 2048), ("depth3", 64), ("compact", 256)):
        graph = to_onnx(build(Spec(median(d), name, profile="fused", optimize_for="latency"))).graph
        for tensor in graph.initializer:
            values = numpy_helper.to_array(tensor)
            if values.ndim > 1 and values.dtype == np.float32 and values.size > d:
                added = [n for n in graph.node if tensor.name in n.input and n.op_type in ("Add", "Sub")]
                assert not added or not any(np.all(values == values.take([0], a)) for a in range(values.ndim))


def gathers(name: str, d: int, optimize_for: str) -> list[int]:
    """The lengths of the index lists in a fused file."""
    graph = to_onnx(build(Spec(median(d), name, profile="fused", optimize_for=optimize_for))).graph  # type: ignore[arg-type]
    sizes = {tensor.name: prod(tensor.dims) for tensor in graph.initializer}
    return [sizes[node.input[1]] for node in graph.node if node.op_type == "Gather"]


@pytest.mark.parametrize("optimize_for", ["throughput", "latency"])
def test_what_is_regular_is_not_gathered(optimize_for: str) -> None:
    assert gathers("depth3", 100, optimize_for) == []
    assert gathers("radix", 100, optimize_for) == []
    # in a sorting network one for the start of each of the passes whose runs are short
    assert len(gathers("batcher", 256, optimize_for)) <= 7
    # in a planned one what its permutations pick: the sample, and entries and mask of every block; pairs are broadcast
    assert sum(gathers("compact", 256, optimize_for)) <= 3 * 256
    assert sum(gathers("depth5", 256, optimize_for)) <= 256 * 17


def test_a_stage_of_comparators_is_little_more_than_its_minima_and_maxima() -> None:
    """Four nodes, Concat of both ends, Min and Max, beside what a pass begins with: runs are cut out by two Splits."""
    names = [node.op_type for node in to_onnx(build(Spec(median(2048), "batcher", profile="minmax"))).graph.node]
    assert names.count("Min") == names.count("Max") == 66
    assert names.count("Concat") <= 2 * 66
    assert names.count("Gather") == 2 * 7  # both ends, at the start of a pass over runs of 64 or less
    assert len(names) <= 410  # before onnxruntime makes Splits of Slices


def test_where_the_batch_stands() -> None:
    """Last, with one Transpose at each end, where entries move and batches are large."""
    for name, optimize_for, ends in (
        ("batcher", "throughput", 2),
        ("compact", "throughput", 2),
        ("batcher", "latency", 0),
        ("radix", "throughput", 0),
        ("depth3", "throughput", 0),
    ):
        graph = to_onnx(build(Spec(median(64), name, profile="fused", optimize_for=optimize_for))).graph  # type: ignore[arg-type]
        moved = [list(a.ints) for n in graph.node if n.op_type == "Transpose" for a in n.attribute]
        assert moved == [[1, 0]] * ends, (name, optimize_for)
