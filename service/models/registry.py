"""The models being served: read from the manifest, checked, loaded and chosen.

A registry is a snapshot that never changes. A reload makes a new registry, which keeps the sessions of unchanged files and
replaces the old registry at once. Requests finish on the snapshot they started with. A name is only a key of a dictionary,
never a path.
"""

from __future__ import annotations

import logging
import timeit
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from exporter.analysis.promise import uniform_only
from exporter.formats.manifest import MANIFEST
from exporter.formats.session import open_session
from service.errors import BadInputError, ProblemError, ShortageError, or_shortage
from service.models.entries import (
    LoadedFile,
    UnusableModelError,
    blamed,
    contract,
    label,
    listed,
    located,
    parsed,
    read_checked,
)
from service.models.filters import LoadedFilter, open_filter
from service.statistics.counting import OUTPUT, proven, width, with_counting
from service.statistics.fed_grid import FedGrid, Floats
from service.statistics.layout import Target
from service.statistics.padding import padding_for
from service.statistics.solve import Counted, Use

log = logging.getLogger("service")
MOST_CHOICES = 1 << 14  # that are remembered


@dataclass(frozen=True, eq=False)
class LoadedModel(LoadedFile):
    """One loaded network with its contract."""

    grid: FedGrid
    columns: tuple[Target, ...]
    session: Any
    input_name: str
    output_name: str
    row_seconds: float = 0.0  # when it was loaded

    @cached_property
    def d(self) -> int:
        return int(self.description["d"])

    @cached_property
    def row_bytes(self) -> int:
        """The largest layer of one row."""
        return (
            max(self.d, int(self.description.get("run_width") or self.description["width"])) * self.grid.dtype.itemsize
        )

    @property
    def exact(self) -> bool:
        """True if the construction is right on every grid input."""
        return self.description["failure_bound"] == 0 and bool(self.description["exact_on_grid"])

    @property
    def is_median(self) -> bool:
        return bool(self.description["op"] == "median")

    @cached_property
    def counted(self) -> list[slice]:
        """For each column, its numbers in a row that onnxruntime returns."""
        ends = list(accumulate(map(width, self.columns), initial=0))
        return [slice(start, end) for start, end in pairwise(ends)]

    def run(self, rows: Floats) -> Counted:
        """Values and counts of all columns for rows (b, d). The interpreter lock is free while onnxruntime computes."""
        counted: Counted = self.session.run([OUTPUT], {self.input_name: rows})[0]
        if counted.shape != (len(rows), self.counted[-1].stop):
            raise RuntimeError(f"{self.name} returned shape {counted.shape} for {len(rows)} rows")
        return counted


Loaded: TypeAlias = LoadedModel | LoadedFilter


@dataclass(frozen=True, eq=False)
class Registry:
    """A snapshot of all models, and of the files that could not be loaded."""

    models: dict[str, LoadedModel]
    left_out: dict[str, str] = field(default_factory=dict)
    filters: dict[str, LoadedFilter] = field(default_factory=dict)  # for images

    @cached_property
    def largest(self) -> int:
        return max((model.d for model in self.models.values()), default=0)

    @cached_property
    def everything(self) -> dict[str, Loaded]:
        return {**self.models, **self.filters}

    def described(self, name: str) -> Loaded:
        """A model for vectors or a filter for images."""
        return self.filters[name] if name in self.filters else self.get(name)

    def image_filter(self, name: str | None, dtype: np.dtype[Any]) -> LoadedFilter:
        """The filter of that name. Without a name: the smallest window for pixels of a type; the same type and medians come
        first."""
        if name is not None:
            if name not in self.filters:
                raise ProblemError(404, f"There is no filter {name!r}.", models=sorted(self.filters)[:50])
            return self.filters[name]
        pool = [each for each in self.filters.values() if each.terms.frames is None and each.takes(dtype)]
        if not pool:
            said = f"There is no filter for windows of {dtype.name} pixels; docs/service.md says how to add one."
            raise ProblemError(404, said, models=sorted(self.filters)[:50])
        return min(pool, key=lambda each: (each.terms.dtype != dtype, each.description["op"] != "median", *each.size))

    def get(self, name: str) -> LoadedModel:
        if name not in self.models:
            raise ProblemError(404, f"There is no model {name!r}.", models=sorted(self.models)[:50])
        return self.models[name]

    @cached_property
    def choose(self) -> Callable[..., Use]:
        """`_chosen`, which remembers its choices."""
        return lru_cache(MOST_CHOICES)(self._chosen)

    def _chosen(
        self, n: int, target: Target, name: str | None = None, construction: str | None = None, exact: bool = False
    ) -> Use:
        """The smallest model that yields `target` of n values. Probabilistic models, and models for uniform inputs, serve
        only requests that name them or their construction."""
        pool = [self.get(name)] if name is not None else list(self.models.values())
        if name is None and construction is None:
            pool = [model for model in pool if not uniform_only(model.description)]
        if construction is not None:
            pool = [model for model in pool if model.description["construction"] == construction]
            if not pool:
                known = sorted({str(model.description["construction"]) for model in self.models.values()})
                raise ProblemError(404, f"There is no model of construction {construction!r}.", constructions=known)
        if exact or (name is None and construction is None and any(model.exact for model in pool)):
            pool = [model for model in pool if model.exact]
        fitting = [
            Use(model, found) for model in pool if (found := padding_for(model.columns, model.d, n, target)) is not None
        ]
        if not fitting:
            raise BadInputError(self._misfit(n, pool, name or construction))
        return min(fitting, key=_cost)

    def _misfit(self, n: int, pool: Sequence[LoadedModel], asked: str | None) -> str:
        longest = max((model.d for model in pool), default=0)
        who = f"model or construction {asked!r}" if asked else "the models loaded here"
        if not pool and self.models:
            return "The models loaded here are for uniform inputs only: one of them serves a request that names it."
        if n > longest:
            return f"{n} values are too long: {who} take at most {longest}."
        return f"A vector of {n} values does not fit {who}: no padding gives that rank. Leave the choice open."


def _cost(use: Use) -> tuple[int, bool, float, str]:
    """Fewest numbers fed, then exact before probabilistic, then the fastest when loaded."""
    return use.padding.rows * use.model.d, not use.model.exact, use.model.row_seconds, use.model.name


def load(
    folders: Iterable[Path],
    previous: Registry | None = None,
    tell: Callable[[str], None] | None = None,
    enough: Callable[[Loaded], bool] = lambda _: False,
) -> Registry:
    """All usable models in the manifests of these folders. Other entries are reported, logged and left out.

    `tell` is called before each model is loaded. Loading stops after a model for which `enough` is true.
    """
    before = Registry({}) if previous is None else previous
    kept = {(each.path, each.sha256): each for each in before.everything.values()}
    found: dict[str, Loaded] = {}
    left_out: dict[str, str] = {}
    for folder in folders:
        try:
            entries = listed(folder)
        except UnusableModelError as error:
            _raise_shortage(error, before)
            left_out[MANIFEST] = str(error)
            found |= {each.name: each for each in kept.values() if each.path.parent == folder}  # it may be half written
            log.error("manifest unreadable", extra={"fields": {"folder": str(folder), "reason": str(error)}})
            continue
        for number, entry in enumerate(entries):
            name = label(entry, number)
            if tell is not None:
                tell(f"{name}, {number + 1} of {len(entries)}")
            try:
                loaded = open_entry(folder, entry, kept)
            except UnusableModelError as error:
                _raise_shortage(error, before)
                left_out[name] = str(error)
                log.warning("model left out", extra={"fields": {"file": name, "reason": str(error)}})
                continue
            found[loaded.name] = loaded
            if enough(loaded):
                return _registry(found, left_out)
    return _registry(found, left_out)


def _registry(found: Mapping[str, Loaded], left_out: dict[str, str]) -> Registry:
    models = {name: each for name, each in found.items() if isinstance(each, LoadedModel)}
    filters = {name: each for name, each in found.items() if isinstance(each, LoadedFilter)}
    return Registry(models, left_out, filters)


def _raise_shortage(error: UnusableModelError, previous: Registry) -> None:
    """Raise a shortage of memory or files: the reload ends, and no model is blamed or lost."""
    cause = error.__context__
    if previous.everything and isinstance(cause, Exception) and isinstance(or_shortage(cause), ShortageError):
        raise ShortageError from None


def open_entry(folder: Path, entry: Any, kept: Mapping[tuple[Path, str], Loaded] | None = None) -> Loaded:
    """The model of a manifest entry, after a trial run. A file that has not changed keeps its session."""
    path, sha256 = located(folder, entry)
    data = read_checked(path, sha256)
    if kept and (path, sha256) in kept:
        return kept[path, sha256]
    with blamed("it cannot be loaded"):
        proto, about = parsed(data)
        log.info("loading a model", extra={"fields": {"file": path.name, "d": about["d"]}})
        if "window" in about:
            return open_filter(LoadedFile(path, sha256, about), proto)
        grid, columns = contract(about)
        session = open_session(with_counting(proto, about["d"], columns, grid))
    names = proto.graph.input[0].name, proto.graph.output[0].name
    model = LoadedModel(path, sha256, about, grid, columns, session, *names)
    with blamed("its trial run fails"):
        _try(model)
        return replace(model, row_seconds=_time_one_row(model))


def _try(model: LoadedModel) -> None:
    """Run two rows of grid numbers through the model and its counting, so that errors show early."""
    grid = model.grid
    units = np.rint(np.linspace(0, 2**grid.bits, 2 * model.d)).reshape(2, model.d)
    counted = model.run((grid.low + grid.unit * units).astype(grid.dtype))
    for own, column in zip(model.counted, model.columns, strict=True):
        proven(counted[:, own].T, column, model.d, grid)


def _time_one_row(model: LoadedModel) -> float:
    """The best time of three runs, for choosing models and planning batches."""
    row = np.full((1, model.d), model.grid.low, model.grid.dtype)
    return min(timeit.repeat(lambda: model.run(row), repeat=3, number=1))
