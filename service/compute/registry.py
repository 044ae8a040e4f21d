"""The models being served: read from the manifest, checked, loaded, and chosen between.

A registry is a snapshot that never changes; a reload makes a new one, keeps the sessions of files that did not change,
and is swapped in at once. Requests finish on the snapshot they started with. A name is only ever a key of a dictionary.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from exporter.files.manifest import MANIFEST
from exporter.files.model_file import encode
from exporter.files.speed_table import LARGEST, SPEED_TABLE, SpeedTable, parsed
from exporter.question.task import Even
from exporter.readings.promise import uniform_only
from service.compute.counting import OUTPUT, with_counting
from service.compute.entries import (
    CheckedFile,
    Description,
    Entry,
    UnusableModelError,
    checked,
    label,
    raw_entries,
    read_regular,
)
from service.errors import BadInputError, ProblemError, ShortageError, or_shortage
from service.layout import Layout, Target, all_columns, layout, median_target
from service.scaling import FedGrid, Floats, certify, scale

log = logging.getLogger("service")
MOST_CHOICES = 1 << 14  # that are remembered


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """One loaded network with its contract."""

    name: str
    file: CheckedFile
    description: Description
    grid: FedGrid
    columns: tuple[Target, ...]
    session: Any
    input_name: str
    output_name: str
    row_seconds: float = 0.0  # when it was loaded
    tuned_seconds: float | None = None  # by the table of speeds beside it

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def sha256(self) -> str:
        return self.file.sha256

    @cached_property
    def d(self) -> int:
        return int(self.description["d"])

    @property
    def exact(self) -> bool:
        """True for a construction that is right on every grid input."""
        return self.description["failure_bound"] == 0 and bool(self.description["exact_on_grid"])

    @property
    def is_median(self) -> bool:
        return bool(self.description["op"] == "median")

    @cached_property
    def told(self) -> list[slice]:
        """Which numbers of a row that onnxruntime returns belong to each column."""
        ends = list(accumulate((3 if column.single else 5 for column in self.columns), initial=0))
        return [slice(start, end) for start, end in pairwise(ends)]

    def run(self, rows: Floats) -> list[list[list[float]]]:
        """What counting tells of each column for rows (b, d). The interpreter lock is free while onnxruntime computes."""
        told = self.session.run([OUTPUT], {self.input_name: rows})[0]
        if told.shape != (len(rows), self.told[-1].stop):
            raise RuntimeError(f"{self.name} returned shape {told.shape} for {len(rows)} rows")
        if len(self.columns) == 1:
            return [told.tolist()]
        return [told[:, part].tolist() for part in self.told]


@dataclass(frozen=True)
class ModelUse:
    """A model and how it is used for vectors of one length."""

    model: LoadedModel
    layout: Layout
    target: Target


@dataclass(frozen=True, eq=False)
class Registry:
    """A snapshot of all models, and what could not be loaded."""

    models: dict[str, LoadedModel]
    left_out: dict[str, str] = field(default_factory=dict)
    _choices: dict[tuple[int, Even, str | None, str | None], ModelUse] = field(default_factory=dict)

    @cached_property
    def largest(self) -> int:
        return max((model.d for model in self.models.values()), default=0)

    def get(self, name: str) -> LoadedModel:
        if name not in self.models:
            raise ProblemError(404, f"There is no model {name!r}.", models=sorted(self.models)[:50])
        return self.models[name]

    def median(self, n: int, even: Even, name: str | None, construction: str | None) -> ModelUse:
        """The choice for the median of n values, looked up."""
        key = (n, even, name, construction)
        choice = self._choices.get(key)
        if choice is None:
            medians = self if name is not None else self._medians
            choice = medians.choose(n, median_target(n, even), name, construction)
            if len(self._choices) >= MOST_CHOICES:
                self._choices.clear()
            self._choices[key] = choice
        return choice

    @cached_property
    def _medians(self) -> Registry:
        """Those whose own task is a median: another, such as a maximum, is used for one by name only."""
        return Registry({name: model for name, model in self.models.items() if model.is_median})

    def choose(
        self, n: int, target: Target, name: str | None = None, construction: str | None = None, exact: bool = False
    ) -> ModelUse:
        """The smallest model that yields `target` of n values; probabilistic ones only for those who ask.

        One that is made for uniform inputs is never taken for data that nobody vouches for: it must be named.
        """
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
            ModelUse(model, found, target)
            for model in pool
            if (found := layout(model.columns, model.d, n, target)) is not None
        ]
        if not fitting:
            raise BadInputError(self._misfit(n, pool, name or construction))
        least = min(map(_size_first, fitting))
        equals = [use for use in fitting if _size_first(use) == least]
        tuned = all(use.model.tuned_seconds is not None for use in equals)
        return min(
            equals, key=lambda use: (use.model.tuned_seconds if tuned else use.model.row_seconds, use.model.name)
        )

    def _misfit(self, n: int, pool: Sequence[LoadedModel], asked: str | None) -> str:
        longest = max((model.d for model in pool), default=0)
        who = f"model or construction {asked!r}" if asked else "the models loaded here"
        if not pool and self.models:
            return "The models loaded here are for uniform inputs only: one of them serves a request that names it."
        if n > longest:
            return f"{n} values are too long: {who} take at most {longest}."
        return f"A vector of {n} values does not fit {who}: no padding gives that rank. Leave the choice open."


def _size_first(choice: ModelUse) -> tuple[int, bool]:
    """Fewest numbers fed; then exact before probabilistic.

    Of equals the one is chosen that is fastest by the table of speeds, or, where not all of them are in one, when loaded.
    """
    return len(choice.layout.rows) * choice.model.d, not choice.model.exact


def load(
    folders: Iterable[Path],
    threads: int = 1,
    previous: Registry | None = None,
    tell: Callable[[str], None] | None = None,
    enough: Callable[[LoadedModel], bool] | None = None,
) -> Registry:
    """Everything usable in the manifests of these folders; what is not is reported, logged and left out.

    `tell` is told before each model is loaded; when one is `enough`, no more are, of the small ones first.
    """
    models: dict[str, LoadedModel] = {}
    left_out: dict[str, str] = {}
    kept = {} if previous is None else {model.sha256: model for model in previous.models.values()}
    for folder in folders:
        try:
            found = raw_entries(folder)
        except UnusableModelError as error:
            _raise_shortage(error, previous)
            left_out[MANIFEST] = str(error)
            log.error("manifest unreadable", extra={"fields": {"folder": str(folder), "reason": str(error)}})
            continue
        speeds = _speeds(folder)
        numbered = list(enumerate(found))
        for number, raw in numbered if enough is None else sorted(numbered, key=lambda each: _size(each[1])):
            if tell is not None:
                tell(f"{label(raw, number)}, {number + 1} of {len(found)}")
            try:
                entry = checked(folder, raw)
                old = kept.get(entry.file.sha256)
                same = old is not None and old.path == entry.file.path and old.description == entry.description
                if old is None or not same:
                    fields = {"file": str(entry.file.path.name), "d": entry.description["d"]}
                    log.info("loading a model", extra={"fields": fields})
                model = old if old is not None and same else _open(entry, threads)
                tuned = speeds.seconds(model.name) if speeds else None
                if tuned != model.tuned_seconds:
                    model = replace(model, tuned_seconds=tuned)
                models[model.name] = model
                if enough is not None and enough(model):
                    return Registry(models, left_out)
            except Exception as error:  # a class that no check foresaw still costs one model, not the service
                _raise_shortage(error, previous)
                reason = str(error) if isinstance(error, UnusableModelError) else f"it cannot be used: {_line(error)}"
                left_out[label(raw, number)] = reason
                log.warning("model left out", extra={"fields": {"file": label(raw, number), "reason": reason}})
    return Registry(models, left_out)


def _speeds(folder: Path) -> SpeedTable | None:
    """What `python -m exporter tune` measured for a folder; without it, or where it is damaged, models are timed here."""
    try:
        return parsed(read_regular(folder / SPEED_TABLE, LARGEST))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{_line(error)}; models are chosen by the time of a row when they were loaded"
        log.warning("table of speeds left out", extra={"fields": {"folder": str(folder), "reason": reason}})
        return None


def _size(entry: Any) -> int:
    """The d of an entry, where it has one."""
    about = entry.get("description") if isinstance(entry, dict) else None
    d = about.get("d") if isinstance(about, dict) else None
    return d if isinstance(d, int) else 0


def _raise_shortage(error: Exception, previous: Registry | None) -> None:
    """A shortage says nothing of a folder: while there are models to go on with, it ends the reload, and costs none."""
    if previous is None or not previous.models:
        return
    for each in (error, error.__context__):
        if isinstance(each, Exception) and isinstance(shortage := or_shortage(each), ShortageError):
            raise shortage from None


def _open(entry: Entry, threads: int) -> LoadedModel:
    """A session with explicit threads, its contract compared with the file's own metadata, and one trial run."""
    description, grid, columns = entry.description, entry.grid, entry.columns
    try:
        proto = onnx.load_model_from_string(entry.data)
    except Exception as error:  # protobuf has classes of its own for damage
        raise _unloadable(error) from None
    metadata = {each.key: each.value for each in proto.metadata_props}
    for key, text in encode(description).items():
        stored, value = metadata.get(key), description[key]
        if stored != text and (stored is None or isinstance(value, str) or not _same_json(stored, value)):
            raise UnusableModelError(f"its metadata says {key} = {_short(stored)}, the manifest {_short(text)}")
    inputs, outputs = proto.graph.input, proto.graph.output
    if len(inputs) != 1 or len(outputs) != 1:
        raise UnusableModelError("it has not exactly one input and one output")
    d, dims = int(description["d"]), [dim.dim_value for dim in inputs[0].type.tensor_type.shape.dim]
    if dims[1:] != [d]:
        raise UnusableModelError(f"its input has the shape {dims[:9]}, which is not a batch of {d} numbers each")
    if any(attribute.HasField("g") or attribute.graphs for node in proto.graph.node for attribute in node.attribute):
        raise UnusableModelError("it has graphs inside its nodes, such as a loop, which need not end")
    if _reaches_out(proto.graph):
        raise UnusableModelError("it has weights in other files, which nothing vouches for")
    try:
        served = with_counting(proto, d, columns, grid).SerializeToString()
        session = ort.InferenceSession(served, session_options(threads), ["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises classes of its own for every kind of damage
        raise _unloadable(error) from None
    names = inputs[0].name, outputs[0].name
    model = LoadedModel(entry.file.path.stem, entry.file, description, grid, columns, session, *names)
    try:
        _try(model)
        return replace(model, row_seconds=_time_one_row(model))
    except Exception as error:
        raise UnusableModelError(f"its trial run fails: {_line(error)}") from None


def _reaches_out(graph: Any) -> bool:
    """Whether a tensor of a graph is kept in another file."""
    attributes = [attribute for node in graph.node for attribute in node.attribute]
    tensors = [*graph.initializer, *(tensor for each in attributes for tensor in (each.t, *each.tensors))]
    return any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in tensors)


def _try(model: LoadedModel) -> None:
    """The whole way of two vectors, as a request would go: whatever is raised there is raised here first."""
    values = np.linspace(-1.0, 1.0, 2 * model.d).reshape(2, model.d)
    scaled = scale(values, all_columns(model.columns), model.d, model.grid)
    told = model.run(scaled.rows.reshape(2, model.d))
    for numbers, target in zip(told, model.columns, strict=True):
        scaled.back(certify(numbers, target, model.d, model.grid), target)


def _line(error: Exception) -> str:
    """What an error says, on one line."""
    error = or_shortage(error)
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]


def _short(value: str | None) -> str:
    return repr(value if value is None else value[:100])


def _unloadable(error: Exception) -> UnusableModelError:
    return UnusableModelError(f"onnxruntime cannot load it: {_line(error)}")


def _time_one_row(model: LoadedModel) -> float:
    """The best of three runs: what the model costs here, for choosing between models and for planning batches."""
    row = np.full((1, model.d), model.grid.low, model.grid.dtype)
    times = []
    for _ in range(3):
        started = time.perf_counter()
        model.run(row)
        times.append(time.perf_counter() - started)
    return min(times)


def _same_json(stored: str, value: Any) -> bool:
    try:
        return bool(json.loads(stored) == value)
    except ValueError:
        return False


def session_options(threads: int) -> Any:
    """One inference uses exactly `threads` threads, and they sleep when idle instead of burning a processor."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.log_severity_level = 4  # what goes wrong is raised; onnxruntime itself writes nothing, which could block
    return options
