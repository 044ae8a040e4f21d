"""Which networks can be watched: the small ones that come with the page, and the loaded models that are small enough."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from service.errors import BadInputError, ProblemError
from service.models.entries import Description, contract
from service.models.registry import LoadedModel
from service.statistics.fed_grid import FedGrid
from service.statistics.layout import Target, median_target

PAGE = Path(__file__).resolve().parents[1] / "page"
SPECIMENS = PAGE / "specimens.zip"
MANIFEST = "manifest.json"
MOST_NEURONS = 1 << 19  # of a loaded model that is shown


@dataclass(frozen=True)
class Placement:
    """A vector in a row of d: so many lowest values, every value `repeat` times, highest values; which output is its
    median."""

    lowest: int
    repeat: int
    column: int


@dataclass(frozen=True, eq=False)
class Specimen:
    """A network that can be watched; `content` is its file."""

    name: str
    key: str  # another file has another key
    description: Description
    grid: FedGrid
    columns: tuple[Target, ...]
    content: Callable[[], bytes]
    loaded: bool = False

    @property
    def d(self) -> int:
        return int(self.description["d"])

    @property
    def construction(self) -> str:
        return str(self.description["construction"])

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
    """Those that come with the page."""
    with zipfile.ZipFile(SPECIMENS) as archive:
        entries = json.loads(archive.read(MANIFEST))
    found = {}
    for entry in entries:
        name, about = entry["file"].removesuffix(".onnx"), entry["description"]
        found[name] = Specimen(name, name, about, *contract(about), _reader(entry["file"]))
    return found


def _reader(file: str) -> Callable[[], bytes]:
    def read() -> bytes:
        with zipfile.ZipFile(SPECIMENS) as archive:
            return archive.read(file)

    return read


def watchable(models: Iterable[LoadedModel]) -> dict[str, Specimen]:
    """All that can be watched, by name, on a median; a model being served goes before one of the page."""
    loaded = {
        model.name: Specimen(
            model.name, model.sha256, model.description, model.grid, model.columns, model.file.read, loaded=True
        )
        for model in models
        if model.is_median and isinstance(size := model.description.get("size"), int) and size <= MOST_NEURONS
    }
    return carried() | loaded


def choose(pool: dict[str, Specimen], n: int, name: str | None, construction: str | None) -> tuple[Specimen, Placement]:
    """The named network, or the smallest of a construction that takes n values; one of the page before a loaded one."""
    if name is not None:
        if name not in pool:
            raise ProblemError(404, f"There is no model {name!r} that can be watched.", models=sorted(pool)[:50])
        candidates = [pool[name]]
    else:
        candidates = [each for each in pool.values() if construction in (None, each.construction)]
        if not candidates:
            known = sorted({each.construction for each in pool.values()})
            raise ProblemError(404, f"There is no model of construction {construction!r}.", constructions=known)
    fitting = [(each, found) for each in candidates if (found := each.fit(n)) is not None]
    if not fitting:
        most = max(each.d for each in candidates)
        raise BadInputError(f"{n} values do not fit: the networks to watch here take at most {most}, padded evenly.")
    return min(fitting, key=lambda pair: (pair[0].d, pair[0].loaded, pair[0].name))
