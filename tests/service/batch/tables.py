"""Tables for the tests, the oracle, and work done in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from service.batch.engines import Item, Result, Task
from service.batch.options import BatchOptions, parsed
from service.batch.run import Tally, run

FAMILIES: dict[str, Callable[[np.random.Generator, int], Any]] = {
    "normal": lambda rng, n: rng.normal(size=n),
    "few": lambda rng, n: rng.integers(0, 3, n) * 1.0,
    "scales": lambda rng, n: rng.normal(size=n) * 10.0 ** rng.integers(-44, 38, n),
    "tiny": lambda rng, n: rng.integers(-9, 9, n) * 1e-45,
    "near": lambda rng, n: 1 + rng.integers(0, 4, n) * 2.0**-23,
    "mostly equal": lambda rng, n: np.where(rng.random(n) < 0.9, 0.25, rng.normal(size=n)),
    "zeros": lambda rng, n: rng.choice([0.0, -0.0, 1.0, -1.0], n),
    "infinite": lambda rng, n: rng.choice([-np.inf, np.inf, 0.5, 2.0, -7.0], n),
}


class Here:
    """Work in this process, so that tests are fast."""

    workers = 2

    def run(self, task: Task[Item, Result], items: Sequence[Item]) -> Iterator[Result]:
        return map(task, items)

    def close(self) -> None: ...


def options(*arguments: Any) -> BatchOptions:
    return parsed([*map(str, arguments), "--quiet"])


def batch(*arguments: Any) -> Tally:
    return run(options(*arguments), Here())


def answers(folder: Path) -> Any:
    """All parts in order."""
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("part-*.parquet"))])


def oracle(x: Any, q: float | None) -> Any:
    """numpy's answer; where it takes inf - inf of two equal entries, that entry."""
    with np.errstate(invalid="ignore", over="ignore"):
        found = np.median(x) if q is None else np.quantile(x, q)
        if np.isnan(found):
            at = (len(x) - 1) * (0.5 if q is None else q)
            low, high = np.sort(x)[[int(np.floor(at)), int(np.ceil(at))]]
            found = low if low == high else found
    return found


def same(found: Any, expected: Any) -> bool:
    """Equal bit for bit, but for the sign of zero."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype
    return bool(((found == expected) | (np.isnan(found) & np.isnan(expected))).all())
