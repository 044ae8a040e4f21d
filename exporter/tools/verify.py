"""Run a file in onnxruntime against numpy, family by family."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from exporter.analysis.promise import (
    beyond_the_grid,
    interpolates,
    kind_of_promise,
    percent,
    promise_sentence,
    uniform_only,
    without_grid,
)
from exporter.check import check
from exporter.errors import UserError
from exporter.formats.model_file import decode, load
from exporter.formats.session import Session
from exporter.frontends.images.running import ImageSession
from exporter.passes.profiles import takes_images
from exporter.problem.description import Description, grid_of, task_of
from exporter.problem.families import FLOATS, OFF_GRID, UNITS
from exporter.problem.grid import Grid, at_most
from exporter.problem.task import Task

# Families in random order, for which a failure bound holds. The others repeat one order, which always fails or never does.
RANDOM = {
    "exact": {"uniform", "grid", "ties", "two-values", "8-bit", "clustered", "range-ends", *OFF_GRID},
    "capacity": {"uniform", "grid", "off-grid"},
}
EVEN = {"uniform", "grid", "off-grid"}  # entries independent and uniform in the domain
CHANCE = 1e-9  # the probability of calling a true failure bound broken, for one family
LABELS = {"outside": "outside the domain (compared with clamped data)"}


@dataclass(frozen=True, kw_only=True)
class FamilyResult:
    """One row of the table: the measured errors, the promise for this family (empty: none) and whether it was kept.

    Errors are differences from numpy's answer for the data, clamped to the domain in the family `outside`. `exact` is the
    share of answers that equal numpy's bit for bit, in the dtype of the file. `wrong` is the share beyond the promise.
    """

    family: str
    trials: int
    exact: float
    wrong: float
    max_error: float
    mse: float
    promise: str
    kept: bool | None


@dataclass(frozen=True)
class Verification:
    """The results of all families. The contract is kept if a promise is made and every promise is kept.

    A file without a promise is compared with numpy: `kept` then says whether every answer was exact.
    """

    file: str
    contract: str
    families: list[FamilyResult]
    breaches: list[str]
    rounding: str = ""  # proven, or the first node that may round, and why (exporter.check)

    @property
    def promises(self) -> bool:
        return any(f.promise for f in self.families)

    @property
    def kept(self) -> bool:
        if self.breaches:
            return False
        return (
            all(f.kept for f in self.families if f.promise) if self.promises else self.exact_rows == len(self.families)
        )

    @property
    def exact_rows(self) -> int:
        return sum(f.exact == 1 for f in self.families)

    @property
    def conclusion(self) -> str:
        """The result in one sentence."""
        if not self.promises:
            return f"no promise is stated; exact on {self.exact_rows} of {len(self.families)} families"
        if not self.kept:
            return "the contract is broken"
        silent = [f.family for f in self.families if not f.promise]
        return "the contract is kept" + (f"; nothing is promised on {', '.join(silent)}" if silent else "")

    def lines(self) -> list[str]:
        """The results as a table and a conclusion."""
        rows = [f"{'trials':>7} {'exact':>8} {'wrong':>8} {'max error':>10} {'mse':>10}  {'promise':7} inputs"]
        for f in self.families:
            held = "none" if f.kept is None else "kept" if f.kept else "BROKEN"
            promised = f": {f.promise}" if f.promise else ""
            figures = f"{f.exact:8.2%} {f.wrong:8.2%} {f.max_error:10.3g} {f.mse:10.3g}"
            rows.append(f"{f.trials:7d} {figures}  {held:7} {LABELS.get(f.family, f.family)}{promised}")
        broken = [f"broken: {breach}" for breach in self.breaches]
        return [f"{self.file}: {self.contract}", f"rounding: {self.rounding}", *rows, *broken, self.conclusion]

    def as_dict(self) -> dict[str, Any]:
        rows = [{k: None if v in (np.inf, np.nan) else v for k, v in asdict(f).items()} for f in self.families]
        return asdict(self) | {"families": rows, "kept": self.kept, "conclusion": self.conclusion}


def verify(
    path: Path, trials: int = 100, seed: int = 0, progress: Callable[[Iterator[str]], Iterator[str]] = iter
) -> Verification:
    """Run every family and compare with numpy on the same data, clamped to the domain in the family `outside`."""
    if trials < 1:
        raise UserError(f"--trials must be 1 or more, not {trials}")
    proto = load(path)
    session = ImageSession(path) if takes_images(proto) and decode(proto) else Session(path)
    about = session.description
    task = task_of(about, session.d)
    grid = grid_of(about)
    rng = np.random.default_rng(seed)
    results, breaches = [], []
    # the family `outside` needs a description with a domain
    names = [
        *UNITS,
        *(name for name in OFF_GRID if session.dtype.itemsize >= 4 and (about or name != "outside")),
        *(FLOATS if without_grid(about) and session.dtype.kind == "f" else ()),
    ]

    def draw(name: str, n: int, d: int) -> npt.NDArray[Any]:
        if name in UNITS:
            return grid.values(UNITS[name](rng, n, d, grid.cells)).astype(session.dtype)
        if name in FLOATS:
            return FLOATS[name](rng, n, d, session.dtype)
        return OFF_GRID[name](rng, n, d, grid, session.dtype)

    for name in progress(iter(names)):
        x, got = session.sample(partial(draw, name), trials)
        p = len(task.outputs)
        columns = p + 2 * len(task.ranks) * bool(about.get("certificate"))
        if got.shape[1] < p or (about and got.shape[1] != columns):
            raise UserError(f"{path} returns {got.shape[1]} columns where {columns} are needed")
        results.append(_result(about, task, grid, name, x, got[:, :p]))
        if results[-1].kept is False:
            breaches.append(f"{name}: {_measured(about, results[-1])}, promised: {results[-1].promise}")
        if about.get("certificate") and (name in UNITS or about.get("off_grid_error") is not None):
            breaches += _false_certificates(about, task, grid, name, x, got)
    contract = f"{promise_sentence(about)} Other data: {beyond_the_grid(about)}" if about else "no promise stated"
    return Verification(path.name, contract, results, breaches, str(check(path)))


def _result(
    about: Description, task: Task, grid: Grid, family: str, x: npt.NDArray[Any], value: npt.NDArray[Any]
) -> FamilyResult:
    """One row: the answers compared with numpy's, and with the file's promise for such data."""
    kind, on_grid = kind_of_promise(about), family in UNITS or without_grid(about)
    clamped = x if on_grid or family != "outside" else np.clip(x, *np.array([grid.lo, grid.hi]).astype(x.dtype))
    truth = task.answers(clamped)
    exact = ((value == truth) | (np.isnan(value) & np.isnan(truth))).all(axis=1)
    whole = on_grid or not about  # the ends of the grid are the rounded ends of the domain, and may lie outside of it
    ranks = _ranks(task, x.astype(np.float64) if whole else np.clip(x.astype(np.float64), grid.lo, grid.hi))
    error = np.nan_to_num(_errors(task, ranks, value), nan=np.inf, posinf=np.inf)
    allowed = about.get("grid_error") if on_grid else about.get("off_grid_error")
    bit_exact = on_grid and kind in ("exact", "rate") and not interpolates(about)
    error[exact[:, None] & ~np.isfinite(error)] = 0.0  # an answer of inf for inf: their difference is no number
    wrong = ~exact if bit_exact else _beyond(task, ranks, value, error, allowed or 0.0)
    with np.errstate(over="ignore"):
        mse = float((error**2).mean())
    promised, kept = "", None
    if kind == "mse" and family in ("uniform", "off-grid"):
        limit = (about["epsilon"] or 0) * grid.span**2
        promised, kept = f"mean squared error <= {at_most(limit)}", mse <= limit
    elif kind in ("exact", "rate", "error") and allowed is not None:
        right = "exact" if bit_exact else f"error <= {at_most(allowed, 4)}"
        if kind != "rate":
            promised, kept = right, not wrong.any()
        elif family in (EVEN if uniform_only(about) else RANDOM[about.get("ties", "capacity")]):
            seeds = " on average over seeds" * (about.get("failure_law") in ("seeds", "uniform-seeds"))
            promised = f"{right} except for {percent(about['failure_bound'])}{seeds}"
            kept = _likely(int(wrong.sum()), len(x), about["failure_bound"])
    return FamilyResult(
        family=family, trials=len(x), exact=float(exact.mean()), wrong=float(wrong.mean()), max_error=float(error.max()),
        mse=mse, promise=promised, kept=kept,
    )  # fmt: skip


def _likely(wrong: int, trials: int, bound: float) -> bool:
    """Whether so many wrong answers or more happen with a probability above `CHANCE`, if the failure bound is true."""
    from scipy.special import bdtrc  # noqa: PLC0415, scipy takes as long to load as all else, and few files have a bound

    return bool(bdtrc(wrong - 1, trials, bound) > CHANCE)


def _measured(about: Description, row: FamilyResult) -> str:
    if kind_of_promise(about) == "mse":
        return f"mean squared error {row.mse:.3g}"
    return f"{row.wrong:.2%} of the answers are wrong, by up to {row.max_error:.4g}"


def _ranks(task: Task, x: npt.NDArray[np.float64]) -> dict[int, npt.NDArray[np.float64]]:
    part = np.partition(x, [r - 1 for r in task.ranks], axis=1)
    return {r: part[:, r - 1] for r in task.ranks}


def _errors(task: Task, ranks: dict[int, npt.NDArray[np.float64]], value: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """|y - the weighted ranks|, column by column, as the weighted sum of y - rank: no large numbers cancel."""
    y, columns = value.astype(np.float64), []
    with np.errstate(over="ignore", invalid="ignore"):
        for i, out in enumerate(task.outputs):
            parts = [float(w) * (y[:, i] - ranks[r]) for r, w in zip(out.ranks, out.weights, strict=True)]
            columns.append(np.abs(np.sum(parts, axis=0)))
    return np.stack(columns, axis=1)


def _beyond(
    task: Task,
    ranks: dict[int, npt.NDArray[np.float64]],
    value: npt.NDArray[Any],
    error: npt.NDArray[np.float64],
    allowed: float,
) -> npt.NDArray[np.bool_]:
    """The rows with an error above the allowed one, decided by rational numbers where float64 is too coarse."""
    largest = np.max([np.abs(r) for r in ranks.values()], axis=0)[:, None]
    unclear = np.isfinite(error) & (np.abs(error - allowed) <= 2.0**-50 * (largest + allowed))
    beyond = error > allowed
    for row, i in np.argwhere(unclear):
        o = task.outputs[i]
        truth = sum(Fraction(ranks[r][row]) * w for r, w in zip(o.ranks, o.weights, strict=True))
        beyond[row, i] = abs(Fraction(float(value[row, i])) - truth) > Fraction(allowed)
    return np.asarray(beyond.any(axis=1))


def _false_certificates(
    about: Description, task: Task, grid: Grid, family: str, x: npt.NDArray[Any], got: npt.NDArray[Any]
) -> list[str]:
    """A certificate (counts below and not above the value of a rank) must hold exactly where the value is right.

    The counts are of the data after rounding and clamping. An output of two ranks may be right although one rank is wrong,
    because errors cancel or are rounded away. The certificate need not hold then; it must never hold for a wrong output.
    """
    seen = x if family in UNITS else grid.rounded(x)
    value, counts = got[:, : len(task.outputs)], got[:, len(task.outputs) :].reshape(len(x), len(task.ranks), 2)
    order = np.asarray(task.ranks)
    proved = ((counts[:, :, 0] < order) & (order <= counts[:, :, 1])).all(axis=1)
    if task.may_round:
        ranks = _ranks(task, seen.astype(np.float64))
        right = ~_beyond(task, ranks, value, _errors(task, ranks, value), about["grid_error"] or 0)
    else:
        right = (value == task.answers(seen)).all(axis=1)
    lucky = bool(about.get("failure_bound")) and any(len(o.ranks) > 1 for o in task.outputs)
    wrong = int((proved & ~right if lucky else proved != right).sum())
    return [f"{family}: {wrong} certificates hold for a wrong answer or fail for a right one"] if wrong else []
