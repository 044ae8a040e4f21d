"""The networks that can be watched: small ones of every construction, which come with the page.

Beside each file stand the tensors of its layers and of its pictures, found when the page's data was written.
"""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from exporter.problem.description import Description
from service.errors import BadInputError, ProblemError
from service.models.entries import contract
from service.statistics.fed_grid import FedGrid
from service.statistics.layout import Target, median_target
from service.watch.network import LayerOfNeurons

PAGE = Path(__file__).resolve().parents[1] / "page"
SPECIMENS = PAGE / "specimens.zip"
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Placement:
    """A vector in a row of d: so many lowest values, every value `repeat` times, highest values; which output is its
    median."""

    lowest: int
    repeat: int
    column: int


@dataclass(frozen=True, eq=False)
class Specimen:
    """A network that comes with the page."""

    name: str
    description: Description
    grid: FedGrid
    columns: tuple[Target, ...]
    layers: tuple[LayerOfNeurons, ...]
    story: dict[str, Any]  # its kind, and the tensors of its scenes

    @property
    def d(self) -> int:
        return int(self.description["d"])

    @property
    def construction(self) -> str:
        return str(self.description["construction"])

    def content(self) -> bytes:
        """The bytes of its file."""
        with zipfile.ZipFile(SPECIMENS) as archive:
            return archive.read(f"{self.name}.onnx")

    def fit(self, n: int) -> Placement | None:
        """How the median of n values is what the network itself returns: padded, or repeated and padded."""
        for repeat in (1, 2):
            target = median_target(repeat * n)
            for j, column in enumerate(self.columns):
                lowest = column.low - target.low
                same = column.single == target.single and column.weight == target.weight
                if same and 0 <= lowest <= self.d - repeat * n:
                    return Placement(lowest, repeat, j)
        return None


@cache
def carried() -> dict[str, Specimen]:
    """All of them, by name."""
    with zipfile.ZipFile(SPECIMENS) as archive:
        entries = json.loads(archive.read(MANIFEST))
    return {each.name: each for each in map(_specimen, entries)}


def _specimen(entry: dict[str, Any]) -> Specimen:
    about = entry["description"]
    named = zip(about["modules"], entry["layers"], strict=True)
    layers = tuple(LayerOfNeurons(number, name, tuple(tensors)) for number, (name, tensors) in enumerate(named, 1))
    return Specimen(entry["file"].removesuffix(".onnx"), about, *contract(about), layers, entry["story"])


def named(name: str) -> Specimen:
    """The network of a name."""
    if name not in carried():
        raise ProblemError(404, f"There is no network {name!r} to watch.", models=sorted(carried()))
    return carried()[name]


def choose(n: int, name: str | None, construction: str | None) -> tuple[Specimen, Placement]:
    """The named network, or the smallest of a construction that takes n values."""
    if name is not None:
        candidates = [named(name)]
    else:
        candidates = [each for each in carried().values() if construction in (None, each.construction)]
        if not candidates:
            known = sorted({each.construction for each in carried().values()})
            raise ProblemError(404, f"There is no network of construction {construction!r}.", constructions=known)
    fitting = [(each, found) for each in candidates if (found := each.fit(n)) is not None]
    if not fitting:
        most = max(each.d for each in candidates)
        raise BadInputError(f"{n} values do not fit: the networks to watch here take at most {most}, padded evenly.")
    return min(fitting, key=lambda pair: (pair[0].d, pair[0].name))
