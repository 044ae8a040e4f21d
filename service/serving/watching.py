"""One vector through one network, layer by layer. Sessions in frequent use stay open. Requests are handled one at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import frexp, ldexp, nextafter
from typing import Any, TypeVar

import numpy as np

from service.errors import BadInputError
from service.serving.admission import Turns
from service.serving.engine import Engine
from service.statistics.counting import proven
from service.statistics.fed_grid import FedGrid, Floats
from service.statistics.layout import median_target
from service.watch.formulas import formula
from service.watch.network import LayerOfNeurons, OpenNetwork, Values
from service.watch.scenes import story
from service.watch.specimens import Placement, Specimen, choose, named

OPEN = 6  # networks that are kept
EACH, ALL = 8192, 1 << 17  # neurons of one tensor, and of all layers, whose values are told
LONGEST = 1 << 16  # values of a vector that may be watched, before a network is chosen
SMALLEST = 1e-290  # difference of two numbers that can be drawn
Result = TypeVar("Result")


class Watcher:
    """The networks that one worker can show."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.turns = Turns()
        self.opened: OrderedDict[str, OpenNetwork] = OrderedDict()

    async def watch(self, vector: Floats, name: str | None, construction: str | None) -> dict[str, Any]:
        """The layers of a network on a vector."""
        if not len(vector):
            raise BadInputError("The vector is empty.", vector=0)
        specimen, place = choose(len(vector), name, construction)
        return await self._alone(self._watch, specimen, place, vector)

    async def formula(self, name: str, layer: int, index: int) -> dict[str, Any]:
        """The formula of one neuron."""
        specimen = named(name)
        return await self._alone(
            lambda: {"layer": layer, "index": index, **formula(self._open(specimen), layer, index)}
        )

    async def _alone(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run work in a thread, one request at a time, so that medians keep the other threads."""
        async with self.turns.mine():
            return await self.engine.in_thread(function, *arguments)

    def _open(self, specimen: Specimen) -> OpenNetwork:
        network = self.opened.pop(specimen.name, None) or OpenNetwork(specimen.content(), specimen.layers)
        self.opened[specimen.name] = network
        while len(self.opened) > OPEN:
            self.opened.popitem(last=False)
        return network

    def _watch(self, specimen: Specimen, place: Placement, vector: Floats) -> dict[str, Any]:
        fed = np.tile(vector, place.repeat)
        scaled = scale(fed, place.lowest, specimen.d, specimen.grid)
        network = self._open(specimen)
        row = scaled.row
        values = network.run(row)
        about = specimen.description
        return {
            "model": specimen.name,
            **{key: about.get(key) for key in ("construction", "theorem", "d", "depth", "size", "domain")},
            **_answer(specimen, place, scaled, float(values[network.output].reshape(-1)[place.column]), len(fed)),
            "entries": _entries(place, len(vector), specimen.d),
            "input": row.reshape(-1).tolist(),
            "to_data": scaled.way_back,
            "layers": list(_told(network.layers, values)),
            "story": story(specimen.story, values),
        }


def _answer(specimen: Specimen, place: Placement, scaled: Scaled, y: float, n: int) -> dict[str, Any]:
    """The network's answer, and whether counting proves the answer."""
    grid, column, row = specimen.grid, specimen.columns[place.column], scaled.row
    under, over = row[row < y], row[row > y]
    up = float(under.max() - grid.low) if under.size else 0.0
    down = float(grid.high - over.min()) if over.size else 0.0
    counts = [y, under.size, over.size, *(() if column.single else (up, down))]
    low, high, right = proven(counts, column, specimen.d, grid)
    value = low + median_target(n).weight * (high - low) if right else y
    return {"output": y, "answer": scaled.back(value), "certified": bool(right), "error_bound": scaled.bound}


def _entries(place: Placement, n: int, d: int) -> list[int]:
    """The index in the vector for each place of the row; -1 and -2 are the padding below and above."""
    places = np.full(d, -2)
    places[: place.lowest] = -1
    places[place.lowest : place.lowest + place.repeat * n] = np.tile(np.arange(n), place.repeat)
    return [int(place) for place in places]


@dataclass(frozen=True, eq=False)
class Scaled:
    """A vector on a network's grid, in proportion: `step` apart where the grid numbers are 1 apart, and moved by `shift`."""

    row: Floats
    grid: FedGrid
    low: float
    high: float
    step: float
    shift: float

    @property
    def bound(self) -> float:
        """How far the answer may be from the median: half a step, and the rounding of the way back and of a mean."""
        return self.step / 2 + max(-self.low, self.high) * 2.0**-51 if self.step else 0.0

    def back(self, value: float) -> float:
        """The number that a value of the network stands for."""
        found = ((value - self.grid.low) / self.grid.unit - self.shift) * self.step
        return min(max(found, self.low), self.high)

    @property
    def way_back(self) -> dict[str, float]:
        """A value v of the network stands for the number 4 (slope v + offset). A quarter never overflows."""
        grid = self.grid
        if not self.step:  # all values are one
            return {"slope": 0.0, "offset": self.low / 4}
        return {"slope": self.step / 4 / grid.unit, "offset": -(grid.low / grid.unit + self.shift) * (self.step / 4)}


def scale(vector: Floats, lowest: int, d: int, grid: FedGrid) -> Scaled:
    """A vector rounded to a power of two times the grid, and padded to d. The picture shows numbers in proportion, while
    ordinary answers go through their order alone (`service.statistics.ordered`)."""
    if not (finite := np.isfinite(vector)).all():
        at = int(np.argmin(finite))
        raise BadInputError(f"{vector[at]} is not a finite number.", vector=0, index=at)
    low, high = float(vector.min()), float(vector.max())
    factor = 2.0**-100 if max(-low, high) > 2.0**1000 else 1.0  # scaled down so that differences do not overflow
    apart = high * factor - low * factor
    if 0 < apart < SMALLEST:
        raise BadInputError(f"The numbers are closer together than {SMALLEST:g}, which cannot be drawn.", vector=0)
    row = np.full((1, d), grid.high, grid.dtype)
    row[:, :lowest] = grid.low
    step, shift, units = 0.0, 0.0, np.zeros(len(vector))
    if apart:
        step = ldexp(1.0, frexp(nextafter(apart, 0.0))[1] - grid.bits)
        units = np.rint(vector * factor / step)
        if units.max() - units.min() > 2.0**grid.bits:  # both ends were rounded outwards
            step *= 2
            units = np.rint(vector * factor / step)
        if units.min() < 0 or units.max() > 2.0**grid.bits:
            shift = -float(units.min())
    row[:, lowest : lowest + len(vector)] = (units + shift) * grid.unit + grid.low
    return Scaled(row, grid, low, high, step / factor, shift)


def _told(layers: Sequence[LayerOfNeurons], values: Values) -> Iterator[dict[str, Any]]:
    """Every layer with its tensors. Values are included while there is room, small tensors first."""
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
