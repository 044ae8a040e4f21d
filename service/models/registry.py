"""The models being served: read from the manifest, checked, loaded and chosen.

A registry is a snapshot that never changes. A reload makes a new registry, which keeps the sessions of unchanged files and
replaces the old registry at once. Requests finish on the snapshot they started with. A name is only a key of a dictionary,
never a path.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np

from exporter.analysis.promise import uniform_only
from exporter.formats.manifest import MANIFEST
from service.errors import BadInputError, ProblemError, ShortageError, or_shortage
from service.models.entries import (
    Entry,
    FilterTerms,
    LoadedFile,
    UnusableModelError,
    checked,
    label,
    raw_entries,
)
from service.models.filters import LoadedFilter, open_filter
from service.models.sessions import line, proto_of, session_of, trial
from service.statistics.counting import OUTPUT, proven, with_counting
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
        ends = list(accumulate((3 if column.single else 5 for column in self.columns), initial=0))
        return [slice(start, end) for start, end in pairwise(ends)]

    def run(self, rows: Floats) -> Counted:
        """Values and counts of all columns for rows (b, d). The interpreter lock is free while onnxruntime computes."""
        counted: Counted = self.session.run([OUTPUT], {self.input_name: rows})[0]
        if counted.shape != (len(rows), self.counted[-1].stop):
            raise RuntimeError(f"{self.name} returned shape {counted.shape} for {len(rows)} rows")
        return counted


@dataclass(frozen=True, eq=False)
class Registry:
    """A snapshot of all models, and of the files that could not be loaded."""

    models: dict[str, LoadedModel]
    left_out: dict[str, str] = field(default_factory=dict)
    filters: dict[str, LoadedFilter] = field(default_factory=dict)  # for images
    _choices: dict[tuple[int, Target, str | None, str | None, bool], Use] = field(default_factory=dict)

    @cached_property
    def largest(self) -> int:
        return max((model.d for model in self.models.values()), default=0)

    @cached_property
    def everything(self) -> dict[str, LoadedModel | LoadedFilter]:
        return {**self.models, **self.filters}

    def described(self, name: str) -> LoadedModel | LoadedFilter:
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

    def choose(
        self, n: int, target: Target, name: str | None = None, construction: str | None = None, exact: bool = False
    ) -> Use:
        """The smallest model that yields `target` of n values. Probabilistic models, and models for uniform inputs, serve
        only requests that name them or their construction."""
        key = (n, target, name, construction, exact)
        use = self._choices.get(key)
        if use is None:
            use = self._chosen(*key)
            if len(self._choices) >= MOST_CHOICES:
                self._choices.clear()
            self._choices[key] = use
        return use

    def _chosen(self, n: int, target: Target, name: str | None, construction: str | None, exact: bool) -> Use:
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
        least = min(map(_size_first, fitting))
        equals = [use for use in fitting if _size_first(use) == least]
        return min(equals, key=lambda use: (use.model.row_seconds, use.model.name))

    def _misfit(self, n: int, pool: Sequence[LoadedModel], asked: str | None) -> str:
        longest = max((model.d for model in pool), default=0)
        who = f"model or construction {asked!r}" if asked else "the models loaded here"
        if not pool and self.models:
            return "The models loaded here are for uniform inputs only: one of them serves a request that names it."
        if n > longest:
            return f"{n} values are too long: {who} take at most {longest}."
        return f"A vector of {n} values does not fit {who}: no padding gives that rank. Leave the choice open."


def _size_first(choice: Use) -> tuple[int, bool]:
    """Fewest numbers fed, then exact before probabilistic, then the fastest when loaded."""
    return choice.padding.rows * choice.model.d, not choice.model.exact


def load(
    folders: Iterable[Path],
    threads: int = 1,
    previous: Registry | None = None,
    tell: Callable[[str], None] | None = None,
    enough: Callable[[LoadedModel], bool] | None = None,
) -> Registry:
    """All usable models in the manifests of these folders. Other entries are reported, logged and left out.

    `tell` is called before each model is loaded. Loading stops after a model for which `enough` is true; small models come
    first.
    """
    models: dict[str, LoadedModel] = {}
    filters: dict[str, LoadedFilter] = {}
    left_out: dict[str, str] = {}
    kept = {} if previous is None else {each.sha256: each for each in previous.everything.values()}
    for folder in folders:
        try:
            found = raw_entries(folder)
        except UnusableModelError as error:
            _raise_shortage(error, previous)
            left_out[MANIFEST] = str(error)
            if previous is not None:  # it may be half written: its models stay
                models |= {name: each for name, each in previous.models.items() if each.path.parent == folder}
                filters |= {name: each for name, each in previous.filters.items() if each.path.parent == folder}
            log.error("manifest unreadable", extra={"fields": {"folder": str(folder), "reason": str(error)}})
            continue
        numbered = list(enumerate(found))
        for number, raw in numbered if enough is None else sorted(numbered, key=lambda each: _size(each[1])):
            if tell is not None:
                tell(f"{label(raw, number)}, {number + 1} of {len(found)}")
            try:
                entry = checked(folder, raw)
                old = kept.get(entry.file.sha256)
                if old is None or old.path != entry.file.path or old.description != entry.description:
                    old = None
                    fields = {"file": str(entry.file.path.name), "d": entry.description["d"]}
                    log.info("loading a model", extra={"fields": fields})
                if isinstance(entry.terms, FilterTerms):
                    image_filter = cast(LoadedFilter, old) if old is not None else open_filter(entry)
                    filters[image_filter.name] = image_filter
                    continue
                model = cast(LoadedModel, old) if old is not None else _open(entry, threads)
                models[model.name] = model
                if enough is not None and enough(model):
                    return Registry(models, left_out, filters)
            except Exception as error:  # an unexpected error costs one model, not the service
                _raise_shortage(error, previous)
                reason = str(error) if isinstance(error, UnusableModelError) else f"it cannot be used: {line(error)}"
                left_out[label(raw, number)] = reason
                log.warning("model left out", extra={"fields": {"file": label(raw, number), "reason": reason}})
    return Registry(models, left_out, filters)


def is_usable(folder: Path, raw: Any) -> bool:
    """True if the model of a manifest entry loads and runs."""
    try:
        _open(checked(folder, raw), 1)
    except Exception:  # any error means that the model is built again
        return False
    return True


def _size(entry: Any) -> int:
    """The d of an entry, if it has a d."""
    about = entry.get("description") if isinstance(entry, dict) else None
    d = about.get("d") if isinstance(about, dict) else None
    return d if isinstance(d, int) else 0


def _raise_shortage(error: Exception, previous: Registry | None) -> None:
    """Raise a shortage of memory or files: the reload ends, and no model is blamed or lost."""
    causes = [or_shortage(each) for each in (error, error.__context__) if isinstance(each, Exception)]
    if previous is not None and previous.everything and any(isinstance(each, ShortageError) for each in causes):
        raise ShortageError from None


def _open(entry: Entry, threads: int) -> LoadedModel:
    """Open a session, compare the contract with the file's metadata, and make one trial run."""
    grid, columns = cast(tuple[FedGrid, tuple[Target, ...]], entry.terms)
    d, proto = int(entry.description["d"]), proto_of(entry)
    dims = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    if dims[1:] != [d]:
        raise UnusableModelError(f"its input has the shape {dims[:9]}, which is not a batch of {d} numbers each")
    names = proto.graph.input[0].name, proto.graph.output[0].name
    session = session_of(lambda: with_counting(proto, d, columns, grid), threads)
    model = LoadedModel(entry.file.path.stem, entry.file, entry.description, grid, columns, session, *names)
    with trial():
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
    times = []
    for _ in range(3):
        started = time.perf_counter()
        model.run(row)
        times.append(time.perf_counter() - started)
    return min(times)
