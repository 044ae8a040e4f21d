"""The exact median and the 0.1 % and 99.9 % quantiles of one column of float32, against duckdb in the same run.

    python tests/benchmarks/bench_vector.py --entries 10000000 100000000 1000000000 [--family normal ...] [--out DIR]

Needs duckdb (`make scale` has them). An odd number of entries is written, N + 1, so that all three quantiles are
entries and no mixing hides a difference; all answers are compared with a full sort by numpy, in 4 bytes an entry of memory.
Every family of every length is a cell: with --out DIR it is kept in DIR/CELL.json when it is done, and not measured again.

Exit status 1 where an answer differs, a process of ours holds more than 1 GB, or beyond 10^9 entries the median takes more
than twice duckdb's time or a tenth of its memory. It writes 4 bytes an entry, and removes them; with --data DIR they stay
there, and are used again: `--only-write` makes them and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measuring import Measured, line, ours, peer

from exporter.formats.manifest import replace_file

QUANTILES = (0.001, 0.5, 0.999)
MEMORY = 1.0  # GB a process
TIMES, SHARE, FROM = 2.0, 0.1, 10**9  # of duckdb's time and memory, from so many entries
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


def sorted_entries(paths: list[Path], entries: int) -> Any:
    """All entries in order: the oracle."""
    x, start = np.empty(entries, np.float32), 0
    for path in paths:
        file = pq.ParquetFile(path)
        for group in range(file.num_row_groups):
            part = file.read_row_group(group)["x"].to_numpy()
            x[start : start + len(part)] = part
            start += len(part)
    x.sort()
    return x


def answers(folder: Path) -> dict[str, Any]:
    row: dict[str, Any] = pq.read_table(folder / "part-00000.parquet").to_pylist()[0]
    return row


def quantiles_in(folder: Path) -> list[float]:
    return [answers(folder)[f"q{q:g}"] for q in QUANTILES]


def measure(folder: Path, data: Path, family: str, entries: int, workers: int) -> dict[str, Any]:
    """A cell: ours and duckdb one after the other, ours on a single entry for what it takes to start, and the full sort."""
    paths = sorted(data.glob("*.parquet"))
    for path in paths:  # both find the files in the system's cache
        with path.open("rb") as stream:
            while stream.read(1 << 24):
                pass
    one = folder / "one.parquet"
    pq.write_table(pa.table({"x": np.ones(1, np.float32)}), one)
    asked = ("--column", "x", "--workers", workers, "--out")
    quantiles = ("--quantile", *QUANTILES)
    runs = {
        "start": ours("--input", one, *asked, folder / "one"),
        "median": ours("--input", data, *asked, folder / "median"),
        "duckdb median": peer(duckdb(data, "median(x)", workers)),
        "three": ours("--input", data, *quantiles, *asked, folder / "three"),
        "duckdb three": peer(duckdb(data, f"quantile_cont(x, {list(QUANTILES)})", workers)),
    }
    found = [answers(folder / "median")["median"], *quantiles_in(folder / "three")]
    x = sorted_entries(paths, entries)
    expected = [float(x[round(q * (entries - 1))]) for q in (0.5, *QUANTILES)]
    return {
        "family": family, "entries": entries, "files": len(paths), "bytes": sum(each.stat().st_size for each in paths),
        "found": found, "expected": expected, "runs": {name: asdict(each) for name, each in runs.items()},
    }  # fmt: skip


def show(cell: dict[str, Any]) -> bool:
    """Print a cell; whether it is within its limits."""
    runs = {name: Measured(**each) for name, each in cell["runs"].items()}
    entries, start = cell["entries"], runs["start"]
    print(f"{cell['family']}, {entries} entries, {cell['files']} files of {cell['bytes'] / 1e9:.2f} GB")
    line("ours, of a single entry", start)
    for name, title in (("median", "median"), ("three", "three quantiles")):
        mine, theirs = runs[name], runs[f"duckdb {name}"]
        line(f"ours, {title}", mine)
        line(f"duckdb, {title}", theirs, mine)
        clock, processor = (1e9 / entries * each for each in (mine.seconds, mine.processor))
        rest = 1e9 / entries * (mine.processor - start.processor)
        print(
            f"    ns an entry: {clock:.1f} of the clock, {processor:.1f} of processors, {rest:.1f} of them beyond start"
        )
    same = cell["found"] == cell["expected"]
    print(f"    {'equal to' if same else 'DIFFERS FROM'} a full sort: {cell['found'][1:]}")
    mine, theirs = runs["median"], runs["duckdb median"]
    within = max(mine.memory, runs["three"].memory) <= MEMORY
    if entries >= FROM:
        within &= mine.seconds <= TIMES * theirs.seconds and mine.memory <= SHARE * theirs.memory
    if not within:
        print("    BEYOND ITS LIMITS of time or memory")
    sys.stdout.flush()
    return same and within


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, nargs="+", default=[10**7])
    parser.add_argument("--family", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="keep finished cells there, and do not measure them again"
    )
    parser.add_argument("--data", type=Path, help="where the data are, or are written [a temporary folder]")
    parser.add_argument("--only-write", action="store_true", help="write the data, and measure nothing")
    args = parser.parse_args()
    good = True
    for entries in args.entries:
        for family in args.family:
            odd = entries + 1 - entries % 2
            kept = args.out / f"{family}-{odd}.json" if args.out else None
            if kept and kept.exists() and not args.only_write:
                good &= show(json.loads(kept.read_text()))
                continue
            folder = Path(tempfile.mkdtemp(dir=args.data))
            data = (args.data or folder) / f"{family}-{odd}"
            try:
                if not data.exists():
                    write(folder / "new", family, odd).rename(data)
                if args.only_write:
                    continue
                cell = measure(folder, data, family, odd, args.workers)
            finally:
                shutil.rmtree(folder)
            if kept:
                kept.parent.mkdir(parents=True, exist_ok=True)
                replace_file(kept, (json.dumps(cell, indent=1) + "\n").encode())
            good &= show(cell)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
