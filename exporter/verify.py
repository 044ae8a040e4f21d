"""Run a file in onnxruntime against numpy, family by family."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from exporter.describe import promise
from exporter.errors import UserError
from exporter.families import UNITS
from exporter.grid import Grid
from exporter.onnx_file import decode, load
from exporter.task import Output, Task, median

# families in random order, on which a failure bound must show; the others repeat one order, which fails always or never
RANDOM = {
    "exact": ("uniform", "grid", "ties", "two-values", "8-bit", "clustered", "range-ends"),
    "capacity": ("uniform", "grid"),
}
WORKING_SET = 1 << 26  # bytes of the largest tensor that one run should hold


@dataclass(frozen=True)
class FamilyResult:
    family: str
    trials: int
    exact: float
    max_error: float
    mse: float


@dataclass(frozen=True)
class Verification:
    """What a file returned on every family, and whether that keeps its own contract."""

    file: str
    contract: str
    families: list[FamilyResult]
    kept: bool
    breaches: list[str]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Session:
    """A file in onnxruntime: one thread, no spinning, batches cut to what fits in memory."""

    def __init__(self, path: Path) -> None:
        proto = load(path)
        self.description = decode(proto)
        stored = {t.name for t in proto.graph.initializer}
        inputs = [i for i in proto.graph.input if i.name not in stored]
        dims = inputs[0].type.tensor_type.shape.dim
        if len(inputs) != 1 or len(dims) != 2 or dims[1].dim_value < 1:
            raise UserError(f"{path}: it takes one input of shape [N, d] with a fixed d to be verified")
        self.d = dims[1].dim_value
        self.batch = dims[0].dim_value or None
        kinds: dict[int, np.dtype[Any]] = {1: np.dtype(np.float32), 11: np.dtype(np.float64)}
        element = inputs[0].type.tensor_type.elem_type
        if element not in kinds:
            raise UserError(f"{path}: its input is neither float32 nor float64")
        self.dtype = kinds[element]
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            self.session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise UserError(f"{path}: onnxruntime does not load it: {str(error).splitlines()[0][:200]}") from None
        self.input = inputs[0].name
        pairs = self.description.get("construction") == "depth3"
        self.chunk = self.batch or max(1, WORKING_SET // (self.d * (self.d if pairs else 64) * self.dtype.itemsize))

    def run(self, x: npt.NDArray[np.floating[Any]]) -> npt.NDArray[Any]:
        x = np.ascontiguousarray(x, dtype=self.dtype)
        pieces = []
        for start in range(0, len(x), self.chunk):
            piece = x[start : start + self.chunk]
            short = self.chunk - len(piece) if self.batch else 0
            padded = np.concatenate([piece, np.repeat(piece[-1:], short, axis=0)]) if short else piece
            pieces.append(np.asarray(self.session.run(None, {self.input: padded})[0])[: len(piece)])
        return np.concatenate(pieces).reshape(len(x), -1)


def task_of(description: dict[str, Any], d: int) -> Task:
    """The question a file says it answers; a file without a description is taken for a median."""
    if not description:
        return median(d)
    outputs = tuple(
        Output(o["name"], tuple(o["ranks"]), tuple(Fraction(w) for w in o["weights"])) for o in description["outputs"]
    )
    return Task(description["op"], d, outputs, description["op"], description["even"])


def verify(
    path: Path, trials: int = 100, seed: int = 0, progress: Callable[[Iterator[str]], Iterator[str]] = iter
) -> Verification:
    """Run every family and compare with numpy on the data itself."""
    if trials < 1:
        raise UserError(f"--trials must be 1 or more, not {trials}")
    session = Session(path)
    about = session.description
    task = task_of(about, session.d)
    grid = Grid(about["domain"][0], about["domain"][1], about["bits"]) if about else Grid()
    rng = np.random.default_rng(seed)
    results, breaches = [], []
    for name in progress(iter(UNITS)):
        x = grid.values(UNITS[name](rng, trials, session.d, grid.cells)).astype(session.dtype)
        truth = task.answers(x)
        got = session.run(x)
        if got.shape[1] < truth.shape[1]:
            raise UserError(f"{path}: it returns {got.shape[1]} columns where {truth.shape[1]} are needed")
        value = got[:, : truth.shape[1]]
        error = np.abs(value.astype(np.float64) - truth.astype(np.float64))
        exact = (value == truth).all(axis=1)
        results.append(FamilyResult(name, trials, float(exact.mean()), float(error.max()), float((error**2).mean())))
        breaches += _breaches(about, task, grid, name, x, got, results[-1])
    return Verification(path.name, _contract(about), results, not breaches, breaches)


def _contract(about: dict[str, Any]) -> str:
    if not about:
        return "none stated"
    if about["exact_on_grid"]:
        return f"exact on the grid of step {about['step']:g}"
    return promise(about)


def _breaches(
    about: dict[str, Any],
    task: Task,
    grid: Grid,
    family: str,
    x: npt.NDArray[Any],
    got: npt.NDArray[Any],
    result: FamilyResult,
) -> list[str]:
    """How the results on one family break what the file promises."""
    if not about:
        return []
    found = []
    if about["exact_on_grid"] and result.exact < 1:
        found.append(f"{family}: {1 - result.exact:.2%} of the answers are not exact")
    if about["epsilon"] is not None:
        if family == "uniform" and result.mse > about["epsilon"]:
            found.append(f"{family}: mean squared error {result.mse:.3g} is above ε = {about['epsilon']:g}")
    elif about["failure_bound"] > 0:
        # three standard deviations above the promised rate, so that a true promise is almost never reported broken
        p, n = about["failure_bound"], result.trials
        if family in RANDOM[about.get("ties", "capacity")] and (1 - result.exact) * n > p * n + 3 * (p * n) ** 0.5 + 1:
            found.append(f"{family}: {1 - result.exact:.2%} of the answers are wrong, above the bound {p:.3g}")
    elif task.rounds and result.max_error > 4 * np.finfo(x.dtype).eps * max(abs(grid.lo), abs(grid.hi)):
        found.append(f"{family}: error {result.max_error:.3g} is more than rounding")
    if about["certificate"]:
        found += _false_certificates(task, family, x, got)
    return found


def _false_certificates(task: Task, family: str, x: npt.NDArray[Any], got: npt.NDArray[Any]) -> list[str]:
    """A certificate (counts below and not above the value of a rank) must hold exactly where the value is right."""
    counts = got[:, len(task.outputs) :].reshape(len(x), len(task.ranks), 2)
    ranks = np.asarray(task.ranks)
    proved = ((counts[:, :, 0] < ranks) & (ranks <= counts[:, :, 1])).all(axis=1)
    right = (got[:, : len(task.outputs)] == task.answers(x)).all(axis=1)
    wrong = int((proved != right).sum())
    return [f"{family}: {wrong} certificates do not tell right from wrong"] if wrong else []
