"""New nodes in the place of nodes of a model, under names of their own."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import onnx

from exporter.formats.quantisation import EXCLUDE, listed
from exporter.frontends.rewriting.emission import Emission
from exporter.frontends.rewriting.files import graphs_of
from exporter.frontends.rewriting.find import Request


def names_of(proto: onnx.ModelProto) -> set[str]:
    """Every name of the model: of nodes, of what they read and make, of inputs and constants."""
    nodes = [node for graph in graphs_of(proto) for node in graph.node]
    names = {name for node in nodes for name in (node.name, *node.input, *node.output)}
    return names | {each.name for each in (*proto.graph.input, *proto.graph.initializer)}


def prefix_for(request: Request, taken: set[str]) -> str:
    """What the new names begin with: no name of the model does."""
    base = re.sub(r"\W+", "_", request.node).strip("_") or "node"
    prefix = f"{base}_sorted_"
    while any(name.startswith(prefix) for name in taken):
        prefix += "_"
    taken.add(prefix)
    return prefix


def edited(proto: onnx.ModelProto, made: Mapping[int, tuple[Request, Emission]]) -> onnx.ModelProto:
    """The model with new nodes in place of the nodes at the given places. What only those nodes read goes too."""
    after = onnx.ModelProto()
    after.CopyFrom(proto)
    del after.graph.node[:]
    ours: list[str] = []
    for place, node in enumerate(proto.graph.node):
        if place not in made:
            after.graph.node.append(node)
            continue
        request, emission = made[place]
        outputs = ((emission.values, request.values), (emission.indices, request.indices))
        emission.graph.rename({new: old for new, old in outputs if new and old})
        after.graph.node.extend(emission.graph.nodes)
        after.graph.initializer.extend(emission.graph.initializers.values())
        ours += [new.name for new in emission.graph.nodes]
    _forget(after, [name for place in made for name in proto.graph.node[place].input])
    if ours:
        props = {p.key: p for p in after.metadata_props}
        entry = props[EXCLUDE] if EXCLUDE in props else after.metadata_props.add(key=EXCLUDE, value="[]")
        entry.value = json.dumps([*listed(entry.value), *ours])
    return after


def _forget(proto: onnx.ModelProto, names: list[str]) -> None:
    """Remove the constants and nodes that made these tensors, if nothing reads them any more."""
    graph, graphs = proto.graph, graphs_of(proto)
    reads = Counter(name for each in graphs for node in each.node for name in node.input)
    reads.update(getattr(output, "name", output) for each in graphs for output in each.output)
    makers = {name: node for node in graph.node for name in node.output}
    gone: set[str] = set()
    while names:
        name = names.pop()
        node = makers.get(name)
        if not name or name in gone or any(reads[other] for other in (node.output if node is not None else [name])):
            continue
        gone.update([name] if node is None else node.output)
        for read in node.input if node is not None else ():
            reads[read] -= 1
            names.append(read)
    gone -= {source.name for source in graph.input}
    made = {name for node in graph.node for name in node.output} - gone
    _keep(graph.node, lambda node: made.issuperset(filter(None, node.output)))
    _keep(graph.initializer, lambda tensor: tensor.name not in gone)
    _keep(graph.value_info, lambda value: value.name in made)


def _keep(field: Any, wanted: Callable[[Any], bool]) -> None:
    for place in reversed(range(len(field))):
        if not wanted(field[place]):
            del field[place]
