"""python -m service.client: the answers to a file, or a comparison with numpy.median."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
from tqdm import tqdm

from exporter.problem.families import FAMILIES
from service.client import Client, ServiceError, Vector
from service.client.comparison import compare, plot
from service.client.numbers_file import read_numbers
from service.client.retries import Retries
from service.serving.formats import FORMATS

AT_ONCE = 1024  # vectors of a file in one request


def _read(chosen: argparse.Namespace, columns: list[str] | None = None) -> tuple[list[str] | None, list[Vector]]:
    try:
        names, vectors = read_numbers(chosen.file, chosen.by, columns)
    except (OSError, ValueError, EOFError) as error:
        raise ServiceError(f"{chosen.file}: {error}") from None
    if not vectors:
        raise ServiceError(f"{chosen.file}: there is no vector in it")
    return names, vectors


def answers(client: Client, chosen: argparse.Namespace) -> list[str]:
    """The answers to a file, a line for each vector, the name of its column first if it has one."""
    columns = next(csv.reader([chosen.columns]), []) if chosen.columns else None
    names, vectors = _read(chosen, columns)
    options = {"format": chosen.format, "model": chosen.model, "construction": chosen.construction}
    options |= {"grid": chosen.grid, "nan": chosen.nan}
    lines: list[str] = []
    at = 0
    with tqdm(total=len(vectors), unit=" vectors", disable=None) as progress:
        while at < len(vectors):
            some = max(1, min(AT_ONCE, (1 << 20) // len(vectors[at])))
            part = vectors[at : at + some]
            if chosen.quantiles or chosen.ranks:
                wanted = {"quantiles": chosen.quantiles, "ranks": chosen.ranks, "method": chosen.method}
                told = client.quantile(part, **wanted, **options).quantiles.tolist()
            else:
                told = client.median(part, **options).medians[:, None].tolist()
            lines += ["\t".join(map(repr, row)) for row in told]
            at += len(part)
            progress.update(len(part))
    return lines if names is None else [f"{name}\t{line}" for name, line in zip(names, lines, strict=True)]


def _listed(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    def numbers(text: str) -> list[Any]:
        return [kind(item) for item in text.split(",")]

    return numbers


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m service.client",
        description="Print the service's answers to the numbers in a file, or compare the service with numpy.median.",
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where the service is [%(default)s]")
    parser.add_argument("--d", type=int, default=2048, help="length of the vectors [%(default)s]")
    parser.add_argument("--n", type=int, default=1000, help="number of vectors [%(default)s]")
    parser.add_argument("--concurrency", type=int, default=8, help="requests at a time [%(default)s]")
    parser.add_argument("--format", choices=sorted(FORMATS), default="json", help="[%(default)s]")
    parser.add_argument("--model", help="name of the model; the service chooses when left out")
    parser.add_argument("--construction", help="construction of the model")
    parser.add_argument("--grid", action="store_true", help="ask for the numbers of the network instead of numpy's")
    parser.add_argument("--exact", action="store_true", help=argparse.SUPPRESS)  # the default; accepted for a release
    parser.add_argument("--family", choices=sorted(FAMILIES), default="uniform", help="kind of vectors [%(default)s]")
    parser.add_argument(
        "--in", dest="file", type=Path, metavar="FILE",
        help="print the answers to these numbers: .npy, or .csv with a vector a line, or with columns that have names",
    )  # fmt: skip
    parser.add_argument("--compare", action="store_true", help="compare with numpy.median; so it is without --in")
    parser.add_argument("--by", choices=["rows", "columns"], help="what of the file is a vector [as it looks]")
    parser.add_argument("--columns", help="columns of the file by name, with commas between them")
    parser.add_argument("--quantiles", type=_listed(float), help="print these instead of medians: 0.1,0.9")
    parser.add_argument("--method", help="of numpy.quantile")
    parser.add_argument("--ranks", type=_listed(int), help="print these instead of medians: 1 is the smallest value")
    parser.add_argument("--nan", choices=["error", "omit", "propagate"], help="what becomes of missing numbers [error]")
    parser.add_argument("--seed", type=int, default=0, help="[%(default)s]")
    parser.add_argument(
        "--retries", type=int, default=Retries.count, metavar="N",
        help="how often a request that is lost, or refused for the moment, is sent again [%(default)s]",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, help="write the report as JSON")
    parser.add_argument("--plot", type=Path, help="write a picture (PNG) of latencies and errors")
    chosen = parser.parse_args(arguments)
    if min(chosen.d, chosen.n, chosen.concurrency) < 1 or min(chosen.seed, chosen.retries) < 0:
        parser.error("--d, --n and --concurrency must be at least 1, --seed and --retries at least 0")
    printing = chosen.file is not None and not chosen.compare
    if not printing and (chosen.quantiles or chosen.ranks or chosen.method or chosen.nan):
        parser.error("--quantiles, --ranks, --method and --nan go with --in, without --compare")
    if not printing and chosen.grid:
        parser.error("--grid goes with --in, without --compare: a comparison reports the numbers of the network anyway")
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 when every answer is numpy's and every number of a network within its bound, 1 when one is not, 2 when
    there was no comparison."""
    chosen = parse(arguments)
    try:
        if chosen.file is not None and not chosen.compare:
            with Client(chosen.url, retries=chosen.retries) as client:
                print("\n".join(answers(client, chosen)))
            return 0
        if chosen.file is not None:
            vectors, source = _read(chosen)[1], chosen.file.name
        else:
            rng = np.random.default_rng(chosen.seed)
            vectors, source = list(FAMILIES[chosen.family](rng, chosen.n, chosen.d, 24)), chosen.family
        with Client(chosen.url, retries=chosen.retries) as client:
            options = {"model": chosen.model, "construction": chosen.construction}
            report, samples = compare(
                client, vectors, source=source, format=chosen.format, concurrency=chosen.concurrency, **options
            )
        print(report.table())
        if chosen.out is not None:
            chosen.out.write_bytes(orjson.dumps(asdict(report), option=orjson.OPT_INDENT_2))
        if chosen.plot is not None:
            plot(report, samples, chosen.plot)
    except ServiceError as error:
        print(f"service.client: {error}", file=sys.stderr)
        return 2
    except (httpx.InvalidURL, OSError, ValueError, MemoryError) as error:  # of --url, --in, --out, --plot, --n and --d
        print(f"service.client: {error}", file=sys.stderr)
        return 2
    return 1 if report.differ_from_numpy or report.beyond_bound else 0


if __name__ == "__main__":
    sys.exit(main())
