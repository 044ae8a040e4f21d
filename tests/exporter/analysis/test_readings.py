"""One network, read many ways: all readings agree on every network of the catalogue."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import pairwise
from math import isfinite

import numpy as np
import onnx

from exporter.analysis.accounting import accounting
from exporter.analysis.evaluate import evaluate, evaluate_exact, evaluate_weights, trace_values
from exporter.ir.trace import topological
from exporter.passes.batch_last import column_graph
from exporter.passes.profiles import PROFILES, prove_profile
from tests.catalogue import Case, each_case
from tests.running import exact_dtypes, model_of, proto_of, run, session, weights_of, writers

RATIONAL_LIMIT = 2000  # numbers per input vector up to which rational arithmetic is run


def inputs(case: Case, n: int = 60) -> np.ndarray:
    return case.inputs(np.random.default_rng(7), n)


@each_case
def test_weight_list_equals_formula(case: Case) -> None:
    x = inputs(case)
    assert np.array_equal(evaluate_weights(weights_of(case.net), x), evaluate(case.net, x))


@each_case
def test_float64_equals_exact_rationals(case: Case) -> None:
    size = sum(node.size for node in topological(case.net.output))
    x = inputs(case)[:: 1 if size < 200 else 6]
    if size > RATIONAL_LIMIT:
        x = x[:3]
    exact = evaluate_exact(case.net, x)
    assert all(isinstance(v, Fraction) for v in exact.ravel())
    assert (exact == np.vectorize(Fraction, otypes=[object])(evaluate(case.net, x))).all()


@each_case
def test_onnx_returns_the_bits_of_the_formula(case: Case) -> None:
    x = inputs(case)
    expected = evaluate(case.net, x)
    for profile in writers(case.net):
        dtypes = exact_dtypes(case.net, profile, case.step)
        assert "float64" in dtypes, "every network of the catalogue is exact in float64"
        for dtype in dtypes:
            model = session(proto_of(case.net, profile, dtype))
            got = run(model, x)
            assert got.dtype == dtype, profile
            assert np.array_equal(got, expected.astype(dtype)), (profile, dtype)
            assert np.array_equal(run(model, x[3:4])[0], got[3]), "one vector gives the row of a batch"


@each_case
def test_the_batch_last_returns_the_same_bits(case: Case) -> None:
    x = inputs(case)
    expected = evaluate(case.net, x)
    for dtype in exact_dtypes(case.net, "fused", case.step):
        proto = model_of(column_graph(case.net, dtype), case.net.d, case.net.output.size, "fused")
        assert prove_profile(proto).profile in ("structured", "fused")
        model = session(proto)
        got = run(model, x)
        assert np.array_equal(got, expected.astype(dtype)), dtype
        assert np.array_equal(run(model, x[3:4])[0], got[3]), "one vector gives the row of a batch"


@each_case
def test_a_file_for_one_vector_returns_the_same_bits(case: Case) -> None:
    x = inputs(case)[::7]
    expected = evaluate(case.net, x)
    for dtype in exact_dtypes(case.net, "fused", case.step):
        graph = PROFILES["fused"].graph(case.net, dtype, batch=1)
        proto = model_of(graph, case.net.d, case.net.output.size, "fused", 1)
        assert prove_profile(proto).profile in ("structured", "fused")
        model = session(proto)
        got = np.concatenate([run(model, row[None]) for row in x])
        assert np.array_equal(got, expected.astype(dtype)), dtype


@each_case
def test_accounting_equals_what_the_weight_list_holds(case: Case) -> None:
    layers = weights_of(case.net)
    counted = accounting(case.net)
    assert counted.depth == len(layers)
    assert counted.widths == tuple(layer.matrix.shape[0] for layer in layers[:-1])
    assert counted.width == max(counted.widths, default=0)
    assert counted.size == sum(counted.widths)
    assert counted.nnz == sum(int(np.count_nonzero(layer.matrix.data)) for layer in layers)
    assert counted.nnz == sum(layer.matrix.nnz for layer in layers), "no stored zeros"
    largest = max((float(np.abs(layer.matrix.data).max()) for layer in layers if layer.matrix.nnz), default=0.0)
    assert counted.max_weight == largest


@each_case
def test_stated_bounds_hold(case: Case) -> None:
    x = inputs(case, 300)
    values = trace_values(case.net.output, x, keep=True)
    for node in topological(case.net.output):
        v = values[node]
        where = f"{node}"
        assert v.min() >= node.lo, where
        assert v.max() <= node.hi, where
        if isfinite(node.total):
            assert np.abs(v).sum(axis=-1).max() <= node.total, where


@each_case
def test_carried_values_have_the_sign_of_their_neurons(case: Case) -> None:
    values = trace_values(case.net.output, inputs(case, 300), keep=True)
    for layer in case.net.layers:
        for group in layer.groups:
            v = values[group.pre]
            if group.carried and len(group.signs) == 1:
                assert (group.signs[0] * v >= 0).all()
            for sign in group.signs:
                assert np.maximum(sign * v, 0).max() <= group.bound


@each_case
def test_neurons_of_a_layer_are_all_used(case: Case) -> None:
    """A neuron that the next map does not read would count in the width for nothing.

    Batcher carries whole stages: the partner of a comparator whose other end alone is wanted rides along. In the mean of
    two ranks that compact and linear18 select, the neurons that both share cancel.
    """
    if re.match(r".*batcher|median-(compact-d\d*[02468]-.*=\d+$|linear18-d\d*[02468]-)", case.name):
        return
    for layer, above in pairwise(weights_of(case.net)):
        read = np.zeros(layer.matrix.shape[0], dtype=bool)
        read[above.matrix.indices] = True
        assert read.all()


@each_case
def test_files_follow_the_conventions_and_prove_their_profile(case: Case) -> None:
    for profile in writers(case.net):
        proto = proto_of(case.net, profile, "float32")
        check_conventions(case, proto)
        check_profile(case, profile, proto)


def check_conventions(case: Case, proto: onnx.ModelProto) -> None:
    onnx.checker.check_model(proto, full_check=True)
    assert [(o.domain, 13 <= o.version <= 17) for o in proto.opset_import] == [("", True)]
    assert proto.ir_version <= 8
    graph = proto.graph
    shapes = [[d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in (*graph.input, *graph.output)]
    assert shapes == [["batch_size", case.net.d], ["batch_size", case.net.output.size]]
    assert [v.name for v in (*graph.input, *graph.output)] == ["x", "y"]
    for tensor in graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        assert tensor.raw_data or array.size == 0, "initializers are stored as raw data"
        if array.dtype == np.float32:
            assert not ((array != 0) & (np.abs(array) < np.finfo(np.float32).tiny)).any(), "no denormal weights"
    assert not graph.sparse_initializer
    read = {name for node in graph.node for name in node.input}
    made = {name for node in graph.node for name in node.output} - {"y"}
    assert {t.name for t in graph.initializer} <= read, "no unused constants"
    assert made <= read, "no unused nodes"


def check_profile(case: Case, profile: str, proto: onnx.ModelProto) -> None:
    report = prove_profile(proto)
    clips = report.ops.get("Clip", 0)
    compared = report.ops.get("Max", 0) + report.ops.get("Min", 0)
    plain = (profile == "fused" and not clips) or (profile == "minmax" and not compared)
    assert report.profile == ("structured" if plain else profile)
    assert bool(clips) <= (profile == "fused")
    if profile == "dense":
        assert report.ops.get("Relu", 0) == len(case.net.layers)
