"""One vector through one network, told layer by layer. What is asked for often stays open; one is worked on at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np

from service.errors import BadInputError, ProblemError
from service.models.entries import UnusableModelError
from service.serving.engine import Engine
from service.serving.turns import Turns
from service.statistics.counting import proven
from service.statistics.layout import median_target
from service.statistics.scaling import FedGrid, Floats, NotFiniteError, Scaled, scale
from service.watch.formulas import formula
from service.watch.network import LayerOfNeurons, OpenNetwork, Values
from service.watch.scenes import story
from service.watch.specimens import Placement, Specimen, choose, watchable

OPEN = 6  # networks that are kept
EACH, ALL = 8192, 1 << 17  # neurons of one tensor, and of all layers, whose values are told
LONGEST = 1 << 16  # values of a vector that may be watched, before a network is chosen
Result = TypeVar("Result")


class Watcher:
    """What can be watched in one worker."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.turns = Turns()
        self.opened: OrderedDict[str, OpenNetwork] = OrderedDict()

    @property
    def specimens(self) -> dict[str, Specimen]:
        return watchable(self.engine.registry.models.values())

    async def watch(self, vector: Floats, name: str | None, construction: str | None) -> dict[str, Any]:
        """The layers of a network on a vector."""
        if not len(vector):
            raise BadInputError("The vector is empty.", vector=0)
        specimen, place = choose(self.specimens, len(vector), name, construction)
        return await self._alone(self._watch, specimen, place, vector)

    async def formula(self, name: str, layer: int, index: int) -> dict[str, Any]:
        """What one neuron computes."""
        pool = self.specimens
        if name not in pool:
            raise ProblemError(404, f"There is no model {name!r} that can be watched.", models=sorted(pool)[:50])
        return await self._alone(
            lambda: {"layer": layer, "index": index, **formula(self._open(pool[name]), layer, index)}
        )

    async def _alone(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """In a thread, one at a time: the other thread is for those who want medians."""
        async with self.turns.mine():
            return await self.engine.in_thread(function, *arguments)

    def _open(self, specimen: Specimen) -> OpenNetwork:
        network = self.opened.pop(specimen.key, None)
        if network is None:
            modules = specimen.description.get("modules")
            names = [str(each) for each in modules] if isinstance(modules, list) else []
            try:
                network = OpenNetwork(specimen.content(), names)
            except UnusableModelError as error:
                raise ProblemError(
                    404, f"The file of {specimen.name!r} is no longer what was loaded: {error}."
                ) from None
        self.opened[specimen.key] = network
        while len(self.opened) > OPEN:
            self.opened.popitem(last=False)
        return network

    def _watch(self, specimen: Specimen, place: Placement, vector: Floats) -> dict[str, Any]:
        fed = np.tile(vector, place.repeat)[None]
        try:
            scaled = scale(fed, place.lowest, specimen.d, specimen.grid)
        except NotFiniteError as error:
            raise BadInputError(f"{error}.", vector=0, index=error.index) from None
        network = self._open(specimen)
        row = scaled.rows
        values = network.run(row)
        about = specimen.description
        return {
            "model": specimen.name,
            "loaded": specimen.loaded,
            **{key: about.get(key) for key in ("construction", "theorem", "d", "depth", "width", "size", "domain")},
            **_answer(specimen, place, scaled, float(values[network.output].reshape(-1)[place.column]), fed.shape[1]),
            "entries": _entries(place, len(vector), specimen.d),
            "input": row.reshape(-1).tolist(),
            "to_data": _way_back(scaled, specimen.grid),
            "layers": list(_told(network.layers, values)),
            "story": story(network, values),
        }


def _answer(specimen: Specimen, place: Placement, scaled: Scaled, y: float, n: int) -> dict[str, Any]:
    """What the network says, and whether counting proves it."""
    grid, column, row = specimen.grid, specimen.columns[place.column], scaled.rows
    under, over = row[row < y], row[row > y]
    up = float(under.max() - grid.low) if under.size else 0.0
    down = float(grid.high - over.min()) if over.size else 0.0
    counts = [y, under.size, over.size, *(() if column.single else (up, down))]
    found = proven(np.array([counts]), column, specimen.d, grid)
    right = bool(found.right[0])
    low, high = (found.low, found.high) if right else (np.array([y]), np.array([y]))
    return {
        "output": y,
        "answer": float(scaled.back(low, high, median_target(n).weight)[0]),
        "certified": right,
        "error_bound": scaled.frames[0].bound,
    }


def _entries(place: Placement, n: int, d: int) -> list[int]:
    """Which value of the vector stands at each place of the row; -1 and -2 are the padding below and above."""
    places = np.full(d, -2)
    places[: place.lowest] = -1
    places[place.lowest : place.lowest + place.repeat * n] = np.tile(np.arange(n), place.repeat)
    return [int(place) for place in places]


def _way_back(scaled: Scaled, grid: FedGrid) -> dict[str, float]:
    """4 (slope v + offset) is the caller's number behind a value v of the network's domain; a quarter never overflows."""
    frame = scaled.frames[0]
    if not frame.step:  # all values are one
        return {"slope": 0.0, "offset": frame.low / 4}
    step = frame.step / 4 / frame.factor
    return {"slope": step / grid.unit, "offset": -(grid.low / grid.unit + frame.shift) * step}


def _told(layers: Sequence[LayerOfNeurons], values: Values) -> Iterator[dict[str, Any]]:
    """Every layer with its tensors; values as long as there is room for them, small tensors first."""
    names = sorted((name for layer in layers for name in layer.tensors), key=lambda name: values[name].size)
    room = accumulate(values[name].size for name in names)
    whole = {name for name, used in zip(names, room, strict=True) if values[name].size <= EACH and used <= ALL}
    for layer in layers:
        tensors = [_tensor(name, values[name].reshape(-1), name in whole) for name in layer.tensors]
        yield {"number": layer.number, "name": layer.name, "tensors": tensors}


def _tensor(name: str, value: Floats, whole: bool) -> dict[str, Any]:
    return {
        "name": name,
        "size": value.size,
        "active": int(np.count_nonzero(value > 0)),
        "largest": float(value.max()) if value.size else 0.0,
        "values": value.tolist() if whole else None,
    }
