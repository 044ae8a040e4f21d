"""The exact median and the 0.1 % and 99.9 % quantiles of one column of float32, against duckdb in the same run.

    python tests/benchmarks/bench_vector.py --entries 10000000 100000000 1000000000 [--family normal ...] [--data DIR]

Needs duckdb and psutil (`make scale` has them). An odd number of entries is written, N + 1, so that all three quantiles are
entries and no mixing hides a difference. Up to 10^8 the answer is compared with a full sort by numpy, beyond with duckdb.
Exit status 1 where an answer differs. It writes 4 bytes an entry, and removes them; with --data DIR they stay there, and
are used again: `--only-write` makes them and measures nothing.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measuring import line, ours, peer

QUANTILES = (0.001, 0.5, 0.999)
PART = 1 << 25  # entries of a file
GROUP = 1 << 20


def normal(rng: np.random.Generator, n: int) -> Any:
    return rng.standard_normal(n, np.float32)


def uniform(rng: np.random.Generator, n: int) -> Any:
    return rng.random(n, np.float32)


def mostly_equal(rng: np.random.Generator, n: int) -> Any:
    """Nine entries of ten are 0.25."""
    x = rng.standard_normal(n, np.float32)
    x[rng.random(n, np.float32) < 0.9] = 0.25
    return x


def scales(rng: np.random.Generator, n: int) -> Any:
    """From subnormal to huge, both signs."""
    return np.ldexp(rng.standard_normal(n, np.float32), rng.integers(-148, 126, n, np.int32)).astype(np.float32)


FAMILIES = {each.__name__: each for each in (normal, uniform, mostly_equal, scales)}


def write(folder: Path, family: str, entries: int) -> Path:
    folder.mkdir(parents=True)
    for number, start in enumerate(range(0, entries, PART)):
        path = folder / f"{number:04}.parquet"
        rng = np.random.default_rng([number, entries])
        with pq.ParquetWriter(
            path, pa.schema([("x", pa.float32())]), use_dictionary=False, compression="none"
        ) as writer:
            for first in range(start, min(start + PART, entries), GROUP):
                writer.write_table(
                    pa.table({"x": FAMILIES[family](rng, min(GROUP, start + PART - first, entries - first))})
                )
    return folder


def duckdb(folder: Path, what: str, threads: int) -> str:
    return (
        f"import duckdb; c = duckdb.connect(); c.execute('set threads = {threads}'); "
        f"print(c.sql(\"select {what} from '{folder}/*.parquet'\").fetchall()[0][0])"
    )


def compare(folder: Path, data: Path, family: str, entries: int, workers: int) -> bool:
    paths = sorted(data.glob("*.parquet"))
    size = sum(path.stat().st_size for path in paths) / 1e9
    print(f"{family}, {entries} entries, {len(paths)} files of {size:.2f} GB", flush=True)
    for path in paths:  # both find the files in the system's cache
        with path.open("rb") as stream:
            while stream.read(1 << 24):
                pass
    mine = ours("--input", data, "--column", "x", "--workers", workers, "--out", folder / "median")
    theirs = peer(duckdb(data, "median(x)", workers))
    line("ours, median", mine)
    line("duckdb median(x)", theirs, mine)
    three = ours(
        "--input", data, "--column", "x", "--quantile", *QUANTILES, "--workers", workers, "--out", folder / "three"
    )
    cont = peer(duckdb(data, f"quantile_cont(x, {list(QUANTILES)})", workers))
    line("ours, three quantiles", three)
    line("duckdb quantile_cont(x, [...])", cont, three)
    for each in (mine, three):
        print("    " + "\n    ".join(row for row in each.printed.splitlines() if row.startswith("pass")))
    for name, each in (("median", mine), ("three quantiles", three)):
        works = [float(found) for found in re.findall(r"([0-9.]+) s of work", each.printed)]
        ns = " + ".join(f"{work / entries * 1e9:.1f}" for work in works)
        print(f"    {name}: {each.seconds / entries * 1e9:.1f} ns an entry; work of the passes: {ns} ns an entry")
    row = pq.read_table(folder / "three" / "part-00000.parquet").to_pylist()[0]
    found = np.array([row[f"q{q:g}"] for q in QUANTILES], np.float32)
    alone = pq.read_table(folder / "median" / "part-00000.parquet").to_pylist()[0]["median"]
    if entries <= 10**8 + 1:
        x = np.sort(np.concatenate([pq.read_table(path)["x"].to_numpy() for path in paths]))
        expected = x[[round(q * (entries - 1)) for q in QUANTILES]]
    else:
        expected = np.array(eval(cont.printed.strip()), np.float32)
    same = bool((found == expected).all()) and alone == float(expected[1])
    judge = "a full sort" if entries <= 10**8 + 1 else "duckdb"
    print(f"    {'equal to' if same else 'DIFFERS FROM'} {judge}: {found.tolist()}", flush=True)
    return same


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, nargs="+", default=[10**7])
    parser.add_argument("--family", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--data", type=Path, help="where the data are, or are written [a temporary folder]")
    parser.add_argument("--only-write", action="store_true", help="write the data, and measure nothing")
    args = parser.parse_args()
    same = True
    for entries in args.entries:
        for family in args.family:
            odd = entries + 1 - entries % 2
            folder = Path(tempfile.mkdtemp(dir=args.data))
            data = (args.data or folder) / f"{family}-{odd}"
            try:
                if not data.exists():
                    write(folder / "new", family, odd).rename(data)
                if not args.only_write:
                    same &= compare(folder, data, family, odd, args.workers)
            finally:
                shutil.rmtree(folder)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
