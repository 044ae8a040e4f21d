"""The pictures of a network on one vector.

    bracket      a search by digits: how far each moves the lower end, so which interval is left
    exchanges    a sorting network: the comparators of each stage, what they exchange, and the wires behind them
    pairs        all pairs at once: the matrix of all comparisons, and how many each entry wins
    live         sampled networks: which entries are still in the race after each mask

Which kind fits a network, and which tensors its scenes are made of, stands beside its file (`service.watch.specimens`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from service.watch.network import Values

Scene = dict[str, Any]


def story(told: Scene, values: Values) -> Scene:
    """The scenes of a network, in the order of the layers."""
    return {"kind": told["kind"], "scenes": STORIES[told["kind"]](told["scenes"], values)}


def _bracket(scenes: Sequence[Scene], values: Values) -> list[Scene]:
    """The interval after every digit but the last, in parts of the domain: each threshold that is passed moves its
    lower end by one bin."""
    found: list[Scene] = []
    lower, width = 0.0, 1.0
    for scene in scenes:
        moves = values[scene["moves"]]
        bins = moves.size + 1
        width /= bins
        passed = round(float(moves.sum()) / (width if bins == 2 else 1.0))
        lower += passed * width
        about = {"layer": scene["layer"], "name": scene["name"], "bins": bins, "passed": passed}
        found.append({**about, "lower": lower, "upper": lower + width})
    return found


def _exchanges(scenes: Sequence[Scene], values: Values) -> list[Scene]:
    """The excess relu(a - b) of every comparator of two wires, and the wires behind the comparators."""
    found = []
    for scene in scenes:
        excess = [each for name in scene["excess"] for each in _flat(values, name)]
        after: dict[int, float] = {}
        for name, wires in scene["wires"]:
            after.update(zip(wires, _flat(values, name), strict=True))
        wires_after = [[wire, value] for wire, value in sorted(after.items())]
        found.append({"layer": scene["layer"], "pairs": scene["pairs"], "excess": excess, "wires": wires_after})
    return found


def _pairs(scenes: Sequence[Scene], values: Values) -> list[Scene]:
    """The matrix [x_i beats x_j], and its row sums."""
    (scene,) = scenes
    matrix = values[scene["matrix"]]
    d = round(matrix.size**0.5)
    wins = values[scene["wins"]].reshape(-1)
    return [
        {
            "layer": scene["layer"],
            "matrix": matrix.reshape(d, d).astype(int).tolist(),
            "wins": wins.astype(int).tolist(),
        }
    ]


def _live(scenes: Sequence[Scene], values: Values) -> list[Scene]:
    """The entries that a mask leaves, or those among the candidates that a network keeps instead."""
    found = []
    for scene in scenes:
        kept = values[scene["kept"]].reshape(-1)
        if "entries" in scene:
            live, count = np.isin(values[scene["entries"]].reshape(-1), kept), kept.size
            about: Scene = {"candidates": True}
        else:
            live, about = kept > 0, {}
            count = live.sum()
        found.append({"layer": scene["layer"], "live": int(count), "entries": live.astype(int).tolist(), **about})
    return found


def _flat(values: Values, name: str) -> list[float]:
    return list(values[name].reshape(-1).tolist())


STORIES: dict[str, Callable[[Sequence[Scene], Values], list[Scene]]] = {
    "bracket": _bracket,
    "exchanges": _exchanges,
    "pairs": _pairs,
    "live": _live,
}
