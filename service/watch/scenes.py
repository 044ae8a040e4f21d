"""What is worth seeing of a network: which tensors of the file tell its story, and what they say on one vector.

    bracket      a search by digits: how far each moves the lower end, so which interval is left
    exchanges    a sorting network: the comparators of each stage, what they exchange, and the wires behind them
    pairs        all pairs at once: the matrix of all comparisons, and how many each entry wins
    live         sampled networks: which entries are still in the race after each mask

Tensors are found by what the graph does, not by their names, which mean nothing, and so is the story that fits: the first
that finds its tensors. Whatever has no story of its own is still shown layer by layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from service.watch.network import OpenNetwork, Values

FEW = 64  # thresholds of a digit
Scene = dict[str, Any]
Told = dict[str, Any]


def story(network: OpenNetwork, values: Values) -> Told:
    """The scenes of a network, in the order of the layers; none where the file has not what they need."""
    told = ((kind, tell(network, values)) for kind, tell in STORIES.items())
    kind, scenes = next((each for each in told if each[1]), ("live", []))
    return {"kind": kind, "scenes": scenes}


def _bracket(network: OpenNetwork, values: Values) -> list[Scene]:
    """The interval after every digit but the last, in parts of the domain: each threshold that is passed moves its
    lower end by one bin."""
    last: dict[str, int] = {}
    for layer in network.layers:
        if layer.name.startswith("digit "):
            last[layer.name] = layer.number
    scenes: list[Scene] = []
    lower, width = 0.0, 1.0
    for name, number in last.items():
        moves = _moves(network, number, values)
        if moves is None:
            return scenes
        bins = moves.size + 1
        width /= bins
        passed = round(float(moves.sum()) / (width if bins == 2 else 1.0))
        lower += passed * width
        scene = {"layer": number, "name": name, "bins": bins, "passed": passed}
        scenes.append({**scene, "lower": lower, "upper": lower + width})
    return scenes


def _moves(network: OpenNetwork, layer: int, values: Values) -> Any:
    """The steps that one digit adds to the lower end: the last thing its layers compute."""
    for name, level in network.levels.items():
        if level == layer and values[name].size < FEW and network.is_step(name) and network.source(name) == name:
            return values[name]
    for name in next((each.tensors for each in network.layers if each.number == layer), ()):
        if values[name].size < FEW:  # relu(s - relu(s - v)), a step in two layers
            return values[name]
    return None


def _exchanges(network: OpenNetwork, values: Values) -> list[Scene]:
    """Every neuron relu(a - b) of two wires is a comparator: a - relu(a - b) is the smaller, b + relu(a - b) the larger."""
    scenes = []
    for layer in network.layers:
        pairs: list[list[int]] = []
        excess: list[float] = []
        after: dict[int, float] = {}
        for name in layer.tensors:
            before = network.makers[network.makers[name].input[0]]
            ends = [
                network.origin[operand].reshape(-1).tolist() for operand in before.input if operand in network.origin
            ]
            if before.op_type != "Sub" or len(ends) != 2 or ends[0] == ends[1] or len(ends[0]) != len(ends[1]):
                continue
            a, b = ends
            pairs += [[i, j] for i, j in zip(a, b, strict=True)]
            excess += values[name].reshape(-1).tolist()
            for reader in network.readers.get(name, ()):
                wires = network.origin.get(reader.output[0])
                if wires is not None:
                    found = values[reader.output[0]].reshape(-1).tolist()
                    after.update(zip(wires.reshape(-1).tolist(), found, strict=True))
        if pairs:
            wires_after = [[wire, value] for wire, value in sorted(after.items())]
            scenes.append({"layer": layer.number, "pairs": pairs, "excess": excess, "wires": wires_after})
    return scenes


def _pairs(network: OpenNetwork, values: Values) -> list[Scene]:
    """The matrix [x_i beats x_j], and its row sums."""
    for name, level in network.levels.items():
        if values[name].size == network.d**2 and network.is_step(name) and network.makers[name].op_type == "Sub":
            matrix = values[name].reshape(network.d, network.d)
            sums = next((node.output[0] for node in network.readers.get(name, ()) if node.op_type == "Gemm"), None)
            wins = matrix.sum(1) if sums is None else values[sums].reshape(-1)
            return [{"layer": level, "matrix": matrix.astype(int).tolist(), "wins": wins.astype(int).tolist()}]
    return []


def _live(network: OpenNetwork, values: Values) -> list[Scene]:
    """After a mask [l < x] - [u <= x], or a filter of the same form, the entries where it is not 0 are live; a network
    that keeps candidates instead has them as a vector of input values."""
    scenes: dict[int, Scene] = {}
    for name, level in network.levels.items():
        node = network.makers.get(name)
        if node is None or node.op_type != "Sub" or not network.aligned(name):
            continue
        sides = [network.source(operand) for operand in node.input]
        if all(network.is_step(side) and network.aligned(side) and network.levels[side] == level for side in sides):
            live = values[name].reshape(-1) > 0
            scenes.setdefault(level, {"layer": level, "live": int(live.sum()), "entries": live.astype(int).tolist()})
    if not scenes:
        scenes = _candidates(network, values)
    return [scenes[level] for level in sorted(scenes)]


def _candidates(network: OpenNetwork, values: Values) -> dict[int, Scene]:
    """The first vector put together of entries alone, once layers have chosen among them."""
    held = next((n for n in network.levels if network.aligned(n) and network.is_neuron(n)), network.input)
    guarded = next((n for n in reversed(network.levels) if _is_guarded(network, n)), held)
    entries = values[guarded].reshape(-1)
    for name, level in network.levels.items():
        node = network.makers.get(name)
        if node is None or node.op_type != "Concat" or level <= network.levels[guarded]:
            continue
        found = values[name].reshape(-1)
        if found.size > 1 and np.isin(found, entries).all():
            live = np.isin(entries, found).astype(int).tolist()
            return {level: {"layer": level, "live": int(found.size), "entries": live, "candidates": True}}
    return {}


def _is_guarded(network: OpenNetwork, name: str) -> bool:
    """The last of the layers that round and clamp: the entries themselves."""
    return network.is_neuron(name) and network.aligned(name) and network.modules[network.levels[name] - 1] == GUARD


GUARD = "round and clamp"
STORIES: dict[str, Callable[[OpenNetwork, Values], list[Scene]]] = {
    "bracket": _bracket,
    "exchanges": _exchanges,
    "pairs": _pairs,
    "live": _live,  # which a sorting network that copies its wires would tell too
}
