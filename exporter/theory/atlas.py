"""The atlas: every construction at every d is built, exported, run and compared with the claims of the theorems.

DIR/atlas.csv            the table, written after every row: an interrupted run keeps its rows
DIR/atlas.md             the table as a page (exporter/theory/atlas_page.py)
DIR/*.png                depth against width with the lower bounds, width and size against d, error by input family;
                         drawn from the table, so `--plots-only` can draw them again

A cell is one construction at one d. Requested cells are measured. Rows of other cells stay in the table.

A network whose tensors do not fit into memory is counted but not run. A run ends after `seconds`. The table states the
number of vectors of each run.
"""

from __future__ import annotations

import csv
import io
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from exporter.analysis.accounting import Accounting, accounting
from exporter.build import build, to_onnx
from exporter.constructions import CONSTRUCTIONS, lookup, own, takers
from exporter.errors import UserError, install, spoken
from exporter.formats.manifest import replace_file, writable
from exporter.formats.session import Session
from exporter.formula import trace
from exporter.options import checked
from exporter.planning.schedule import Failure
from exporter.problem import task as tasks
from exporter.problem.families import UNITS
from exporter.problem.spec import Spec
from exporter.progress import Progress
from exporter.theory.atlas_page import page
from exporter.theory.atlas_plots import Row, can_plot, exponent, plots

BITS = 24
GRID_ERROR = 2.0 ** -(2 * BITS)
COLUMNS = (
    "construction", "op", "d", "claimed_depth", "depth", "width", "width_over_d", "claimed_exponent", "exponent", "size",
    "nnz", "max_weight", "theorem_weight", "failure_bound", "failure_rate", "trials", "mse", "mse_bound", "reason",
)  # fmt: skip
FAMILY = "mse_on_"  # more columns of the CSV: the mean squared error on each family
TABLE = "atlas.csv"
NO_MATPLOTLIB = (
    f"matplotlib is not installed: {install('plot')}; then python -m exporter theory atlas --plots-only --out {{}} "
    "draws them"
)


def measure(name: str, d: int, trials: int, failure: float, seconds: float) -> Row:
    """The row of one cell: the construction is built, exported and run. If it cannot be built, the row states the reason."""
    construction = lookup(name)
    claims = construction.claims
    task = tasks.extremum(d, "max") if construction.op == "max" else tasks.median(d)
    row: Row = {"construction": name, "d": d, "trials": 0, "reason": "", "families": {}, "op": construction.op}
    row |= {"claimed_depth": claims.depth, "claimed_exponent": claims.exponent}
    # inputs="grid", as in the theorems; without a given depth, compact becomes deeper instead of wider
    asked = {"failure": failure, "depth": claims.depth, "inputs": "grid"}
    spec = Spec(task, name, **own(construction, asked))
    try:
        if construction.counted and (reason := construction.cannot(d, task.ranks)):
            net, bound = trace(spec)
            return row | _counts(accounting(net), bound, d, claims.power) | {"reason": f"counted, not run: {reason}"}
        model = build(spec)
    except UserError as error:
        return row | {"reason": str(error)}
    row |= _counts(model.accounting, model.failure, d, claims.power)
    return row | _run(Session(to_onnx(model)), task, trials, seconds)


def _counts(counted: Accounting, failure: Failure, d: int, power: int | None) -> Row:
    """The columns that need no run.

    The mean squared error is the proven error on grid data plus the cost of rounding to the grid. A theorem reaches this
    error with weights 12 d^k/eps.
    """
    error = failure.mse + GRID_ERROR
    return {
        "depth": counted.depth, "width": counted.width, "width_over_d": counted.width / d, "size": counted.size,
        "nnz": counted.nnz, "max_weight": counted.max_weight, "failure_bound": failure.bound, "mse_bound": error,
        "theorem_weight": 12 * d**power / error if power else None,
    }  # fmt: skip


def _run(session: Session, task: tasks.Task, trials: int, seconds: float) -> Row:
    """The errors by family. Uniform vectors get half of the time, and the other families share the rest."""
    rng = np.random.default_rng(0)
    chunk = max(1, min(trials, session.chunk, (1 << 14) // session.d))
    row: Row = {"families": {}}
    for name, draw in UNITS.items():
        usual = name == "uniform"
        count = trials if usual else min(trials, 40)
        stop = time.monotonic() + seconds / 2 / (1 if usual else len(UNITS) - 1)
        found: list[float] = []
        while len(found) < count and not (found and time.monotonic() > stop):
            units = draw(rng, min(chunk, count - len(found)), session.d, 1 << BITS)
            x = (units / 2.0**BITS).astype(session.dtype)
            # numpy computes in the file's dtype, so both round the mean of two values in the same way
            found += np.abs(session.run(x)[:, 0].astype(np.float64) - task.answers(x)[:, 0]).tolist()
        error = np.array(found)
        row["families"][name] = mse = float(np.mean(error**2))
        if usual:
            row |= {"failure_rate": float(np.mean(error > 0)), "trials": len(found), "mse": mse}
    return row


def atlas(
    ds: Sequence[int],
    out: Path,
    names: Sequence[str] | None = None,
    trials: int = 200,
    failure: float | None = None,
    seconds: float = 30.0,
) -> Path:
    """Measure the cells, then write the table, the page and the pictures."""
    chosen = list(names or CONSTRUCTIONS)
    for name in chosen:
        lookup(name)
    if trials < 1:
        raise UserError(f"--trials must be 1 or more, not {trials}")
    if not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
        raise UserError(f"--seconds must be a number above 0, not {seconds}")
    if failure is not None and not set(chosen) & set(takers("failure")):
        raise UserError(f"none of these uses --failure: it is an option of {spoken(takers('failure'))}")
    bound = 1e-3 if failure is None else checked("failure", failure)
    table = out / TABLE
    rows = {(r["construction"], r["d"]): r for r in (read_table(table) if table.exists() else [])}
    cells = [(name, d) for d in sorted(ds) for name in chosen]
    with writable(out):
        for name, d in (bar := Progress(cells, "atlas", "cell")):
            bar.stage(f"{name} d = {d}")
            rows[name, d] = measure(name, d, trials, bound, float(seconds))
            _write(out, rows.values())
    if can_plot():
        redraw(out)
    else:
        print(f"note: no pictures: {NO_MATPLOTLIB.format(out)}", file=sys.stderr)
    return table


def _write(out: Path, rows: Iterable[Row]) -> None:
    """Write the table in the order of the catalogue, without constructions that are gone, and its page."""
    order = list(CONSTRUCTIONS)
    known = [r for r in rows if r["construction"] in order]
    known.sort(key=lambda r: (order.index(r["construction"]), r["d"]))
    for name in order:
        built = [r for r in known if r["construction"] == name and r.get("width")]
        for row in built:
            row["exponent"] = exponent(built, "width")
    replace_file(out / TABLE, _csv(known).encode())
    replace_file(out / "atlas.md", page(known).encode())


def redraw(out: Path) -> None:
    """Draw the pictures of the table in DIR."""
    rows = read_table(out / TABLE)
    if not can_plot():
        raise UserError(NO_MATPLOTLIB.format(out))
    with writable(out):
        for name, picture in plots(rows).items():
            replace_file(out / name, picture)


def read_table(path: Path) -> list[Row]:
    """The rows of atlas.csv: numbers as numbers, and an empty field as None."""
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file, strict=True)
            if missing := set(COLUMNS) - set(reader.fieldnames or ()):
                raise ValueError(f"no column {min(missing)}")
            rows = [_row(raw) for raw in reader]
    except FileNotFoundError:
        raise UserError(
            f"{path}: no such file; python -m exporter theory atlas --d 256 --out {path.parent} makes one"
        ) from None
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        raise UserError(f"{path} is not a table of the atlas: {error}") from None
    return rows


def _row(raw: dict[str, str]) -> Row:
    words = ("construction", "op", "reason")
    row: Row = {c: text if c in words else _number(text) for c in COLUMNS for text in [raw.get(c) or ""]}
    needed = ("d", "trials", *(("depth", "width", "size", "mse_bound") if row["width"] else ()))
    if lacking := [c for c in needed if row[c] is None]:
        raise ValueError(f"a row without {lacking[0]}")
    row["families"] = {c.removeprefix(FAMILY): float(v) for c, v in raw.items() if c and c.startswith(FAMILY) and v}
    return row


def _number(text: str) -> float | None:
    return int(text) if text.isdigit() else float(text) if text else None


def _csv(rows: Iterable[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, [*COLUMNS, *(FAMILY + name for name in UNITS)], extrasaction="ignore", restval="")
    writer.writeheader()
    writer.writerows(row | {FAMILY + name: error for name, error in row["families"].items()} for row in rows)
    return text.getvalue()
