"""Random requests of all formats, lengths, types and families under concurrency, every answer compared with numpy's.

    python -m tests.service.compare_with_numpy URL [--vectors 1000000] [--longest 2048] [--threads 8] [--seed 0]

prints how many vectors were answered, and how many answers differ from numpy's in any bit (the exit status says whether some
do). The fast tests run a small sample.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from exporter.problem.families import FAMILIES
from exporter.problem.quantiles import METHODS
from service.client import Client

FORMATS = ("json", "npy", "raw", "csv", "arrow", "feather")
NUMBERS = 40_000  # in one request, at most


def vectors(rng: np.random.Generator, longest: int) -> tuple[str, np.ndarray]:
    """A format, and vectors of one length for it: any family, scale and type, ties and signed zeros too."""
    form = str(rng.choice(FORMATS))
    n = int(longest ** rng.random())
    count = int(max(1, min(400, NUMBERS // n)) ** rng.random())
    kind = str(rng.choice(["f4", "f8", "i4", "i8", "u8", "u1"] if form == "npy" else ["f4", "f8"]))
    if kind[0] != "f":
        info = np.iinfo(kind)
        half = info.min // 2, info.max // 2  # of wider ranges numpy.quantile lets differences wrap around
        return form, rng.integers(*half, (count, n), dtype=kind, endpoint=True)
    family = str(rng.choice([*FAMILIES]))
    x = FAMILIES[family](rng, count, n, 24) - rng.choice([0.0, 0.5, 1.0])
    x *= 10.0 ** (rng.uniform(-30, 30) if kind == "f4" else rng.uniform(-250, 250))
    if rng.random() < 0.2:
        x[rng.random(x.shape) < 0.3] = rng.choice([0.0, -0.0])
    return form, x.astype(kind)


def differ(client: Client, rng: np.random.Generator, longest: int) -> tuple[int, int]:
    """The number of vectors of one request, and of those whose answer is not numpy's."""
    form, x = vectors(rng, longest)
    own = x.astype(np.float64) if form in ("json", "csv") else x  # these carry float64
    told: Any
    with np.errstate(over="ignore"):
        if rng.random() < 0.5:
            told, want = client.median(x, format=form).medians, np.median(own, axis=1)
        elif rng.random() < 0.7:
            method: Any = rng.choice(list(METHODS))
            qs = rng.choice([0.0, 0.25, 0.5, 1.0, *rng.random(3)], 2).tolist()
            told = client.quantile(x, qs, method=str(method), format=form).quantiles
            want = np.quantile(own, qs, axis=1, method=method).T
        else:
            ranks = rng.integers(1, x.shape[1] + 1, 2)
            told = client.quantile(x, ranks=ranks.tolist(), format=form).quantiles
            want = np.sort(own, axis=1)[:, ranks - 1]
            told, want = told + 0, want + 0  # a rank of zeros has no sign of its own
    finite = np.isfinite(want.astype(np.float64))  # numpy's own mean overflows where ours does not
    if want.dtype.kind == "f":
        told, want = told.astype(np.float64), want.astype(np.float64)
    if told.dtype != want.dtype:
        return len(x), len(x)
    bits = f"u{want.itemsize}"
    same = (np.ascontiguousarray(told).view(bits) == np.ascontiguousarray(want).view(bits)) | ~finite
    return len(x), int(np.count_nonzero(~same.reshape(len(x), -1).all(1)))


def compare(url: str, wanted: int, longest: int, threads: int, seed: int = 0) -> tuple[int, int]:
    """Vectors answered, and answers that differ, over many requests at once."""
    done = wrong = 0
    lock, numbers = threading.Lock(), itertools.count(seed * 10**9)

    def work(_: int) -> None:
        nonlocal done, wrong
        with Client(url, timeout=300) as client:
            while done < wanted:
                number = next(numbers)
                some, bad = differ(client, np.random.default_rng(number), longest)
                with lock:
                    done, wrong = done + some, wrong + bad
                    if bad:
                        print(f"seed {number}: {bad} of {some} answers differ", file=sys.stderr)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    return done, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--longest", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    done, wrong = compare(chosen.url, chosen.vectors, chosen.longest, chosen.threads, chosen.seed)
    print(f"{done} vectors, {wrong} answers differ from numpy's")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
