"""The checker proves a profile from the graph alone, and is not fooled by graphs that only look like one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from exporter.build import build, to_onnx
from exporter.constructions import CONSTRUCTIONS
from exporter.passes.profiles import PROFILES, prove_profile
from exporter.problem import task as tasks
from exporter.problem.spec import Spec
from tests.catalogue import construction_case
from tests.running import proto_of

Graph = onnx.GraphProto
NET = construction_case("depth3", tasks.median(3)).net


def constant(graph: Graph, name: str, value: object) -> str:
    graph.initializer.append(numpy_helper.from_array(np.asarray(value, dtype=np.float32), name))
    return name


def append(graph: Graph, op: str, *inputs: str, **attributes: Any) -> None:
    """Put one more node between the last one and the output."""
    graph.node[-1].output[0] = "before"
    names = ["before" if name == "LAST" else name for name in inputs]
    graph.node.append(helper.make_node(op, names, ["y"], name="tampered", **attributes))


def product_of_two(graph: Graph) -> None:
    append(graph, "Mul", "LAST", "LAST")


def matmul_of_two(graph: Graph) -> None:
    append(graph, "MatMul", "LAST", "LAST")


def gemm_of_two(graph: Graph) -> None:
    append(graph, "Gemm", "LAST", "LAST", constant(graph, "zero", [0.0]))


def sigmoid(graph: Graph) -> None:
    append(graph, "Sigmoid", "LAST")


def division(graph: Graph) -> None:
    append(graph, "Div", constant(graph, "one", 1.0), "LAST")


def top_k(graph: Graph) -> None:
    append(graph, "TopK", "LAST", constant(graph, "k", 1.0))


def moving_clip(graph: Graph) -> None:
    append(graph, "Clip", "LAST", "LAST")


def data_dependent_gather(graph: Graph) -> None:
    append(graph, "Gather", constant(graph, "table", np.arange(4)), "LAST")


def foreign_domain(graph: Graph) -> None:
    append(graph, "Relu", "LAST", domain="com.example")


def two_outputs(graph: Graph) -> None:
    graph.output.append(helper.make_tensor_value_info(graph.node[0].output[0], TensorProto.FLOAT, None))


def two_inputs(graph: Graph) -> None:
    graph.input.append(helper.make_tensor_value_info("second", TensorProto.FLOAT, ["batch_size", 3]))
    append(graph, "Add", "LAST", "second")


HOSTILE = [
    product_of_two, matmul_of_two, gemm_of_two, sigmoid, division, top_k, moving_clip, data_dependent_gather,
    foreign_domain, two_outputs, two_inputs,
]  # fmt: skip


@pytest.mark.parametrize("profile", ["dense", "structured", "fused"])
@pytest.mark.parametrize("tamper", HOSTILE, ids=lambda f: f.__name__)
def test_what_is_no_relu_network_fits_no_profile(tamper: Callable[[Graph], None], profile: str) -> None:
    proto = proto_of(NET, profile, "float32")
    assert prove_profile(proto).profile == profile
    tamper(proto.graph)
    report = prove_profile(proto)
    assert report.profile is None
    assert set(report.reasons) == set(PROFILES)


def clip(graph: Graph) -> None:
    append(graph, "Clip", "LAST", constant(graph, "lo", 0.0), constant(graph, "hi", 1.0))


def test_a_clip_makes_structured_fused() -> None:
    proto = proto_of(NET, "structured", "float32")
    clip(proto.graph)
    report = prove_profile(proto)
    assert report.profile == "fused"
    assert "Clip" in report.reasons["structured"]


def branch(graph: Graph) -> None:
    append(graph, "Add", "LAST", "LAST")


def skip_connection(graph: Graph) -> None:
    graph.node[2].input[0] = graph.node[0].output[0]


def halved(graph: Graph) -> None:
    graph.node[0].attribute.append(helper.make_attribute("alpha", 0.5))


def transposed(graph: Graph) -> None:
    graph.node[0].attribute.append(helper.make_attribute("transA", 1))


def trailing_relu(graph: Graph) -> None:
    append(graph, "Relu", "LAST")


def no_bias(graph: Graph) -> None:
    del graph.node[0].input[2]


def earlier_output(graph: Graph) -> None:
    graph.output[0].name = graph.node[-3].output[0]


@pytest.mark.parametrize(
    "tamper",
    [clip, branch, skip_connection, halved, transposed, trailing_relu, no_bias, earlier_output],
    ids=lambda f: f.__name__,
)
def test_what_is_no_gemm_chain_is_not_dense(tamper: Callable[[Graph], None]) -> None:
    proto = proto_of(NET, "dense", "float32")
    tamper(proto.graph)
    report = prove_profile(proto)
    assert report.profile != "dense"
    assert report.reasons["dense"]


def test_products_of_constants_are_constants() -> None:
    proto = proto_of(NET, "structured", "float32")
    graph = proto.graph
    two = constant(graph, "two", 2.0)
    graph.node.insert(0, helper.make_node("Mul", [two, two], ["four"]))
    append(graph, "Mul", "LAST", "four")
    assert prove_profile(proto).profile == "structured"


@pytest.mark.parametrize("name", [name for name, each in CONSTRUCTIONS.items() if not each.uniform])
def test_a_relu_stands_between_the_constants_of_the_rounding(name: str) -> None:
    """Compilers join constants that are added in a row, which would undo c - (c - x); through a ReLU they cannot."""
    task = tasks.extremum(25, "max") if name.endswith("-max") else tasks.median(25)
    model = build(Spec(task, name, domain=(-1, 1), bits=16, profile="structured"))
    layers = model.description()["guard_layers"]
    assert layers == 4
    ops = [n.op_type for n in to_onnx(model).graph.node]
    assert [op for op in ops if op != "Mul"][: 2 * layers] == [
        "Add",
        "Relu",
        "Sub",
        "Relu",
        "Sub",
        "Relu",
        "Sub",
        "Relu",
    ]
