"""`python -m service.tables`: medians and quantiles of tables, from files to files or to the screen."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
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
  rows      sorted in memory: for rows of 25 numbers six times faster than networks in onnxruntime
  groups    sorted by key and value, in memory, or by duckdb on disk beyond --memory
  columns   sorted in memory; beyond --memory searched by counting: an exported digit of the radix network
            (BitShift, ScatterElements) counts values, and a last pass gathers the few left
Run the same command again after an interruption: finished parts and finished passes are kept.
"""
INTERRUPTED = "interrupted: finished parts are kept; run the same command to continue"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m service.tables",
        description="Exact medians and quantiles of tables, equal to numpy's: per row, per column or per group.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    names: Any = {"nargs": "+", "default": [], "metavar": "NAME"}
    add("--input", nargs="+", required=True, metavar="PATH", help="files, folders, patterns or addresses (s3://...)")
    add("--column", dest="columns", **names, help="columns to answer [all columns of numbers]")
    add("--by", **names, help="key columns: one row per group")
    add("--per", choices=["row", "column", "group"], help="[group with --by, row for a column of lists, else column]")
    add("--keep", **names, help="columns to copy beside the answers of rows")
    add("--quantile", dest="q", nargs="+", type=float, metavar="Q", help="quantiles from 0 to 1 [the median]")
    add("--method", default="linear", metavar="M", help="one of the 13 methods of numpy.quantile [linear]")
    add("--nan", choices=["error", "skip"], default="error", help="refuse nulls and NaN, or leave them out [error]")
    add("--out", metavar="DIR", help="folder for Parquet files, local or remote [print CSV]")
    add("--engine", choices=["local", "ray"], default="local", help="threads of this process, or a Ray cluster [local]")
    add("--memory", default="1GB", metavar="SIZE", help="roughly how much to use [1GB]")
    add("--workers", type=int, default=0, metavar="N", help="threads [one per processor]")
    add("--quiet", action="store_true", help="no message at the end")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command as its own process. SIGINT and SIGTERM end the process at once.

    An exception in place of `_stop` would pass through libraries that abort or change it. Signals after the work are
    ignored, so that the exit status says that the answers exist.
    """
    _on_signals(_stop)
    status = run(arguments)
    _on_signals(signal.SIG_IGN)
    return status


def _on_signals(handler: Any) -> None:
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, handler)


def _stop(*_: Any) -> None:
    os.write(2, f"{INTERRUPTED}\n".encode())
    if inputs := sys.modules.get("service.tables.inputs"):
        inputs.remove_scratch()
    os._exit(130)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit status. Signals belong to the caller."""
    options = vars(parser().parse_args(arguments))
    try:
        _answer(**options)
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        return 130
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _answer(input: list[str], out: str | None, quiet: bool, **asked: Any) -> None:
    """Write the answers to a folder, or print them."""
    import pyarrow.csv  # noqa: PLC0415, --help is fast

    from service.tables.inputs import opened  # noqa: PLC0415
    from service.tables.output import Folder  # noqa: PLC0415
    from service.tables.query import TableQuery  # noqa: PLC0415
    from service.tables.run import medians, parts  # noqa: PLC0415

    if not out:
        pyarrow.csv.write_csv(medians(input, **asked), sys.stdout.buffer)
        return
    started, question, source = time.perf_counter(), TableQuery.asked(**asked), opened(input)
    folder = Folder(out, {"question": question.plan, "input": source.files})
    with folder.locked():
        rows = {number: folder.write(number, table) for number, table in parts(source, question, folder)}
    done = f"{sum(rows.values())} rows written to {out} in {time.perf_counter() - started:.1f} s"
    if not quiet:
        print(done if rows else f"{out}: all answers are there already")


class _NoPandas:
    """pyarrow.dataset imports pandas where pandas is installed, 0.15 s and 35 MB that this command does not use."""

    @staticmethod
    def find_spec(name: str, *_: Any) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name=name)


if __name__ == "__main__":
    if not any(each.endswith("ray") for each in sys.argv):  # Ray Data imports pandas itself
        sys.meta_path.insert(0, _NoPandas)
    if "--by" in sys.argv:  # groups fill many arrays: give each back at once, which takes time of the kernel
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(-3, 1 << 17)  # M_MMAP_THRESHOLD
    sys.exit(main())
