"""The atlas: every construction at every d, built, exported, run and compared with what the theorems claim.

DIR/cells/NAME-dD.json   one finished measurement each; what exists is not measured again, so a run can be resumed
DIR/atlas.csv, atlas.md  the table
DIR/*.png                depth against width with the lower bounds, width and size against d, error by input family;
                         drawn from the table, so `--plots-only` can draw them again

A network whose tensors outgrow memory is counted and not run. A run ends after `seconds`, with as many vectors as it had;
the table says how many.
"""

from __future__ import annotations

import csv
import io
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from exporter.build import build, to_onnx, trace
from exporter.constructions import CONSTRUCTIONS, lookup, own, spoken, takers
from exporter.errors import UserError
from exporter.files.manifest import replace_file, writable
from exporter.files.session import Session
from exporter.options import Options, checked
from exporter.question import task as tasks
from exporter.question.families import UNITS
from exporter.readings.accounting import Accounting, accounting
from exporter.tools.atlas_plots import can_plot, plots

BITS = 24
GRID_ERROR = 2.0 ** -(2 * BITS)
COLUMNS = (
    "construction", "op", "d", "claimed_depth", "depth", "width", "width_over_d", "claimed_exponent", "exponent", "size",
    "nnz", "max_weight", "theorem_weight", "failure_bound", "failure_rate", "trials", "mse", "mse_bound", "reason",
)  # fmt: skip
FAMILY = "mse_on_"  # more columns of the CSV: the mean squared error on each family
TABLE = "atlas.csv"
NO_MATPLOTLIB = (
    "matplotlib is not installed; pip install 'onnx-median[plot]', and then "
    "python -m exporter atlas --plots-only --out {} draws them"
)


@dataclass(frozen=True)
class Cell:
    construction: str
    d: int

    @property
    def file(self) -> str:
        return f"{self.construction}-d{self.d}.json"


@dataclass(frozen=True)
class Effort:
    """What is asked of a cell; a cell measured with another effort is measured again."""

    trials: int = 200
    failure: float = 1e-3
    seconds: float = 30.0


def measure(cell: Cell, effort: Effort) -> dict[str, Any]:
    """Build, export and run one construction; a refusal is a result too."""
    row: dict[str, Any] = {"construction": cell.construction, "d": cell.d, "trials": 0, "reason": "", "families": {}}
    construction = lookup(cell.construction)
    claims = construction.claims
    row |= {"asked": asdict(effort), "op": construction.op}
    task = tasks.extremum(cell.d, "max") if row["op"] == "max" else tasks.median(cell.d)
    row |= {"claimed_depth": claims.depth, "claimed_exponent": claims.exponent}
    # on the grid only: what the theorems count; left free, compact turns deeper where it would be wide
    asked = {"failure": effort.failure, "depth": claims.depth, "inputs": "grid"}
    options = Options(cell.construction, **own(construction, asked))
    try:
        if construction.counted and (reason := construction.cannot(cell.d, task.ranks)):
            net, failure = trace(construction, task, options)
            return (
                row
                | _counts(accounting(net), failure.bound, cell.d, claims.power)
                | {"reason": f"counted, not run: {reason}"}
            )
        model = build(task, options)
    except UserError as error:
        return row | {"reason": str(error)}
    row |= _counts(model.accounting, model.failure_bound, cell.d, claims.power)
    return row | _run(Session(to_onnx(model)), task, effort)


def _counts(counted: Accounting, bound: float, d: int, power: int | None) -> dict[str, Any]:
    """The columns that need no run.

    An answer of [0, 1] is wrong by 1 at most, so the mean squared error is at most the failure bound, plus what rounding to
    the grid costs. A theorem reaches that error with weights 12 d^k/eps.
    """
    error = bound + GRID_ERROR
    return {
        "depth": counted.depth, "width": counted.width, "width_over_d": counted.width / d, "size": counted.size,
        "nnz": counted.nnz, "max_weight": counted.max_weight, "failure_bound": bound, "mse_bound": error,
        "theorem_weight": 12 * d**power / error if power else None,
    }  # fmt: skip


def _run(session: Session, task: tasks.Task, effort: Effort) -> dict[str, Any]:
    """Errors by family; uniform vectors get half of the time, the other families share the rest."""
    rng = np.random.default_rng(0)
    chunk = max(1, min(effort.trials, session.chunk, (1 << 14) // session.d))
    errors: dict[str, float] = {}
    row: dict[str, Any] = {"families": errors}
    for name in UNITS:
        usual = name == "uniform"
        count = effort.trials if usual else min(effort.trials, 40)
        stop = time.monotonic() + effort.seconds / 2 / (1 if usual else len(UNITS) - 1)
        found: list[float] = []
        while len(found) < count and not (found and time.monotonic() > stop):
            units = UNITS[name](rng, min(chunk, count - len(found)), session.d, 1 << BITS)
            x = (units / 2.0**BITS).astype(session.dtype)
            # numpy in the file's own dtype: where the mean of two values rounds, both round
            found += np.abs(session.run(x)[:, 0].astype(np.float64) - task.answers(x)[:, 0]).tolist()
        error = np.array(found)
        errors[name] = float(np.mean(error**2))
        if usual:
            row |= {"failure_rate": float(np.mean(error > 0)), "trials": len(found), "mse": errors[name]}
    return row


def atlas(
    ds: Sequence[int],
    out: Path,
    names: Sequence[str] | None = None,
    trials: int = 200,
    failure: float | None = None,
    seconds: float = 30.0,
) -> Path:
    """Measure what is missing, then write the table and the plots; interrupted runs lose nothing."""
    chosen = list(names or CONSTRUCTIONS)
    for name in chosen:
        lookup(name)
    if trials < 1:
        raise UserError(f"--trials must be 1 or more, not {trials}")
    if not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
        raise UserError(f"--seconds must be a number above 0, not {seconds}")
    if failure is not None and not set(chosen) & set(takers("failure")):
        raise UserError(f"none of these uses --failure: it is an option of {spoken(takers('failure'))}")
    effort = Effort(trials, 1e-3 if failure is None else checked("failure", failure), float(seconds))
    cells = out / "cells"
    with writable(cells):
        with tqdm([Cell(n, d) for d in sorted(ds) for n in chosen], desc="atlas", unit="cell", disable=None) as bar:
            for cell in bar:
                bar.set_postfix_str(f"{cell.construction} d = {cell.d}")
                if not _finished(cells / cell.file, effort):
                    row = measure(cell, effort)
                    replace_file(cells / cell.file, (json.dumps(row, indent=1) + "\n").encode())
        rows = [json.loads(path.read_text()) for path in sorted(cells.glob("*.json"))]
        rows.sort(key=lambda r: (list(CONSTRUCTIONS).index(r["construction"]), r["d"]))
        _exponents(rows)
        table = out / TABLE
        replace_file(table, _csv(rows).encode())
        replace_file(out / "atlas.md", _markdown(rows).encode())
    if can_plot():
        redraw(out)
    else:
        print(f"note: no pictures: {NO_MATPLOTLIB.format(out)}", file=sys.stderr)
    return table


def redraw(out: Path) -> None:
    """Draw the pictures of the table in DIR."""
    rows = read_table(out / TABLE)
    if not can_plot():
        raise UserError(NO_MATPLOTLIB.format(out))
    with writable(out):
        for name, picture in plots(rows).items():
            replace_file(out / name, picture)


def read_table(path: Path) -> list[dict[str, Any]]:
    """The rows of atlas.csv as they were measured: numbers as numbers, and what is empty as None."""
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file, strict=True)
            if missing := set(COLUMNS) - set(reader.fieldnames or ()):
                raise ValueError(f"no column {min(missing)}")
            rows = [_row(raw) for raw in reader]
    except FileNotFoundError:
        raise UserError(
            f"{path}: no such file; python -m exporter atlas --d 256 --out {path.parent} makes one"
        ) from None
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        raise UserError(f"{path} is not a table of the atlas: {error}") from None
    return rows


def _row(raw: dict[str, str]) -> dict[str, Any]:
    words = ("construction", "op", "reason")
    row: dict[str, Any] = {c: raw[c] if c in words else float(raw[c]) if raw[c] else None for c in COLUMNS}
    needed = ("d", "depth", "width", "size") if row["width"] else ("d",)
    if lacking := [c for c in (*needed, *(("mse_bound",) if row["width"] else ())) if row[c] is None]:
        raise ValueError(f"a row without {lacking[0]}")
    row |= {c: int(row[c]) for c in needed}
    row["families"] = {c.removeprefix(FAMILY): float(v) for c, v in raw.items() if c and c.startswith(FAMILY) and v}
    return row


def _finished(path: Path, effort: Effort) -> bool:
    return path.exists() and json.loads(path.read_text()).get("asked") == asdict(effort)


def _exponents(rows: Iterable[dict[str, Any]]) -> None:
    """The slope of log width over log d for every construction that has two d."""
    points: dict[str, list[tuple[float, float]]] = {}
    for row in (built := [r for r in rows if r.get("width")]):
        points.setdefault(row["construction"], []).append((np.log(row["d"]), np.log(row["width"])))
    for row in built:
        mine = np.array(points[row["construction"]])
        row["exponent"] = float(np.polyfit(mine[:, 0], mine[:, 1], 1)[0]) if len(mine) > 1 else None


def _csv(rows: Iterable[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, [*COLUMNS, *(FAMILY + name for name in UNITS)], extrasaction="ignore", restval="")
    writer.writeheader()
    writer.writerows(row | {FAMILY + name: error for name, error in row["families"].items()} for row in rows)
    return text.getvalue()


def _markdown(rows: Iterable[dict[str, Any]]) -> str:
    head = "| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS) + "\n"
    return head + "".join("| " + " | ".join(_text(row.get(c)) for c in COLUMNS) + " |\n" for row in rows)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "/")
