"""What is asked of a table, from the command line."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

from exporter.errors import UserError
from exporter.files.digit import MOST_BITS
from exporter.question.task import Method
from service.batch.models import LARGEST
from service.batch.ranks import Statistic

EPILOG = """
examples:
  python -m service.batch --input 'data/*.parquet' --column samples --out medians          a list column: one per row
  python -m service.batch --input data.csv --column a b c --out medians                    three columns: one per row
  python -m service.batch --input data.feather --column price --quantile 0.1 0.9 --out q   one column: its quantiles
  python -m service.batch --input 'data/*.parquet' --column price --by city --out m        one per city
Run the same command again after an interruption: it goes on where it was.
"""


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """All options; those of `HOW` change how the answer is computed, never the answer."""

    input: tuple[str, ...]
    out: Path
    column: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    per: str | None = None
    quantile: tuple[float, ...] = ()
    method: Method = "linear"
    nan: str = "error"
    empty: str = "error"
    engine: str = "local"
    workers: int = 0
    largest: int = LARGEST
    digit_bits: int = MOST_BITS
    quiet: bool = False

    HOW = ("input", "out", "engine", "workers", "quiet")

    def __post_init__(self) -> None:
        for q in self.quantile:
            if not 0 <= q <= 1:
                raise UserError(f"--quantile {q} is out of range: it must be between 0 and 1")
        names = [one.name for one in self.statistics]
        if len(set(names)) < len(names):
            raise UserError(f"--quantile {' '.join(map(str, self.quantile))} names one quantile twice")
        if self.method != "linear" and not self.quantile:
            raise UserError("--method says how a quantile between two entries is meant: it needs a --quantile")
        for flag, given in (("column", self.column), ("by", self.by), ("keep", self.keep)):
            if len(set(given)) < len(given):
                raise UserError(f"--{flag} {' '.join(given)} names a column twice")
        if self.by and self.per not in (None, "group"):
            raise UserError(f"--by asks for one answer per group, --per {self.per} for another: give one of them")
        if self.per == "group" and not self.by:
            raise UserError("--per group needs the columns that make a group: --by KEY")
        for flag, number, least, most in (
            ("workers", self.workers, 0, 1024),
            ("largest", self.largest, 4, 1 << 20),
            ("digit-bits", self.digit_bits, 1, MOST_BITS),
        ):
            if not least <= number <= most:
                raise UserError(f"--{flag} must be {least} to {most}, not {number}")

    @property
    def statistics(self) -> list[Statistic]:
        return [Statistic(q, self.method) for q in self.quantile] or [Statistic()]

    @property
    def processes(self) -> int:
        """Worker processes: as asked, or one for each processor this process may use."""
        return self.workers or len(os.sched_getaffinity(0))

    def asked(self) -> dict[str, Any]:
        """What decides the answer: parts of runs that agree in it may stand in one folder."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name not in self.HOW}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m service.batch",
        description="Exact medians and quantiles of tables by ReLU networks: per row, per column or per group.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add(
        "--input",
        nargs="+",
        required=True,
        metavar="PATH",
        help="Parquet, Arrow/Feather or CSV: files, folders, patterns",
    )
    add("--out", type=Path, required=True, metavar="DIR", help="folder for the answers, Parquet parts")
    add(
        "--column",
        nargs="+",
        default=[],
        metavar="C",
        action="extend",
        help="list or number columns [all number columns]",
    )
    add("--by", nargs="+", default=[], metavar="KEY", action="extend", help="one answer per group of equal keys")
    add(
        "--per",
        choices=["row", "column", "group"],
        help="one answer per row [list column, several columns], or per column",
    )
    add(
        "--keep",
        nargs="+",
        default=[],
        metavar="C",
        action="extend",
        help="columns copied beside the answer of each row",
    )
    add(
        "--quantile",
        nargs="+",
        type=float,
        default=[],
        metavar="Q",
        action="extend",
        help="quantiles in place of the median",
    )
    add(
        "--method",
        choices=get_args(Method),
        default="linear",
        help="quantiles between two entries, as numpy's [linear]",
    )
    add("--nan", choices=["error", "skip"], default="error", help="nulls and NaN: refused, or left out [error]")
    add(
        "--empty",
        choices=["error", "null"],
        default="error",
        help="rows and groups without a number: refused, or null [error]",
    )
    add("--engine", choices=["local", "ray"], default="local", help="processes here, or a Ray cluster [local]")
    add("--workers", type=int, default=0, metavar="N", help="worker processes [one a processor; ray: all there are]")
    add(
        "--largest", type=int, default=LARGEST, metavar="D", help=f"longer vectors are searched by counting [{LARGEST}]"
    )
    add(
        "--digit-bits",
        type=int,
        default=MOST_BITS,
        metavar="B",
        help=f"of a counting pass: 2^B numbers a part [{MOST_BITS}]",
    )
    add("--quiet", action="store_true", help="no progress bar")
    return made


def parsed(arguments: Sequence[str] | None = None) -> BatchOptions:
    """Options from the command line; a mistake ends in one line, not a trace."""
    made = parser()
    given: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in vars(made.parse_args(arguments)).items()
    }
    try:
        return BatchOptions(**given)
    except UserError as error:
        made.error(str(error))
