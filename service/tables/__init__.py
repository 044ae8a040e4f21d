"""Exact medians and quantiles of tables, equal to numpy's: `medians`, and `python -m service.tables` (docs/scale.md).

query     a question about a table
types     columns as unsigned integers in the same order, answers in the right type
inputs    files, tables and data frames, read piece by piece
groups    one answer per row, column or group, by sorting in memory or in duckdb
search    one column too large for memory, by counting
run       from a question to the answers
output    a folder of Parquet files
ray       the same on a Ray cluster, and an aggregation for Ray Data
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from service import require

require("service.tables", ("pyarrow", "duckdb"), "tables")

if TYPE_CHECKING:
    from service.tables.run import medians as medians

__all__ = ["medians"]


def __getattr__(name: str) -> Any:
    if name == "medians":
        from service.tables.run import medians  # noqa: PLC0415, --help needs none of it

        return medians
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
