"""The user's own numbers, for the client: a .npy matrix, or a CSV file of vectors or of named columns.

A line of a CSV file is a vector, and lines may differ in length; unless the first line has names, or every line is a single
number: then a column is.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np

from service.statistics.scaling import Floats

MISSING = frozenset({"", "na", "n/a", "nan", "null"})


def read_numbers(
    path: Path, by: str | None = None, columns: list[str] | None = None
) -> tuple[list[str] | None, list[Floats]]:
    """Names, if they have any, and vectors; ValueError or OSError says what is wrong."""
    if path.suffix == ".npy":
        with path.open("rb") as stream:
            array = np.lib.format.read_array(stream, allow_pickle=False)
        if array.ndim not in (1, 2) or array.dtype.kind not in "fiu":
            raise ValueError(f"one vector or a matrix of numbers is expected, not {array.dtype} {array.shape}")
        matrix = np.atleast_2d(array if array.dtype == np.float32 else array.astype(np.float64))
        if columns:
            raise ValueError("the columns of a .npy file have no names")
        return None, list(matrix.T if by == "columns" else matrix)
    lines = [line for line in path.read_text("utf-8-sig").splitlines() if line.strip()]
    if not lines:
        return None, []
    comma = "," in lines[0]
    cells = list(csv.reader(lines)) if comma else [re.split(r"[;\s]+", line.strip(" ;\t")) for line in lines]
    if not all(_is_number(cell) for cell in cells[0]):
        return _columns(cells[0], cells[1:], by, columns)
    if columns:
        raise ValueError("the first line has no names of columns")
    if by == "columns" or (by is None and len(lines) > 1 and all(len(row) == 1 for row in cells)):
        return None, [_column(cells, number) for number in range(len(cells[0]))]
    trimmed = [row[:-1] if comma and len(row) > 1 and not row[-1].strip() else row for row in cells]
    return None, [
        np.array([_number(cell) for part in row for cell in re.split(r"[;\s]+", part.strip())]) for row in trimmed
    ]


def _columns(
    names: list[str], rows: list[list[str]], by: str | None, chosen: list[str] | None
) -> tuple[list[str] | None, list[Any]]:
    names = [name.strip() for name in names]
    wanted = chosen or names
    if missing := [name for name in wanted if name not in names]:
        raise ValueError(f"there is no column {missing[0]!r}; there are {', '.join(names)}")
    if not rows:
        raise ValueError("there are names of columns, and no numbers")
    vectors = [_column(rows, names.index(name)) for name in wanted]
    return (None, list(np.array(vectors).T)) if by == "rows" else (wanted, vectors)


def _column(rows: list[list[str]], number: int) -> Floats:
    if short := next((at for at, row in enumerate(rows, 1) if len(row) <= number), None):
        raise ValueError(f"row {short} has {len(rows[short - 1])} cells, and column {number + 1} is wanted")
    return np.array([_number(row[number]) for row in rows])


def _is_number(cell: str) -> bool:
    try:
        return all(_number(part) is not None for part in re.split(r"[;\s]+", cell.strip()))
    except ValueError:
        return False


def _number(cell: str) -> float:
    return float("nan") if cell.strip().lower() in MISSING else float(cell)
