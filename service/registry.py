"""The models being served: read from the manifest, checked, loaded, and chosen between.

A registry is a snapshot that never changes; a reload makes a new one, keeps the sessions of files that did not change,
and is swapped in at once. Requests finish on the snapshot they started with. A name is only ever a key of a dictionary.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from service.errors import BadInputError, ProblemError
from service.one_row import for_one_row
from service.ranks import EVEN, Even, Layout, Target, layout, median_target
from service.scaling import Floats, Grid
from service.serving import OUTPUT, with_counting

log = logging.getLogger("service")
MANIFEST = "manifest.json"
Description = dict[str, Any]


class UnusableModelError(Exception):
    """A manifest entry that is left out; the message says why."""


@dataclass(frozen=True, eq=False)
class Model:
    """One loaded network with its contract."""

    name: str
    path: Path
    sha256: str
    description: Description
    grid: Grid
    columns: tuple[Target, ...]
    one: Any
    many: Any
    input_name: str
    output_name: str
    row_seconds: float = 0.0

    @property
    def d(self) -> int:
        return int(self.description["d"])

    @property
    def exact(self) -> bool:
        """True for a construction that is right on every grid input."""
        return self.description["failure_bound"] == 0 and bool(self.description["exact_on_grid"])

    @cached_property
    def told(self) -> list[slice]:
        """Which numbers of a row that onnxruntime returns belong to each column."""
        ends = list(accumulate((3 if column.single else 5 for column in self.columns), initial=0))
        return [slice(start, end) for start, end in pairwise(ends)]

    def run(self, rows: Floats) -> list[list[list[float]]]:
        """What counting tells of each column for rows (b, d). The interpreter lock is free while onnxruntime computes."""
        session = self.one if len(rows) == 1 else self.many
        told = session.run([OUTPUT], {self.input_name: rows})[0]
        if told.shape != (len(rows), self.told[-1].stop):
            raise RuntimeError(f"{self.name} returned shape {told.shape} for {len(rows)} rows")
        if len(self.columns) == 1:
            return [told.tolist()]
        return [told[:, part].tolist() for part in self.told]


@dataclass(frozen=True)
class Choice:
    """A model and how it is used for vectors of one length."""

    model: Model
    layout: Layout
    target: Target


@dataclass(frozen=True, eq=False)
class Registry:
    """A snapshot of all models, and what could not be loaded."""

    models: dict[str, Model]
    left_out: dict[str, str] = field(default_factory=dict)
    _choices: dict[tuple[int, Even, str | None, str | None], Choice] = field(default_factory=dict)

    @property
    def largest(self) -> int:
        return max((model.d for model in self.models.values()), default=0)

    def get(self, name: str) -> Model:
        if name not in self.models:
            raise ProblemError(404, f"There is no model {name!r}.", models=sorted(self.models)[:50])
        return self.models[name]

    def median(self, n: int, even: Even, name: str | None, construction: str | None) -> Choice:
        """The choice for the median of n values, looked up."""
        key = (n, even, name, construction)
        choice = self._choices.get(key)
        if choice is None:
            choice = self.choose(n, median_target(n, even), name, construction)
            self._choices[key] = choice
        return choice

    def choose(
        self, n: int, target: Target, name: str | None = None, construction: str | None = None, exact: bool = False
    ) -> Choice:
        """The smallest model that yields `target` of n values; probabilistic ones only for those who ask."""
        pool = [self.get(name)] if name is not None else list(self.models.values())
        if construction is not None:
            pool = [model for model in pool if model.description["construction"] == construction]
            if not pool:
                known = sorted({str(model.description["construction"]) for model in self.models.values()})
                raise ProblemError(404, f"There is no model of construction {construction!r}.", constructions=known)
        if exact or (name is None and construction is None and any(model.exact for model in pool)):
            pool = [model for model in pool if model.exact]
        fitting = [
            Choice(model, found, target)
            for model in pool
            if (found := layout(model.columns, model.d, n, target)) is not None
        ]
        if not fitting:
            raise BadInputError(self._misfit(n, pool, name or construction))
        return min(fitting, key=_cost)

    def _misfit(self, n: int, pool: Sequence[Model], asked: str | None) -> str:
        longest = max((model.d for model in pool), default=0)
        who = f"model or construction {asked!r}" if asked else "the models loaded here"
        if n > longest:
            return f"{n} values are too long: {who} take at most {longest}."
        return f"A vector of {n} values does not fit {who}: no padding gives its median. Leave the choice open."

    def gaps(self) -> list[int]:
        """Lengths up to the largest model for which some convention of the median has no exact model."""
        missing = []
        for n in range(1, self.largest + 1):
            for even in EVEN:
                target = median_target(n, even)
                if not any(m.exact and layout(m.columns, m.d, n, target) for m in self.models.values()):
                    missing.append(n)
                    break
        return missing


def _cost(choice: Choice) -> tuple[int, bool, float, str]:
    """Fewest numbers fed; then exact before probabilistic; then what ran fastest when it was loaded."""
    model = choice.model
    fed = len(choice.layout.rows) * model.d
    return fed, not model.exact, model.row_seconds, model.name


def load(folders: Iterable[Path], threads: int = 1, previous: Registry | None = None) -> Registry:
    """Everything usable in the manifests of these folders; what is not is reported, logged and left out."""
    models: dict[str, Model] = {}
    left_out: dict[str, str] = {}
    kept = {} if previous is None else {model.sha256: model for model in previous.models.values()}
    for folder in folders:
        for number, entry in enumerate(_entries(folder, left_out)):
            label = str(entry["file"]) if isinstance(entry, dict) and "file" in entry else f"{MANIFEST} entry {number}"
            try:
                path, digest = _checked_file(folder, entry)
                old = kept.get(digest)
                if old is not None and old.path == path and old.description == entry["description"]:
                    models[path.stem] = old
                else:
                    models[path.stem] = _open(path, digest, entry["description"], threads)
            except UnusableModelError as error:
                left_out[label] = str(error)
                log.warning("model left out", extra={"fields": {"file": label, "reason": str(error)}})
    return Registry(models, left_out)


def _entries(folder: Path, left_out: dict[str, str]) -> list[Any]:
    path = folder / MANIFEST
    if not path.exists():
        return []
    try:
        manifest = json.loads(path.read_bytes())
        if manifest["format"] != 1:
            raise ValueError(f"format {manifest['format']!r} is unknown, 1 is expected")
        return list(manifest["models"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        left_out[MANIFEST] = f"the manifest cannot be read: {error}"
        log.error("manifest unreadable", extra={"fields": {"file": str(path), "reason": str(error)}})
        return []


def _checked_file(folder: Path, entry: Any) -> tuple[Path, str]:
    """The entry's file, if it is a plain name inside the folder and its bytes are the ones that were exported."""
    if not isinstance(entry, dict) or not all(key in entry for key in ("file", "sha256", "description")):
        raise UnusableModelError("the manifest entry lacks file, sha256 or description")
    name = entry["file"]
    if not isinstance(name, str) or Path(name).name != name or not name.endswith(".onnx") or not name.isprintable():
        raise UnusableModelError("the file is not a plain .onnx name inside the models folder")
    path = folder / name
    try:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise UnusableModelError(f"the file cannot be read: {error.strerror}") from None
    if digest != entry["sha256"]:
        raise UnusableModelError("its sha256 differs from the manifest: the file is damaged or was replaced")
    return path, digest


def _open(path: Path, digest: str, description: Any, threads: int) -> Model:
    """A session with explicit threads, its contract compared with the file's own metadata, and one trial run."""
    try:
        grid, columns = _contract(description)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UnusableModelError(f"its description is not one of ours: {error!r}") from None
    try:
        proto = onnx.load_model_from_string(path.read_bytes())
    except Exception as error:  # protobuf has classes of its own for damage
        raise _unloadable(error) from None
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    for key, value in description.items():
        text = value if isinstance(value, str) else json.dumps(value)
        stored = metadata.get(key)
        if stored != text and (stored is None or isinstance(value, str) or not _same_json(stored, value)):
            raise UnusableModelError(f"its metadata says {key} = {stored!r}, the manifest {text!r}")
    inputs, outputs = proto.graph.input, proto.graph.output
    if len(inputs) != 1 or len(outputs) != 1:
        raise UnusableModelError("it has not exactly one input and one output")
    d, dims = int(description["d"]), [dim.dim_value for dim in inputs[0].type.tensor_type.shape.dim]
    if dims[1:] != [d]:
        raise UnusableModelError(f"its input has the shape {dims}, which is not a batch of {d} numbers each")
    try:
        graph = with_counting(proto, d, columns, grid)
        one, many = (
            ort.InferenceSession(each.SerializeToString(), session_options(threads), ["CPUExecutionProvider"])
            for each in (for_one_row(graph), graph)
        )
    except Exception as error:  # onnxruntime raises classes of its own for every kind of damage
        raise _unloadable(error) from None
    names = inputs[0].name, outputs[0].name
    model = Model(path.stem, path, digest, description, grid, columns, one, many, *names)
    try:
        model.run(np.full((2, model.d), grid.low, grid.dtype))
        return replace(model, row_seconds=_time_one_row(model))
    except Exception as error:
        raise UnusableModelError(f"its trial run fails: {str(error).splitlines()[0][:200]}") from None


def _unloadable(error: Exception) -> UnusableModelError:
    return UnusableModelError(f"onnxruntime cannot load it: {str(error).splitlines()[0][:200]}")


def _time_one_row(model: Model) -> float:
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
    options.log_severity_level = 3
    return options


def _contract(description: Any) -> tuple[Grid, tuple[Target, ...]]:
    """The numeric contract and the output columns, from a description that is complete."""
    for key in ("construction", "failure_bound", "exact_on_grid", "width", "op"):
        if key not in description:
            raise KeyError(key)
    low, high = map(float, description["domain"])
    d, bits = int(description["d"]), int(description["bits"])
    dtypes: dict[str, np.dtype[Any]] = {"float32": np.dtype(np.float32), "float64": np.dtype(np.float64)}
    dtype = dtypes[description["dtype"]]
    if d < 1 or not 1 <= bits <= 50 or not low < high:
        raise ValueError(f"d = {d}, bits = {bits}, domain = [{low}, {high}]")
    columns = tuple(_column(output["ranks"], output["weights"], d) for output in description["outputs"])
    if not columns:
        raise ValueError("no outputs")
    return _grid(bits, low, high, description.get("step"), dtype), columns


def _grid(bits: int, low: float, high: float, step: float | None, dtype: np.dtype[Any]) -> Grid:
    """The grid a model is fed: 2^b multiples of its step, as many as its domain holds.

    The step of an exported model is a power of two, so a domain such as 0 to 255 holds fewer than 2^bits of them.
    """
    if step is None:
        return Grid(bits, low, high, dtype)
    first = round(low / step)
    used = (round(high / step) - first).bit_length() - 1
    return Grid(used, first * step, (first + 2**used) * step, dtype)


def _column(ranks: list[int], weights: list[float], d: int) -> Target:
    if not all(1 <= rank <= d for rank in ranks):
        raise ValueError(f"ranks {ranks} are not within 1..{d}")
    match ranks, weights:
        case [int(rank)], [1]:
            return Target.rank(rank)
        case [int(low), int(high)], [first, second] if high == low + 1 and abs(first + second - 1) < 1e-9:
            if 0 <= second <= 1:
                return Target(low, high, float(second))
    raise ValueError(f"an output of ranks {ranks} with weights {weights} cannot be certified")


def name_of_even(value: str) -> Even:
    """The convention for even lengths, checked."""
    for even in EVEN:
        if value == even:
            return even
    raise BadInputError(f"even must be one of mean, lower, upper, not {value[:40]!r}")
