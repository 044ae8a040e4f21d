"""Medians of many rows and of many groups against numpy, pandas, duckdb and polars on the same files, in one run.

    python tests/benchmarks/bench_tables.py [--rows 10000000] [--groups 1000000] [--data DIR]

Needs duckdb, pandas, polars and psutil (`make scale` has them). Rows are 25 float32 each; groups have 1 to 2000 entries,
most of them few. Every contestant is a process of its own that reads the Parquet files and writes its answer as one, with as
many threads as ours has processes. Exit status 1 where an answer differs from that of numpy.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measuring import line, ours, peer

PART = 1 << 20  # rows of a file
WIDTH = 25

ROWS = {
    "numpy median(axis=1)": """
import numpy as np, pyarrow as pa, pyarrow.parquet as pq, glob
found = []
for path in sorted(glob.glob("{data}/*.parquet")):
    x = pq.read_table(path)["v"].combine_chunks().flatten().to_numpy().reshape(-1, {width})
    found.append(np.median(x, axis=1))
pq.write_table(pa.table({{"median": np.concatenate(found)}}), "{out}")
""",
    "pandas DataFrame.median(axis=1)": """
import numpy as np, pandas as pd, pyarrow as pa, pyarrow.parquet as pq, glob
found = []
for path in sorted(glob.glob("{data}/*.parquet")):
    x = pq.read_table(path)["v"].combine_chunks().flatten().to_numpy().reshape(-1, {width})
    found.append(pd.DataFrame(x).median(axis=1).to_numpy())
pq.write_table(pa.table({{"median": np.concatenate(found)}}), "{out}")
""",
    "duckdb list_median(v)": """
import duckdb
c = duckdb.connect(); c.execute("set threads = {workers}")
c.execute("copy (select list_median(v::float[]) as median from '{data}/*.parquet') to '{out}' (format parquet)")
""",
    "polars list.median()": """
import polars as pl
pl.scan_parquet("{data}/*.parquet").select(pl.col("v").arr.to_list().list.median().alias("median")).sink_parquet("{out}")
""",
}
GROUPS = {
    "pandas groupby.median": """
import pandas as pd
pd.read_parquet("{data}").groupby("k")["x"].median().rename("median").reset_index().to_parquet("{out}")
""",
    "duckdb median(x) group by k": """
import duckdb
c = duckdb.connect(); c.execute("set threads = {workers}")
c.execute("copy (select k, median(x) as median from '{data}/*.parquet' group by k) to '{out}' (format parquet)")
""",
    "polars group_by.median": """
import polars as pl
pl.scan_parquet("{data}/*.parquet").group_by("k").agg(pl.col("x").median().alias("median")).sink_parquet("{out}")
""",
}


def write_rows(folder: Path, rows: int) -> None:
    for number, start in enumerate(range(0, rows, PART)):
        n = min(PART, rows - start)
        x = np.random.default_rng(number).standard_normal(n * WIDTH, np.float32)
        pq.write_table(pa.table({"v": pa.FixedSizeListArray.from_arrays(x, WIDTH)}), folder / f"{number:04}.parquet")


def write_groups(folder: Path, groups: int) -> int:
    """Sizes like 1 / size: as many entries in groups of tens as of hundreds; rows in no order."""
    rng = np.random.default_rng(1)
    sizes = np.exp(rng.random(groups) * np.log(2000)).astype(np.int64)
    sizes = np.where(rng.random(groups) < 0.75, 1 + sizes % 7, sizes)
    keys = rng.permutation(np.repeat(np.arange(groups), sizes))
    for number, start in enumerate(range(0, len(keys), 8 * PART)):
        own = keys[start : start + 8 * PART]
        x = rng.standard_normal(len(own), np.float32)
        pq.write_table(pa.table({"k": own, "x": x}), folder / f"{number:04}.parquet", row_group_size=PART)
    return len(keys)


def medians(path: Path, keyed: bool) -> Any:
    """The answers in the order of the keys, or of the rows."""
    table = pq.read_table(path)
    table = table.sort_by("k") if keyed else table
    return table["median"].to_numpy()


def by_numpy(folder: Path) -> Any:
    """The oracle: sorted by key and value, the middle entries of each group."""
    table = pq.read_table(folder)
    k, x = table["k"].to_numpy(), table["x"].to_numpy()
    order = np.lexsort((x, k))
    x, sizes = x[order], np.bincount(k)
    starts = np.cumsum(sizes) - sizes
    low, high = x[starts + (sizes - 1) // 2], x[starts + sizes // 2]
    return np.where(low == high, low, (low + high) * np.float32(0.5))


def contest(folder: Path, peers: dict[str, str], workers: int, *arguments: str) -> bool:
    data, keyed = folder / "data", bool(arguments[2:])
    mine = ours("--input", data, "--workers", workers, "--out", folder / "ours", *arguments)
    line("ours", mine)
    answer = medians(folder / "ours", keyed)
    expected, good = (by_numpy(data) if keyed else None), True
    for number, (name, code) in enumerate(peers.items()):
        out = folder / f"peer-{number}.parquet"
        line(name, peer(code.format(data=data, out=out, workers=workers, width=WIDTH)), mine)
        theirs = medians(out, keyed)
        expected = theirs if expected is None else expected  # numpy comes first
        differ = int((theirs.astype(np.float32) != answer).sum())
        if differ:
            print(f"    its answers, as float32, differ from ours in {differ} of {len(answer)}")
    good = bool((answer == expected).all())
    print(f"    ours {'equals' if good else 'DIFFERS FROM'} numpy bit for bit, {len(answer)} medians", flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10**7)
    parser.add_argument("--groups", type=int, default=10**6)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--data", type=Path, help="where to write the data [a temporary folder]")
    args = parser.parse_args()
    good = True
    for what in ("rows", "groups"):
        if not getattr(args, what):
            continue
        folder = Path(tempfile.mkdtemp(dir=args.data))
        (folder / "data").mkdir()
        try:
            if what == "rows":
                write_rows(folder / "data", args.rows)
                print(f"{args.rows} rows of {WIDTH} float32")
                good &= contest(folder, ROWS, args.workers, "--column", "v")
            else:
                n = write_groups(folder / "data", args.groups)
                print(f"{args.groups} groups of 1 to 2000 entries, {n} in all")
                good &= contest(folder, GROUPS, args.workers, "--column", "x", "--by", "k")
        finally:
            shutil.rmtree(folder)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
