"""Which tensors of a network tell its story: found once, when the page's data is written (`page_data`).

Tensors are found by the operations around them, because their names mean nothing. The first story that finds all its tensors
is told. A network without a story is shown layer by layer.

The layer of neurons is one more than that of the neurons they read. Where a tensor holds one value for every input entry,
or for some of them in another order, `origin` says which entry each value is of: as long as values are only picked,
compared and exchanged, the graph knows where they came from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from service.watch.network import LayerOfNeurons, OpenNetwork, attribute, slices

FEW = 64  # thresholds of a digit
GUARD = "round and clamp"
Scene = dict[str, Any]


class ReadNetwork(OpenNetwork):
    """A network of which the layer and the origin of every tensor are known."""

    def __init__(self, content: bytes, modules: list[str]) -> None:
        super().__init__(content, ())
        self.levels = {self.input: 0}
        for node in self.nodes:
            if node.output[0] not in self.constants:
                before = max(self.levels[name] for name in node.input if name in self.levels)
                self.levels[node.output[0]] = before + (node.op_type == "Relu")
        found: dict[int, list[str]] = {}
        for name, level in self.levels.items():
            if self.is_neuron(name):
                found.setdefault(level, []).append(name)
        self.modules = modules
        self.layers = [
            LayerOfNeurons(level, modules[level - 1], tuple(found[level])) for level in range(1, len(modules) + 1)
        ]

    @cached_property
    def readers(self) -> dict[str, list[onnx.NodeProto]]:
        found: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in node.input:
                found.setdefault(name, []).append(node)
        return found

    @cached_property
    def origin(self) -> dict[str, npt.NDArray[np.int64]]:
        """Which input entry each value of a tensor is of, for tensors of which that can be said."""
        found = {self.input: np.arange(self.d).reshape(1, self.d)}
        for node in self.nodes:
            out = node.output[0]
            if out in self.levels and (entries := self._origin_of(node, found)) is not None:
                found[out] = entries
        return found

    def _origin_of(
        self, node: onnx.NodeProto, found: Mapping[str, npt.NDArray[np.int64]]
    ) -> npt.NDArray[np.int64] | None:
        shape = self.shapes[node.output[0]]
        size = int(np.prod(shape))
        if node.op_type == "Concat":
            parts = [found.get(name) for name in node.input]
            known = [part for part in parts if part is not None]
            return np.concatenate(known, attribute(node, "axis")) if len(known) == len(parts) else None
        # the first operand that has an entry for every value: a - excess and b + excess are of a and b
        first = next((found[name] for name in node.input if name in found), None)
        if first is None:
            return None
        if node.op_type in ("Relu", "Reshape") or (node.op_type in ("Add", "Sub", "Mul") and first.size == size):
            return first.reshape(shape) if first.size == size else None
        if node.op_type == "Gather":
            return first.take(self.constants[node.input[1]], attribute(node, "axis", 0))
        if node.op_type == "Slice":
            return first[slices(self, node)]
        return None

    def aligned(self, name: str) -> bool:
        """Whether a tensor has one value for every input entry, in their order."""
        entries = self.origin.get(name)
        return entries is not None and entries.size == self.d and bool((entries.reshape(-1) == np.arange(self.d)).all())

    def source(self, name: str) -> str:
        """The tensor behind reshapes."""
        while name in self.makers and self.makers[name].op_type == "Reshape":
            name = self.makers[name].input[0]
        return name

    def is_step(self, name: str) -> bool:
        """relu(v) - relu(v - h): the paper's trim."""
        node = self.makers.get(self.source(name))
        if node is None or name not in self.levels or node.op_type != "Sub":
            return False
        return all(map(self.is_neuron, map(self.source, node.input)))


def layers(network: ReadNetwork) -> list[tuple[str, ...]]:
    """The tensors of every layer."""
    return [layer.tensors for layer in network.layers]


def story(network: ReadNetwork) -> Scene:
    """The kind of the story of a network, and the tensors of its scenes."""
    told = ((kind, find(network)) for kind, find in STORIES.items())
    kind, scenes = next((each for each in told if each[1]), ("live", []))
    return {"kind": kind, "scenes": scenes}


def _bracket(network: ReadNetwork) -> list[Scene]:
    """The moves of the lower end by every digit but the last."""
    last: dict[str, int] = {}
    for layer in network.layers:
        if layer.name.startswith("digit "):
            last[layer.name] = layer.number
    scenes: list[Scene] = []
    for name, number in last.items():
        moves = _moves(network, number)
        if moves is None:
            break
        scenes.append({"layer": number, "name": name, "moves": moves})
    return scenes


def _moves(network: ReadNetwork, layer: int) -> str | None:
    """The steps that one digit adds to the lower end: the last thing its layers compute."""
    few = [name for name in network.levels if np.prod(network.shapes[name]) < FEW]
    for name in few:
        if network.levels[name] == layer and network.is_step(name) and network.source(name) == name:
            return name
    # relu(s - relu(s - v)), a step in two layers
    return next((name for name in network.layers[layer - 1].tensors if name in few), None)


def _exchanges(network: ReadNetwork) -> list[Scene]:
    """Every neuron relu(a - b) of two wires is a comparator: a - relu(a - b) is the smaller, b + relu(a - b) the larger."""
    scenes: list[Scene] = []
    for layer in network.layers:
        scene: Scene = {"layer": layer.number, "pairs": [], "excess": [], "wires": []}
        for name in layer.tensors:
            before = network.makers[network.makers[name].input[0]]
            ends = [
                network.origin[operand].reshape(-1).tolist() for operand in before.input if operand in network.origin
            ]
            if before.op_type != "Sub" or len(ends) != 2 or ends[0] == ends[1] or len(ends[0]) != len(ends[1]):
                continue
            a, b = ends
            scene["pairs"] += [[i, j] for i, j in zip(a, b, strict=True)]
            scene["excess"].append(name)
            for reader in network.readers.get(name, ()):
                wires = network.origin.get(reader.output[0])
                if wires is not None:
                    scene["wires"].append([reader.output[0], wires.reshape(-1).tolist()])
        if scene["pairs"]:
            scenes.append(scene)
    return scenes


def _pairs(network: ReadNetwork) -> list[Scene]:
    """The matrix [x_i beats x_j], and its row sums."""
    for name, level in network.levels.items():
        size = int(np.prod(network.shapes[name]))
        if size == network.d**2 and network.is_step(name) and network.makers[name].op_type == "Sub":
            (sums,) = (node.output[0] for node in network.readers[name] if node.op_type == "Gemm")
            return [{"layer": level, "matrix": name, "wins": sums}]
    return []


def _live(network: ReadNetwork) -> list[Scene]:
    """After a mask [l < x] - [u <= x], or a filter of the same form, the entries where it is not 0 are live; a network
    that keeps candidates instead has them as a vector of input values."""
    scenes: dict[int, Scene] = {}
    for name, level in network.levels.items():
        node = network.makers.get(name)
        if node is None or node.op_type != "Sub" or not network.aligned(name):
            continue
        sides = [network.source(operand) for operand in node.input]
        if all(network.is_step(side) and network.aligned(side) and network.levels[side] == level for side in sides):
            scenes.setdefault(level, {"layer": level, "kept": name})
    if not scenes:
        return _candidates(network)
    return [scenes[level] for level in sorted(scenes)]


def _candidates(network: ReadNetwork) -> list[Scene]:
    """The first vector put together of entries alone, once layers have chosen among them, tried on one input."""
    held = next((n for n in network.levels if network.aligned(n) and network.is_neuron(n)), network.input)
    guarded = next((n for n in reversed(network.levels) if _is_guarded(network, n)), held)
    row = np.random.default_rng(0).permutation(network.d)[None] * 2.0**-12
    values = network.run(row.astype(network.dtype))
    entries = values[guarded].reshape(-1)
    for name, level in network.levels.items():
        node = network.makers.get(name)
        if node is None or node.op_type != "Concat" or level <= network.levels[guarded]:
            continue
        found = values[name].reshape(-1)
        if found.size > 1 and np.isin(found, entries).all():
            return [{"layer": level, "kept": name, "entries": guarded}]
    return []


def _is_guarded(network: ReadNetwork, name: str) -> bool:
    """The last of the layers that round and clamp: the entries themselves."""
    return network.is_neuron(name) and network.aligned(name) and network.modules[network.levels[name] - 1] == GUARD


STORIES: dict[str, Callable[[ReadNetwork], list[Scene]]] = {
    "bracket": _bracket,
    "exchanges": _exchanges,
    "pairs": _pairs,
    "live": _live,  # which a sorting network that copies its wires would tell too
}
