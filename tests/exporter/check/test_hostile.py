"""Files that were made to deceive the checker: each rounds, overflows or mixes data where a lemma is easily misread."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from exporter.build import build, to_onnx
from exporter.check import check
from exporter.frontends.images.build import build_filter, filter_to_onnx
from exporter.problem import task as tasks
from exporter.problem.grid import Grid
from exporter.problem.spec import Spec
from tests.exporter.check.rational import RATIONAL, exact
from tests.exporter.check.test_check import answers, described

ABOUT: dict[str, Any] = {
    "producer": "onnx-median", "domain": [0.0, 1.0], "bits": 8, "profile": "fused", "dtype": "float32", "inputs": "grid",
    "grid_error": 0.0, "off_grid_error": 0.5, "outputs": [{"weights": [1.0]}],
}  # fmt: skip
BIG = 2.0**20


def file(nodes: list[Any], d: int = 1, out: int = 1, **more: Any) -> onnx.ModelProto:
    """A file from nodes (op, inputs, output, attributes): a number or an array among the inputs is stored."""
    stored: dict[str, Any] = {}

    def name(value: Any) -> str:
        if isinstance(value, str):
            return value
        array = np.asarray(value)
        array = array.astype(np.float32) if array.dtype.kind == "f" else array
        return stored.setdefault(f"c{len(stored)}", numpy_helper.from_array(array, f"c{len(stored)}")).name

    made = [
        helper.make_node(op, [name(i) for i in inputs], [out], name=attributes.pop("called", out), **attributes)
        for op, inputs, out, attributes in ((n[0], n[1], n[2], dict(n[3]) if len(n) > 3 else {}) for n in nodes)
    ]
    x, y = (helper.make_tensor_value_info(end, TensorProto.FLOAT, ["n", n]) for end, n in (("x", d), ("y", out)))
    graph = helper.make_graph(made, "hostile", [x], [y], list(stored.values()))
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    about = ABOUT | more
    lo, hi = about["domain"]
    about["step"] = Grid(lo, hi, about["bits"]).step
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in about.items()}
    helper.set_model_props(proto, texts)
    return proto


def guard(x: str, out: str, c: float) -> list[Any]:
    """Nodes that round data of [0, 1] as c - (c - x), and clamp it."""
    return [("Sub", [c, x], f"{out}1"), ("Sub", [c, f"{out}1"], f"{out}2"), ("Clip", [f"{out}2", 0.0, 1.0], out)]


def test_the_files_of_this_module_are_proven_without_their_trick() -> None:
    assert check(file([("Mul", ["x", 1.0], "y")])).proven
    proto = file([*guard("x", "r", 2.0**16), ("Mul", ["r", 1.0], "y")], inputs="any")
    assert str(check(proto)) == "proven"


def test_partial_sums_that_overflow() -> None:
    """All pairs cancel, and a sum of the first four is infinite."""
    up = [[1.0] * 8], [0.0] * 4 + [-(2.0**118)] * 4
    signs = np.repeat([1.0, -1.0], 4)[:, None]
    proto = file(
        [("Gemm", ["x", *up], "v"), ("Relu", ["v"], "r"), ("Gemm", ["r", signs], "y")], domain=[0.0, 2.0**126]
    )  # fmt: skip
    assert "largest float32" in check(proto).reason


def test_products_with_weights_that_are_no_powers_of_two_round_as_well() -> None:
    weights = np.array([[0.3], [0.7]], np.float32)
    proto = file([("Gemm", ["x", weights], "y")], d=2, bits=16, grid_error=1.0)
    bound = check(proto).bound
    assert bound
    x = (np.random.default_rng(0).integers(0, 2**16 + 1, (4000, 2)) / 2.0**16).astype(np.float32)
    error = max(abs(RATIONAL(answers(proto, x)) - exact(proto, x)).ravel())
    assert 2.0**-25 < error <= bound
    assert not check(described(proto, grid_error=repr(float(error) / 2))).proven


def test_two_stored_tensors_behind_nodes_of_one_name() -> None:
    """Their difference is not 0."""
    dims = np.array([1, 2])
    proto = file(
        [
            ("Reshape", [np.array([BIG, BIG + 1]), dims], "a", {"called": "same"}),
            ("Reshape", [np.array([0.0, 1.0]), dims], "b", {"called": "same"}),
            ("Sub", ["a", "b"], "difference"),
            ("Add", ["x", "difference"], "y"),
        ],
        d=2, out=2,
    )  # fmt: skip
    assert not check(proto).proven


def test_a_tensor_that_is_written_twice() -> None:
    proto = file([("Mul", ["x", 1.0], "v"), ("Mul", ["x", BIG], "v"), ("Sub", ["x", "v"], "y")])
    assert "written twice" in check(proto).reason


def test_data_that_is_rounded_twice() -> None:
    """Two roundings of one number may differ, and here their difference is taken four times."""
    nodes = [*guard("x", "a", 2.0**16), *guard("x", "b", 2.0**16), ("Sub", ["a", "b"], "apart")]
    proto = file([*nodes, ("Mul", ["apart", 4.0], "more"), ("Add", ["a", "more"], "y")], inputs="any")
    assert "twice" in check(proto).reason


def test_data_that_underflows_before_it_is_rounded() -> None:
    nodes = [("Mul", ["x", 2.0**-100], "a"), ("Mul", ["a", 2.0**-45], "b"), ("Mul", ["b", 2.0**100], "c")]
    proto = file(
        [*nodes, ("Mul", ["c", 2.0**45], "e"), *guard("e", "r", 2.0**16), ("Mul", ["r", 1.0], "y")], inputs="any"
    )
    assert not check(proto).proven
    x = np.array([[2.0**-8]], np.float32)
    assert answers(proto, x) != x


def planar(**options: Any) -> onnx.ModelProto:
    return filter_to_onnx(build_filter(Spec(tasks.median(9), window=(3, 3), profile="structured", **options)))


def before(proto: onnx.ModelProto, at: int, i: int, nodes: list[tuple[str, float]]) -> onnx.ModelProto:
    """The file with operations between input i of a node and what it reads."""
    name = proto.graph.node[at].input[i]
    for n, (op, number) in enumerate(nodes):
        proto.graph.initializer.append(numpy_helper.from_array(np.array(number, np.float32), f"number{n}"))
        proto.graph.node.insert(at + n, helper.make_node(op, [name, f"number{n}"], [f"new{n}"], name=f"new{n}"))
        name = f"new{n}"
    proto.graph.node[at + len(nodes)].input[i] = name
    return proto


def test_a_border_that_is_rounded_more_coarsely_than_the_image() -> None:
    proto = planar()
    assert check(proto).proven
    at = next(i for i, node in enumerate(proto.graph.node) if node.op_type == "Concat")
    coarse = before(proto, at, 0, [("Add", 2.0**40), ("Sub", 2.0**40)])
    assert not check(coarse).proven
    x = np.random.default_rng(0).integers(100, 201, (1, 1, 8, 8)).astype(np.float32)
    assert (answers(coarse, x) != answers(planar(), x)).any()


@pytest.mark.parametrize("op", ["Pad", "Concat", "Slice"])
def test_an_image_that_rounds_and_then_moves(op: str) -> None:
    proto = planar(border="valid")
    proto.graph.node[-1].output[0] = "v"
    numbers = {
        "third": np.array(1 / 3, np.float32),
        "pads": np.zeros(8, int),
        "ends": np.array([9999]),
        "at": np.array([2]),
    }
    proto.graph.initializer.extend(numpy_helper.from_array(v, name) for name, v in numbers.items())
    inputs = {"Pad": ["w", "pads"], "Concat": ["w", "w"], "Slice": ["w", "at", "ends", "at"]}[op]
    attributes: dict[str, Any] = {"axis": 2} if op == "Concat" else {}
    proto.graph.node.append(helper.make_node("Mul", ["v", "third"], ["w"], name="rounds"))
    proto.graph.node.append(helper.make_node(op, inputs, ["y"], name="moves", **attributes))
    assert check(proto).node == "rounds"


def test_vectors_of_a_batch_that_meet_each_other() -> None:
    turned = [("Transpose", ["x"], "t", {"perm": [1, 0]}), ("Add", ["x", "t"], "y")]
    assert "mixed" in check(file(turned)).reason


@pytest.mark.parametrize("axis", [0, 1])
def test_images_of_a_batch_that_are_sliced_off(axis: int) -> None:
    proto = planar(border="valid")
    assert check(proto).proven
    node = next(node for node in proto.graph.node if node.op_type == "Slice")
    axes = next(t for t in proto.graph.initializer if t.name == node.input[3])
    axes.CopyFrom(numpy_helper.from_array(np.full_like(numpy_helper.to_array(axes), axis), axes.name))
    assert "batch" in check(proto).reason


def test_the_guard_of_a_file_with_one_number_changed() -> None:
    """A file whose guard rounds to a coarser grid, or to a finer one, or clamps elsewhere."""
    proto = to_onnx(build(Spec(tasks.median(3), "batcher", bits=8, dtype="float32", profile="structured")))
    assert check(proto).proven
    first = {name for node in proto.graph.node[:4] for name in node.input}
    for tensor in [t for t in proto.graph.initializer if t.name in first and t.data_type == TensorProto.FLOAT]:
        for factor in (2.0, 0.5, 1 + 2.0**-7, -1.0):
            mutant = onnx.ModelProto()
            mutant.CopyFrom(proto)
            changed = next(t for t in mutant.graph.initializer if t.name == tensor.name)
            changed.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(factor), tensor.name))
            x = (np.arange(257, dtype=np.float32) / 256)[:, None].repeat(3, 1)
            with np.errstate(all="ignore"):
                same = np.array_equal(answers(mutant, x)[:, 0], exact(mutant, x)[:, 0].astype(np.float64))
            assert same or not check(mutant).proven


FULL: dict[str, Any] = {"d": 2, "bits": 24}  # a float32 holds no sum above 1
EACH: list[Any] = [("Gemm", ["x", [[1.0], [0.0]]], "a"), ("Gemm", ["x", [[0.0], [1.0]]], "b")]


@pytest.mark.parametrize(("end", "proven"), [(1.0, True), (1.5, False)])
def test_a_gap_that_leads_beyond_the_largest_float(end: float, proven: bool) -> None:
    """a + relu(b) - relu(b - (end - a)) is at most max(a, end): the difference lemma."""
    over = [("Sub", [end, "a"], "room"), ("Sub", ["b", "room"], "over"), ("Relu", ["over"], "more")]
    gap = [*EACH, *over, ("Relu", ["b"], "gap"), ("Sub", ["gap", "more"], "kept"), ("Add", ["a", "kept"], "y")]
    assert check(file(gap, **FULL)).proven == proven


def test_a_difference_of_unequal_parts() -> None:
    """a + relu(b) - relu(b - (1 - a)) / 2 is up to 3/2."""
    over = [("Sub", [1.0, "a"], "room"), ("Sub", ["b", "room"], "over"), ("Relu", ["over"], "more")]
    halved = [("Mul", ["more", 0.5], "half"), ("Relu", ["b"], "gap"), ("Sub", ["gap", "half"], "kept")]
    assert not check(file([*EACH, *over, *halved, ("Add", ["a", "kept"], "y")], **FULL)).proven


@pytest.mark.parametrize(("read", "first", "proven"), [("b", 2, True), ("b", 0, False), ("a", 2, False)])
def test_an_entry_on_both_sides_of_a_threshold(read: str, first: int, proven: bool) -> None:
    """relu(b - 2u) + relu(u - relu(v - u)) / u is at most 1 for v = b alone: the corner lemma."""
    u = 2.0**-24
    ramp = [("Sub", ["b", first * u], "c"), ("Relu", ["c"], "ramp")]
    side = [("Sub", [read, u], "e"), ("Relu", ["e"], "f"), ("Sub", [u, "f"], "g"), ("Relu", ["g"], "side")]
    both = [("Mul", ["side", 1 / u], "before"), ("Add", ["ramp", "before"], "y")]
    assert check(file([*EACH, *ramp, *side, *both], **FULL)).proven == proven
