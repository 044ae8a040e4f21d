"""`python -m service.tables`: medians and quantiles of tables, from files to files or to the screen."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from exporter.errors import UserError

EPILOG = """
examples:
  python -m service.tables --input 'data/*.parquet' --column price --by city --out medians     one row per city
  python -m service.tables --input data.csv --column price tax --quantile 0.1 0.9              one row, on the screen
  python -m service.tables --input 'data/*.parquet' --column samples --keep id --out rows      a list column: per row
  python -m service.tables --input data.csv --column a b c --per row --out rows                three columns: per row

how answers are found:
  rows      networks built by this package, proven by counting; rows of more than 2048 numbers are sorted
  groups    sorted by key and value, in memory, or by duckdb on disk beyond --memory
  columns   sorted in memory; beyond --memory searched by counting: an exported digit of the radix network
            (BitShift, ScatterElements) counts values, and a last pass gathers the few that are left
Run the same command again after an interruption: finished parts and finished passes are kept.
"""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m service.tables",
        description="Exact medians and quantiles of tables, equal to numpy's: per row, per column or per group.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("--input", nargs="+", required=True, metavar="PATH", help="files, folders, patterns or addresses (s3://...)")
    add("--column", nargs="+", default=[], metavar="NAME", help="columns to answer [all columns of numbers]")
    add("--by", nargs="+", default=[], metavar="KEY", help="key columns: one row per group")
    add("--per", choices=["row", "column", "group"], help="[group with --by, row for a column of lists, else column]")
    add("--keep", nargs="+", default=[], metavar="NAME", help="columns to copy beside the answers of rows")
    add("--quantile", nargs="+", type=float, metavar="Q", help="quantiles from 0 to 1 [the median]")
    add("--method", default="linear", metavar="M", help="one of the 13 methods of numpy.quantile [linear]")
    add("--nan", choices=["error", "skip"], default="error", help="refuse nulls and NaN, or leave them out [error]")
    add("--out", metavar="DIR", help="folder for Parquet files, local or remote [print CSV]")
    add("--engine", choices=["local", "ray"], default="local", help="threads of this process, or a Ray cluster [local]")
    add("--memory", default="1GB", metavar="SIZE", help="roughly how much to use [1GB]")
    add("--workers", type=int, default=0, metavar="N", help="threads [one per processor]")
    add("--quiet", action="store_true", help="no message at the end")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    args = parser().parse_args(arguments)
    stopped: list[int] = []

    def stop(number: int, _: Any) -> None:
        if not stopped:  # once is enough
            stopped.append(number)
            raise SystemExit(130)

    with contextlib.suppress(ValueError):  # outside the main thread signals belong to someone else
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, stop)
    try:
        _answer(args)
    except (
        Exception,
        KeyboardInterrupt,
        SystemExit,
    ) as error:  # a library may report the signal as an error of its own
        if stopped or isinstance(error, KeyboardInterrupt):
            print("interrupted: finished parts are kept; run the same command to go on", file=sys.stderr)
            return 130
        if not isinstance(error, UserError):
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _answer(args: argparse.Namespace) -> None:
    """Write the answers to a folder, or print them."""
    import pyarrow.csv  # noqa: PLC0415, --help is fast

    from service.tables.inputs import opened  # noqa: PLC0415
    from service.tables.output import Folder  # noqa: PLC0415
    from service.tables.query import TableQuery, in_bytes  # noqa: PLC0415
    from service.tables.run import answer, write  # noqa: PLC0415

    started = time.perf_counter()
    question = TableQuery(
        columns=tuple(args.column), by=tuple(args.by), keep=tuple(args.keep), per=args.per, method=args.method, nan=args.nan,
        q=None if args.quantile is None else tuple(args.quantile), engine=args.engine, memory=in_bytes(args.memory),
        workers=args.workers,
    )  # fmt: skip
    source = opened(args.input, question.memory)
    if not args.out:
        pyarrow.csv.write_csv(answer(source, question), sys.stdout.buffer)
        return
    folder = Folder(args.out, {"question": question.plan, "input": source.files}, reuse=not source.is_csv)
    with folder.locked():
        rows = write(source, question, folder)
    done = f"{sum(rows)} rows written to {args.out} in {time.perf_counter() - started:.1f} s"
    if not args.quiet:
        print(done if rows else f"{args.out}: all answers are there already")


class _NoPandas:
    """pyarrow.dataset imports pandas where pandas is installed, 0.15 s and 35 MB that this command does not use."""

    @staticmethod
    def find_spec(name: str, *_: Any) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name=name)


if __name__ == "__main__":
    if not any(each.endswith("ray") for each in sys.argv):  # Ray Data imports pandas itself
        sys.meta_path.insert(0, _NoPandas)
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # gives memory back that mimalloc keeps
    sys.exit(main())
