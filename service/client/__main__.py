"""python -m service.client: a comparison of the service with numpy.median."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import httpx
import numpy as np
import orjson

from exporter.problem.families import FAMILIES
from service.client import Client, ServiceError, Vector
from service.client.comparison import compare
from service.client.retries import Retries
from service.serving.formats import FORMATS


def _read(path: Path) -> list[Vector]:
    """The rows of a .npy matrix, or its one vector."""
    with path.open("rb") as stream:
        array = np.lib.format.read_array(stream, allow_pickle=False)
    if array.ndim not in (1, 2) or array.dtype.kind not in "fiu" or not array.size:
        raise ValueError(f"{path}: one vector or a matrix of numbers is expected, not {array.dtype} {array.shape}")
    return list(np.atleast_2d(array))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m service.client",
        description="Compare the service with numpy.median.",
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where the service is [%(default)s]")
    parser.add_argument("--d", type=int, default=2048, help="length of the vectors [%(default)s]")
    parser.add_argument("--n", type=int, default=1000, help="number of vectors [%(default)s]")
    parser.add_argument("--concurrency", type=int, default=8, help="requests at a time [%(default)s]")
    parser.add_argument("--format", choices=sorted(FORMATS), default="json", help="[%(default)s]")
    parser.add_argument("--model", help="name of the model; the service chooses when left out")
    parser.add_argument("--construction", help="construction of the model")
    parser.add_argument("--family", choices=sorted(FAMILIES), default="uniform", help="kind of vectors [%(default)s]")
    parser.add_argument("--in", dest="file", type=Path, metavar="FILE", help="a .npy matrix of vectors to compare with")
    parser.add_argument("--seed", type=int, default=0, help="[%(default)s]")
    parser.add_argument(
        "--retries", type=int, default=Retries.count, metavar="N",
        help="how often a request that is lost, or refused for the moment, is sent again [%(default)s]",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, help="write the report as JSON")
    chosen = parser.parse_args(arguments)
    if min(chosen.d, chosen.n, chosen.concurrency) < 1 or min(chosen.seed, chosen.retries) < 0:
        parser.error("--d, --n and --concurrency must be at least 1, --seed and --retries at least 0")
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 if every answer equals numpy's and every network number is within its bound, 1 if not, 2 without a
    comparison."""
    chosen = parse(arguments)
    try:
        if chosen.file is not None:
            vectors, source = _read(chosen.file), chosen.file.name
        else:
            rng = np.random.default_rng(chosen.seed)
            vectors, source = list(FAMILIES[chosen.family](rng, chosen.n, chosen.d, 24)), chosen.family
        with Client(chosen.url, retries=chosen.retries) as client:
            options = {"model": chosen.model, "construction": chosen.construction}
            report = compare(
                client, vectors, source=source, format=chosen.format, concurrency=chosen.concurrency, **options
            )
        print(report.table())
        if chosen.out is not None:
            chosen.out.write_bytes(orjson.dumps(asdict(report), option=orjson.OPT_INDENT_2))
    except ServiceError as error:
        print(f"service.client: {error}", file=sys.stderr)
        return 2
    except (httpx.InvalidURL, OSError, EOFError, ValueError, MemoryError) as error:  # of --url, --in, --out, --n, --d
        print(f"service.client: {error}", file=sys.stderr)
        return 2
    return 1 if report.differ_from_numpy or report.beyond_bound else 0


if __name__ == "__main__":
    sys.exit(main())
