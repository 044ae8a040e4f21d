"""The atlas: every construction at every d, built, exported, run and compared with what the theorems claim.

DIR/cells/NAME-dD.json   one finished measurement each; what exists is not measured again, so a run can be resumed
DIR/atlas.csv, atlas.md  the table
DIR/*.png                depth against width with the lower bounds, size against d, error by input family
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from exporter import task as tasks
from exporter.build import Options, build
from exporter.constructions import CONSTRUCTIONS
from exporter.constructions.planned import Request
from exporter.errors import UserError
from exporter.families import UNITS
from exporter.onnx_file import replace_file, to_onnx, writable
from exporter.verify import Session

# depth, exponent of the width and weights that the theorems claim; None where the claim has another form
CLAIMS: dict[str, tuple[int | None, float | None, str]] = {
    "depth3": (3, 2.0, "12 d^4/eps"),
    "depth5": (5, 5 / 3, "12 d^6/eps"),
    "linear46": (46, 1.0, "O(d^2/eps)"),
    "linear22": (22, 1.0, ""),
    "compact": (9, None, ""),
}
COLUMNS = (
    "construction", "op", "d", "claimed_depth", "depth", "width", "width_over_d", "size", "nnz", "max_weight",
    "claimed_weight", "failure_bound", "failure_rate", "trials", "mse", "mse_bound", "claimed_exponent",
    "exponent", "reason",
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    construction: str
    d: int

    @property
    def file(self) -> str:
        return f"{self.construction}-d{self.d}.json"


def measure(cell: Cell, trials: int, failure: float, scratch: Path) -> dict[str, Any]:
    """Build, export and run one construction; a refusal is a result too."""
    row: dict[str, Any] = {"construction": cell.construction, "d": cell.d, "trials": 0, "reason": "", "families": {}}
    row["op"] = "max" if "max" in cell.construction else "median"
    task = tasks.extremum(cell.d, "max") if row["op"] == "max" else tasks.median(cell.d)
    depth, exponent, weight = CLAIMS.get(cell.construction, (None, None, ""))
    row |= {"claimed_depth": depth, "claimed_exponent": exponent, "claimed_weight": weight}
    try:
        model = build(task, Options(cell.construction, ask=Request(failure=failure)))
    except UserError as error:
        return row | {"reason": str(error)}
    counted = model.accounting
    row |= {
        "depth": counted.depth, "width": counted.width, "width_over_d": counted.width / cell.d, "size": counted.size,
        "nnz": counted.nnz, "max_weight": counted.max_weight, "failure_bound": model.failure_bound,
        "mse_bound": model.failure_bound + 2.0**-48,
    }  # fmt: skip
    path = scratch / f"{cell.construction}-d{cell.d}.onnx"
    path.write_bytes(to_onnx(model).SerializeToString())
    try:
        row |= _run(path, task, trials, cell.d)
    finally:
        path.unlink()
    return row


def _run(path: Path, task: tasks.Task, trials: int, d: int) -> dict[str, Any]:
    session = Session(path)
    rng = np.random.default_rng(0)
    chunk = max(1, min(trials, (1 << 14) // d))
    errors: dict[str, float] = {}
    wrong = done = 0
    squares = 0.0
    for name in UNITS:
        count = trials if name == "uniform" else min(trials, 40)
        worst: list[float] = []
        for start in range(0, count, chunk):
            x = UNITS[name](rng, min(chunk, count - start), d, 1 << 24) / 2.0**24
            error = np.abs(session.run(x.astype(session.dtype))[:, 0].astype(np.float64) - task.answers(x)[:, 0])
            worst += error.tolist()
            if name == "uniform":
                wrong, done = wrong + int(np.sum(error > 2.0**-26)), done + len(error)
                squares += float(np.sum(error**2))
        errors[name] = float(np.mean(np.square(worst)))
    return {"failure_rate": wrong / done, "trials": done, "mse": squares / done, "families": errors}


def atlas(
    ds: Sequence[int], out: Path, names: Sequence[str] | None = None, trials: int = 200, failure: float = 1e-3
) -> Path:
    """Measure what is missing, then write the table and the plots; interrupted runs lose nothing."""
    chosen = list(names or CONSTRUCTIONS)
    for name in chosen:
        if name not in CONSTRUCTIONS:
            raise UserError(f"unknown construction {name!r}: choose from {', '.join(CONSTRUCTIONS)}")
    cells = out / "cells"
    with writable(cells):
        for cell in tqdm([Cell(n, d) for d in sorted(ds) for n in chosen], desc="atlas", unit="cell", disable=None):
            if not (cells / cell.file).exists():
                row = measure(cell, trials, failure, cells)
                replace_file(cells / cell.file, (json.dumps(row, indent=1) + "\n").encode())
        rows = [json.loads(path.read_text()) for path in sorted(cells.glob("*.json"))]
        rows.sort(key=lambda r: (list(CONSTRUCTIONS).index(r["construction"]), r["d"]))
        _exponents(rows)
        table = out / "atlas.csv"
        replace_file(table, _csv(rows).encode())
        replace_file(out / "atlas.md", _markdown(rows).encode())
        plots(rows, out)
    return table


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
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", restval="")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _markdown(rows: Iterable[dict[str, Any]]) -> str:
    head = "| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS) + "\n"
    return head + "".join("| " + " | ".join(_text(row.get(c)) for c in COLUMNS) + " |\n" for row in rows)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "/")


def plots(rows: Sequence[dict[str, Any]], out: Path) -> None:
    """Three pictures; without matplotlib there are none, and the table says the same."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 - the plots are optional

        mpl.use("Agg")
        from matplotlib import pyplot as plt  # noqa: PLC0415
    except ImportError:
        return
    built = [r for r in rows if r.get("width")]
    if not built:
        return
    names = list(dict.fromkeys(r["construction"] for r in built))
    figure, axes = plt.subplots(figsize=(8, 5))
    for name in names:
        mine = [r for r in built if r["construction"] == name]
        axes.loglog([r["width"] / r["d"] for r in mine], [r["depth"] for r in mine], "o-", label=name)
    d = max(r["d"] for r in built)
    axes.axvline(1, color="black", linewidth=1, linestyle=":", label="width d (all_depth_lower_width_bounds)")
    axes.plot([d / 20], [3], "kx", label=f"d^2/20 at depth 3, d = {d} (cor:depth3_lower_bounds)")
    axes.set(xlabel="width / d", ylabel="depth", title="depth against width")
    _finish(figure, axes, out / "depth-width.png")
    figure, axes = plt.subplots(figsize=(8, 5))
    for name in names:
        mine = [r for r in built if r["construction"] == name]
        axes.loglog([r["d"] for r in mine], [r["size"] for r in mine], "o-", label=name)
    axes.set(xlabel="d", ylabel="neurons", title="size against d")
    _finish(figure, axes, out / "size.png")
    figure, axes = plt.subplots(figsize=(10, 5))
    largest = {name: max((r for r in built if r["construction"] == name), key=lambda r: r["d"]) for name in names}
    for k, (name, row) in enumerate(largest.items()):
        families = list(row["families"])
        heights = [max(row["families"][f], 1e-18) for f in families]
        axes.bar(np.arange(len(families)) + 0.8 * k / max(1, len(names)), heights, 0.8 / max(1, len(names)), label=name)
        axes.set_xticks(np.arange(len(families)), families, rotation=30)
    axes.set(yscale="log", ylabel="mean squared error", title="error by input family, largest d")
    _finish(figure, axes, out / "error.png")


def _finish(figure: Any, axes: Any, path: Path) -> None:
    axes.legend(fontsize=7)
    figure.tight_layout()
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    replace_file(path, picture.getvalue())
    figure.clear()
