"""Medians and quantiles of tables of many shapes against duckdb, polars and pandas on the same files, in one run.

    python tests/benchmarks/bench_tables.py [--case groups wide ...] [--share 0.1] [--data DIR]

Needs duckdb, pandas and polars (`make setup` has them). Every contestant is a process of its own that reads the
Parquet files and writes its answer as one, with two threads. `--share` shrinks every case. Exit status 1 where an answer of
ours differs from numpy's.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measuring import line, ours, peer

THREADS = 2
DUCKDB = (
    "import duckdb; c = duckdb.connect(); c.execute('set threads = {threads}'); c.execute(\"copy ({sql}) to '{out}'\")"
)
POLARS = """
import polars as pl
t = pl.scan_parquet("{data}/*.parquet")
({expression}).collect().write_parquet("{out}")
"""
PANDAS = """
import pandas as pd
t = pd.read_parquet("{data}")
t = {expression}
t.columns = map(str, t.columns)
t.to_parquet("{out}")
"""


@dataclass(frozen=True)
class Case:
    """What is written, what is asked, and how the peers are asked for the same."""

    title: str
    write: Callable[[Path, float], None]
    asked: tuple[str, ...]
    sql: str
    polars: str
    pandas: str


def keyed(rows: int, groups: int, dtype: Any = np.float32) -> Callable[[Path, float], None]:
    def write(folder: Path, share: float) -> None:
        rng, n = np.random.default_rng(0), int(rows * share)
        table = {"k": rng.integers(0, max(1, int(groups * share)), n), "x": rng.standard_normal(n, dtype)}
        pq.write_table(pa.table(table), folder / "0.parquet", row_group_size=1 << 20)

    return write


def wide(rows: int, columns: int) -> Callable[[Path, float], None]:
    def write(folder: Path, share: float) -> None:
        rng, n = np.random.default_rng(0), max(1, int(rows * share))
        pq.write_table(pa.table({f"c{i}": rng.normal(size=n) for i in range(columns)}), folder / "0.parquet")

    return write


def files(count: int, rows: int) -> Callable[[Path, float], None]:
    def write(folder: Path, share: float) -> None:
        rng = np.random.default_rng(0)
        for i in range(max(1, int(count * share))):
            pq.write_table(pa.table({"x": rng.normal(size=rows)}), folder / f"{i:05}.parquet")

    return write


def lists(rows: int, length: int) -> Callable[[Path, float], None]:
    def write(folder: Path, share: float) -> None:
        n = int(rows * share)
        x = np.random.default_rng(0).standard_normal(n * length, np.float32)
        pq.write_table(
            pa.table({"v": pa.FixedSizeListArray.from_arrays(x, length)}), folder / "0.parquet", row_group_size=1 << 18
        )

    return write


def several(column: str, quantiles: list[float]) -> str:
    return ", ".join(f"{column}.quantile({q}, 'linear').name.suffix('_{q}')" for q in quantiles)


FIVE, SEVEN = [0.05, 0.25, 0.5, 0.75, 0.95], [0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99]
BY_K = ("--column", "x", "--by", "k")
GROUPS = Case(
    "9 million rows of float32, groups of 3000, median",
    keyed(9_000_000, 3000),
    BY_K,
    "select k, median(x) from '{data}/*.parquet' group by k",
    "t.group_by('k').agg(pl.col('x').median())",
    "t.groupby('k').median().reset_index()",
)
WIDE = Case(
    "200,000 x 500 float64, median",
    wide(200_000, 500),
    (),
    "select median(columns(*)) from '{data}/*.parquet'",
    "t.select(pl.all().median())",
    "t.median().to_frame().T",
)
CASES = {
    "groups": GROUPS,
    "groups5": replace(
        GROUPS,
        title="the same, 5 quantiles",
        asked=(*BY_K, "--quantile", *map(str, FIVE)),
        sql=f"select k, quantile_cont(x, {FIVE}) from '{{data}}/*.parquet' group by k",
        polars=f"t.group_by('k').agg({several('pl.col(chr(120))', FIVE)})",
        pandas=f"t.groupby('k').x.quantile({FIVE}).unstack().reset_index()",
    ),
    "doubles": replace(GROUPS, title="the same in float64, median", write=keyed(9_000_000, 3000, np.float64)),
    "many": replace(GROUPS, title="10^7 rows, 3 x 10^6 groups, median", write=keyed(10_000_000, 3_000_000)),
    "wide": WIDE,
    "wide7": Case(
        "1000 x 500 float64, 7 quantiles",
        wide(1000, 500),
        ("--quantile", *map(str, SEVEN)),
        f"select quantile_cont(columns(*), {SEVEN}) from '{{data}}/*.parquet'",
        "",
        f"t.quantile({SEVEN})",
    ),
    "files": replace(
        WIDE,
        title="2000 files of 200 rows, median",
        write=files(2000, 200),
        sql="select median(x) from '{data}/*.parquet'",
    ),
    "rows": Case(
        "10^6 rows of 25 float32, median of each",
        lists(1_000_000, 25),
        ("--column", "v"),
        "select list_median(v::float[]) from '{data}/*.parquet'",
        "t.select(pl.col('v').arr.median())",
        "pd.DataFrame(__import__('numpy').stack(t.v)).median(axis=1).to_frame()",
    ),
}


def right(name: str, data: Path, out: Path) -> bool:
    """Whether the answers are numpy's."""
    table, found = pq.read_table(data), pq.read_table(out)
    quantiles = {"groups5": FIVE, "wide7": SEVEN}.get(name)
    if name == "rows":
        x = table["v"].combine_chunks().flatten().to_numpy().reshape(-1, 25)
        return bool((found["median"].to_numpy() == np.median(x, axis=1)).all())
    if "k" not in table.column_names:
        answers = [np.median(c) if quantiles is None else np.quantile(c, quantiles) for c in table.columns]
        own = [
            c.to_numpy()[0] for c, n in zip(found.columns, found.column_names, strict=True) if not n.endswith("count")
        ]
        return bool((np.array(own) == np.concatenate([np.atleast_1d(a) for a in answers])).all())
    k, x = table["k"].to_numpy(), table["x"].to_numpy()
    order = np.lexsort((x, k))
    some = np.random.default_rng(1).choice(found.num_rows, min(2000, found.num_rows), replace=False)
    keys, edges = k[order], found["k"].to_numpy()
    first, last = np.searchsorted(keys, edges[some]), np.searchsorted(keys, edges[some], "right")
    columns = [found[name].to_numpy() for name in found.column_names[2:]]
    for i, a, b in zip(some, first, last, strict=True):
        own = x[order[a:b]]
        want = [np.median(own)] if quantiles is None else np.quantile(own, quantiles)
        if [c[i] for c in columns] != list(want):
            return False
    return found.num_rows == len(np.unique(k))


def contest(name: str, folder: Path, share: float) -> bool:
    case, data, out = CASES[name], folder / "data", folder / "out.parquet"
    data.mkdir()
    case.write(data, share)
    given: dict[str, Any] = {"data": data, "out": out, "threads": THREADS}
    peers = {
        "duckdb": DUCKDB.replace("{sql}", case.sql),
        "polars": POLARS.replace("{expression}", case.polars),
        "pandas": PANDAS.replace("{expression}", case.pandas),
    }
    print(case.title)
    ours(
        "--input", data, *case.asked, "--workers", THREADS, "--out", folder / "warm"
    )  # files and networks are in the cache
    mine = ours("--input", data, *case.asked, "--workers", THREADS, "--out", folder / "ours")
    line("ours", mine)
    if not case.polars:  # takes minutes
        del peers["polars"]
    for title, code in peers.items():
        line(title, peer(code.format(**given)), mine)
    good = right(name, data, folder / "ours")
    print(f"    ours {'equals' if good else 'DIFFERS FROM'} numpy bit for bit", flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--data", type=Path, help="where to write the data [a temporary folder]")
    args = parser.parse_args()
    os.environ["POLARS_MAX_THREADS"] = str(THREADS)
    good = True
    for name in args.case:
        folder = Path(tempfile.mkdtemp(dir=args.data))
        try:
            good &= contest(name, folder, args.share)
        finally:
            shutil.rmtree(folder)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
