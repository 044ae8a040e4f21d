"""atlas.md: the table of the atlas as a page, one short table for each question. atlas.csv has every column."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from exporter.theory.atlas_plots import Row

HEAD = """# Atlas

After this page you know the width, the failure and the error of every construction at every d.

`python -m exporter theory atlas` built, counted and ran the networks; `--help` has the options. [atlas.csv](atlas.csv) has
every column, with sizes, weights and the error on each family of inputs.
"""
QUESTIONS = {"median": "Medians", "max": "Maxima"}


def page(rows: Sequence[Row]) -> str:
    """The page of a table whose rows are in the order of the catalogue."""
    parts = [HEAD]
    for op, title in QUESTIONS.items():
        mine = [row for row in rows if row["op"] == op]
        built = [row for row in mine if row.get("width")]
        narrow = [row for row in built if row["mse_bound"] < row["failure_bound"] / 2]  # otherwise the bounds are close
        parts += [
            _table(f"{title}: width / d", built, "width_over_d", _about),
            _table(f"{title}: proven mean squared error", narrow, "mse_bound", _error),
        ]
        if notes := _notes(mine):
            parts.append(f"{title}, without a network or not run:\n\n{notes}")
    return "\n".join(part for part in parts if part)


def _table(title: str, rows: Sequence[Row], column: str, more: Callable[[Sequence[Row]], dict[str, str]]) -> str:
    """A table with a row for each construction, a column for each d, and the columns that `more` returns."""
    if not rows:
        return ""
    lengths = sorted({row["d"] for row in rows})
    head = [title, *map(str, lengths), *more(rows)]
    lines = [_line(head), "|---" * len(head) + "|"]
    for name, mine in _grouped(rows).items():
        at = {row["d"]: row[column] for row in mine}
        lines.append(_line([f"`{name}`", *(_text(at.get(d)) for d in lengths), *more(mine).values()]))
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _grouped(rows: Iterable[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["construction"], []).append(row)
    return groups


def _about(rows: Sequence[Row]) -> dict[str, str]:
    low, high = min(row["depth"] for row in rows), max(row["depth"] for row in rows)
    exponent, claimed = _text(rows[0].get("exponent")), rows[0].get("claimed_exponent")
    wrong, trials = sum(round((r.get("failure_rate") or 0) * r["trials"]) for r in rows), sum(r["trials"] for r in rows)
    return {
        "depth": f"{low}" if low == high else f"{low} to {high}",
        "exponent of the width": exponent if claimed is None else f"{exponent} (theorem: {_text(claimed)})",
        "largest bound of the failure": _text(max(row["failure_bound"] for row in rows)),
        "wrong": f"{wrong} of {trials}",
    }


def _error(rows: Sequence[Row]) -> dict[str, str]:
    return {"largest measured": _text(max((row["mse"] for row in rows if row.get("mse") is not None), default=None))}


def _notes(rows: Sequence[Row]) -> str:
    """One line for each reason. Reasons that differ only in their figures share a line."""
    lines = []
    for name, group in _grouped(row for row in rows if row.get("reason")).items():
        kinds: dict[str, list[Row]] = {}
        for row in group:
            kinds.setdefault("".join(c for c in row["reason"] if c.isalpha() and c != "e"), []).append(row)
        lines += [
            f"- `{name}`, d = {', '.join(str(row['d']) for row in alike)}: {alike[0]['reason']}\n"
            for alike in kinds.values()
        ]
    return "".join(lines)


def _text(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"
