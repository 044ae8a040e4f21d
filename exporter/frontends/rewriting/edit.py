"""New nodes in the place of one node of a model, under names of their own."""

from __future__ import annotations

import re

import onnx_ir as ir

from exporter.frontends.rewriting.emission import Emission
from exporter.frontends.rewriting.find import Request
from exporter.ir.graph import Graph


def names_of(model: ir.Model) -> set[str | None]:
    """Every name of the model: of nodes, of what they read and make, of inputs and constants."""
    nodes = list(model.graph.all_nodes())
    values = [v for node in nodes for v in (*node.inputs, *node.outputs) if v]
    values += [*model.graph.inputs, *model.graph.initializers.values()]
    return {node.name for node in nodes} | {value.name for value in values}


def prefix_for(request: Request, taken: set[str | None]) -> str:
    """What the new names begin with: no name of the model does."""
    base = re.sub(r"\W+", "_", request.node).strip("_") or "node"
    prefix = f"{base}_sorted_"
    while any(name and name.startswith(prefix) for name in taken):
        prefix += "_"
    taken.add(prefix)
    return prefix


def replace(graph: ir.Graph, node: ir.Node, request: Request, emission: Emission) -> None:
    """Our nodes in place of one; what only that one read goes too."""
    made = _nodes(graph, emission.graph)
    names = {request.values: emission.values, request.indices: emission.indices}
    old = [value for value in node.outputs if value.name and names.get(value.name)]
    new = [made[names[value.name] or ""] for value in old]
    for before, after in zip(old, new, strict=True):
        after.type, after.shape, name = before.type, before.shape, before.name
        before.name = f"{emission.graph.prefix}replaced_{name}"
        after.name = name
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    nodes = list({id(v.producer()): v.producer() for v in made.values() if v.producer()}.values())
    graph.insert_before(node, [n for n in nodes if n is not None and n.graph is None])
    read = list(node.inputs)
    graph.remove(node, safe=True)
    for value in read:
        _forget(graph, value)


def _forget(graph: ir.Graph, value: ir.Value | None) -> None:
    """Remove what computed a value that nothing reads any more."""
    if value is None or value.uses() or value.is_graph_output() or value.is_graph_input():
        return
    producer = value.producer()
    if producer is None:
        graph.initializers.pop(value.name or "", None)
    elif producer.graph is not None and not any(v.uses() or v.is_graph_output() for v in producer.outputs):
        inputs = list(producer.inputs)
        graph.remove(producer, safe=True)
        for each in inputs:
            _forget(graph, each)


def _nodes(graph: ir.Graph, ours: Graph) -> dict[str, ir.Value]:
    """Our nodes and constants as values of the model's graph, by name."""
    known = [*(v for node in graph for v in node.outputs), *graph.inputs, *graph.initializers.values()]
    values = {v.name or "": v for v in known}
    made: dict[str, ir.Value] = {}
    for name, tensor in ours.initializers.items():
        constant = ir.serde.deserialize_tensor(tensor)
        value = ir.Value(
            name=name, const_value=constant, type=ir.TensorType(constant.dtype), shape=ir.Shape(tensor.dims)
        )
        graph.register_initializer(value)
        values[name] = value
    for node in ours.nodes:
        attributes = [ir.serde.deserialize_attribute(a) for a in node.attribute]
        new = ir.Node("", node.op_type, [values[i] for i in node.input], attributes, num_outputs=1, name=node.name)
        new.outputs[0].name = node.output[0]
        values[node.output[0]] = made[node.output[0]] = new.outputs[0]
    return made
