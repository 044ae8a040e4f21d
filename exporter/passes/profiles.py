"""The profiles. Each says which operators a file may have, how the file is written, and how a file is proven to fit.

    dense        one chain Gemm, Relu, Gemm, ..., Gemm with constant weights
    matmul       one chain MatMul, Add, Relu, MatMul, ..., Add with constant weights
    structured   Relu is the only non-linear node; every product has a constant factor
    fused        structured, and Clip with constant bounds, ReduceMax
    minmax       Max and Min, moves of entries, and the mean of two; in int8 and uint8 as QDQ (exporter.passes.int8)

A new profile is one entry of PROFILES, from the strictest to the most permissive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

import onnx

from exporter.ir.graph import Graph, data_inputs
from exporter.ir.network import Network, weights
from exporter.passes.batch_last import batch_graph
from exporter.passes.comparators import comparator_graph
from exporter.passes.dense import dense_graph
from exporter.passes.lowering import structured_graph

AFFINE = {
    "Add", "Sub", "Mul", "MatMul", "Gemm", "Reshape", "Slice", "Concat", "Transpose", "Expand", "ReduceSum", "Gather",
    "Pad",
}  # fmt: skip
PRODUCTS = {"Mul", "MatMul", "Gemm"}
WITH_PARAMETERS = {"Reshape", "Slice", "Expand", "Gather", "ReduceSum", "Clip", "Pad"}


@dataclass(frozen=True)
class Profile:
    """One entry of the catalogue.

    `write` lowers a network in a dtype, `batches` lowers a network for large batches. The file is one chain that repeats
    the operators `chain`, or a graph of affine nodes and the operators `nonlinear`. `pair`: the number of neurons that one
    number of a run counts for at most; Clip counts for two. `floats`: the profile only compares and moves numbers, so it
    needs no grid and no guard, and takes only networks of comparators.
    """

    name: str
    operators: str
    purpose: str
    write: Callable[[Network, str], Graph]
    _: KW_ONLY
    chain: tuple[str, ...] = ()
    nonlinear: frozenset[str] = frozenset()
    pair: int = 1
    floats: bool = False
    batches: Callable[[Network, str], Graph] | None = None

    def graph(self, net: Network, dtype: str, optimize_for: str = "throughput", batch: int | None = None) -> Graph:
        """The graph of a network: in the form for large batches, if the profile has one and the file is for batches."""
        if self.batches and in_batches(optimize_for, batch):
            return self.batches(net, dtype)
        return self.write(net, dtype)

    @property
    def clips(self) -> bool:
        """Whether the profile has Clip, and so writes the fused formula."""
        return self.pair > 1

    @property
    def merged(self) -> bool:
        """Whether the file is one chain of merged maps, which stores every zero and sums in its own order."""
        return bool(self.chain)

    def why_not(self, model: onnx.ModelProto) -> str | None:
        """The reason why a file does not fit the profile, or None."""
        return _not_chain(model, self.chain) if self.chain else _not_affine(model, self.nonlinear, widens=self.floats)


def in_batches(optimize_for: str, batch: int | None) -> bool:
    """Whether a file is meant for many vectors per run."""
    return optimize_for == "throughput" and batch != 1


@dataclass(frozen=True)
class ProfileReport:
    """The strictest profile that the graph fits, or None, and for each stricter profile the reason why it does not fit."""

    profile: str | None
    reasons: dict[str, str]
    ops: dict[str, int]


def prove_profile(model: onnx.ModelProto) -> ProfileReport:
    ops = dict(sorted(Counter(n.op_type for n in model.graph.node).items()))
    reasons: dict[str, str] = {}
    for profile in (IMAGE_PROFILES if takes_images(model) else PROFILES).values():
        reason = _not_single(model) or profile.why_not(model)
        if reason is None:
            return ProfileReport(profile.name, reasons, ops)
        reasons[profile.name] = reason
    return ProfileReport(None, reasons, ops)


def takes_images(model: onnx.ModelProto) -> bool:
    """Whether the input of a graph has the four axes [n, c, h, w]."""
    return [len(i.type.tensor_type.shape.dim) for i in data_inputs(model)] == [4]


def _not_single(model: onnx.ModelProto) -> str | None:
    inputs, outputs = data_inputs(model), model.graph.output
    if len(inputs) != 1 or len(outputs) != 1:
        return f"{len(inputs)} inputs and {len(outputs)} outputs instead of one each"
    if any(n.domain not in ("", "ai.onnx") for n in model.graph.node):
        return "operators outside the default domain"
    return None


def _not_chain(model: onnx.ModelProto, ops: tuple[str, ...]) -> str | None:
    """The reason why the graph is not a chain that repeats the operators `ops` and ends before the last Relu, or None."""
    graph = model.graph
    stored = {t.name for t in graph.initializer}
    current = data_inputs(model)[0].name
    for i, node in enumerate(graph.node):
        if node.op_type != ops[i % len(ops)]:
            return f"node {i} is {node.op_type}: the chain is {', '.join(ops)}, {ops[0]}, ..."
        if any(a.name in ("alpha", "beta", "transA") for a in node.attribute):
            return f"node {i}: alpha, beta and transA must be left at their defaults"
        if node.input[0] != current:
            return f"node {i} does not read the node before it"
        if any(name not in stored for name in node.input[1:]) or (node.op_type == "Gemm" and len(node.input) != 3):
            return f"node {i}: weights and bias must be stored tensors"
        current = node.output[0]
    if len(graph.node) % len(ops) != len(ops) - 1 or current != graph.output[0].name:
        return f"the chain does not end in the {ops[-2]} that is the output"
    return None


def _type_of_ends(model: onnx.ModelProto, node: onnx.NodeProto) -> bool:
    """Whether a node only converts the type of x or y."""
    return node.op_type == "Cast" and (
        node.input[0] == model.graph.input[0].name or node.output[0] == model.graph.output[0].name
    )


def _to_float64(node: onnx.NodeProto) -> bool:
    return node.op_type == "Cast" and node.attribute[0].i == onnx.TensorProto.DOUBLE


def _not_affine(model: onnx.ModelProto, nonlinear: frozenset[str], widens: bool) -> str | None:
    """The reason why a graph has other nodes than affine ones and these operators, or None.

    `widens`: a Cast to float64 is allowed.
    """
    fixed = {t.name for t in model.graph.initializer} | {""}
    for node in model.graph.node:
        if _type_of_ends(model, node) or (widens and _to_float64(node)):
            continue
        if node.op_type not in AFFINE | nonlinear:
            return f"{node.op_type} is neither affine nor {' or '.join(sorted(nonlinear))}"
        moving = [name for name in node.input if name not in fixed]
        if not moving:
            fixed.update(node.output)  # computed from constants alone
            continue
        if node.op_type in PRODUCTS and len(moving) > 1 and not (node.op_type == "Gemm" and _bias_only(node, fixed)):
            return f"{node.op_type} {node.name} multiplies two values that depend on the input"
        if node.op_type in WITH_PARAMETERS and moving != [node.input[0]]:
            return f"{node.op_type} {node.name} has parameters that depend on the input"
    return None


def _bias_only(node: onnx.NodeProto, fixed: set[str]) -> bool:
    return node.input[0] in fixed or node.input[1] in fixed


PROFILES = {
    p.name: p
    for p in (
        Profile(
            "dense", "Gemm and Relu, one chain", "verifiers, small d",
            lambda net, dtype: dense_graph(weights(net), dtype), chain=("Gemm", "Relu"),
        ),
        Profile(
            "matmul", "MatMul, Add and Relu, one chain", "loaders without Gemm",
            lambda net, dtype: dense_graph(weights(net), dtype, gemm=False), chain=("MatMul", "Add", "Relu"),
        ),
        Profile(
            "structured", "Relu is the only non-linear one, the rest affine with constant weights",
            "every runtime, any d", structured_graph, nonlinear=frozenset({"Relu"}),
        ),
        Profile(
            "fused",
            "structured, with Clip for relu(v) - relu(v - 1) and the guard, ReduceMax for a tree of maxima",
            "onnxruntime, serving", lambda net, dtype: structured_graph(net, dtype, fused=True),
            nonlinear=frozenset({"Relu", "Clip", "ReduceMax"}), pair=2, batches=batch_graph,
        ),
        Profile(
            "minmax", "Max and Min, right on every float: no grid, no domain",
            "runtimes with Max and Min but no TopK", comparator_graph,
            nonlinear=frozenset({"Max", "Min", "QuantizeLinear", "DequantizeLinear"}), floats=True,
        ),
    )
}  # fmt: skip


# profiles of image filters, which exporter.frontends.images writes; from the strictest to the most permissive
IMAGE_PROFILES = {name: PROFILES[name] for name in ("structured", "fused", "minmax")}
