"""The table that `--construction fastest` and the service choose by: what `python -m exporter tune` measured.

    {"format": 1, "measured": {...},
     "rows": [{"d": 9, "batch": 64, "topk_us": 21.3,
               "files": {"median-batcher-d9-minmax": {"construction": "batcher", "profile": "minmax", "tune": "throughput",
                                                      "times_topk": 0.8}, ...}}, ...]}

One row for a length and a batch: microseconds of one run of ONNX TopK + mean, and the time of every exact file as a multiple
of it. DIR/fastest.json beside the models is the user's; without one the table of the package is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite, log
from pathlib import Path
from typing import Any

from exporter.errors import UserError

SPEED_TABLE = "fastest.json"
SHIPPED = Path(__file__).parents[1] / SPEED_TABLE
FORMAT = 1
LARGEST = 1 << 24  # bytes


@dataclass(frozen=True)
class Timed:
    """One exact file: how it is made, and its time as a multiple of TopK + mean."""

    construction: str
    profile: str
    tune: str
    times_topk: float


@dataclass(frozen=True)
class SpeedRow:
    """What was measured at one length and batch, by the names of the files without their suffix."""

    d: int
    batch: int
    topk_us: float
    files: Mapping[str, Timed]


@dataclass(frozen=True)
class SpeedTable:
    rows: tuple[SpeedRow, ...]

    def ranking(self, d: int, batch: int) -> list[Timed]:
        """The files at the nearest length, and there at the nearest batch, the fastest first."""

        def distance(row: SpeedRow) -> tuple[float, float, int, int]:
            return abs(log(row.d / d)), abs(log(row.batch / batch)), row.d, row.batch

        nearest = min(self.rows, key=distance)
        return sorted(nearest.files.values(), key=lambda each: each.times_topk)

    def seconds(self, name: str) -> float | None:
        """The time of a file, by name, for a single vector or the smallest batch that was measured."""
        found = [row for row in self.rows if name in row.files]
        if not found:
            return None
        row = min(found, key=lambda row: row.batch)
        return row.topk_us * row.files[name].times_topk / row.batch / 1e6

    def as_json(self, measured: Mapping[str, Any]) -> bytes:
        rows = [asdict(row) for row in self.rows]
        return (json.dumps({"format": FORMAT, "measured": measured, "rows": rows}, indent=1) + "\n").encode()


def read_speed_table(path: Path) -> SpeedTable:
    """The table in a file, or UserError with what is wrong with it and what to do about it."""
    try:
        with path.open("rb") as file:
            return parsed(file.read(LARGEST + 1))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        cause = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {str(error)[:100]}"
        remedy = f"delete it, or measure it again: python -m exporter tune --out {path.parent}"
        raise UserError(f"{path} cannot be read as a table of speeds ({cause}): {remedy}") from None


def parsed(data: bytes) -> SpeedTable:
    if len(data) > LARGEST:
        raise ValueError(f"it has more than {LARGEST} bytes")
    about = json.loads(data)
    if about["format"] != FORMAT:
        raise ValueError(f"its format is {about['format']!r}, and {FORMAT} is known here")
    rows = tuple(_row(row) for row in about["rows"])
    if not rows:
        raise ValueError("it has no rows")
    return SpeedTable(rows)


def _row(row: Mapping[str, Any]) -> SpeedRow:
    files = {str(name): Timed(**each) for name, each in row["files"].items()}
    numbers = [row["topk_us"], *(each.times_topk for each in files.values())]
    whole = all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in (row["d"], row["batch"]))
    words = all(isinstance(w, str) for each in files.values() for w in (each.construction, each.profile, each.tune))
    timed = all(isinstance(n, int | float) and isfinite(n) and n > 0 for n in numbers)
    if not (files and whole and words and timed):
        raise ValueError(f"its row of d = {str(row['d'])[:20]}, batch {str(row['batch'])[:20]} has no times")
    return SpeedRow(row["d"], row["batch"], row["topk_us"], files)
