"""Random requests to both routes, each judged by numpy: `bench_service.py requests` sends thousands, a test dozens."""

from __future__ import annotations

from typing import Any

import numpy as np

from exporter.problem.families import FAMILIES
from exporter.problem.quantiles import METHODS
from service.client import Client

BARE = ("json", "npy", "raw", "csv", "arrow")


def vectors(rng: np.random.Generator, family: str, longest: int, count: int = 1) -> np.ndarray:
    """Vectors of one length, short ones as often as long ones, at any scale, of either type."""
    n = int(rng.integers(1, longest + 1)) if rng.random() < 0.5 else int(longest ** rng.random())
    dtype = rng.choice(["f4", "f8"])
    scale = 10.0 ** (rng.uniform(-30, 30) if dtype == "f4" else rng.uniform(-300, 300))
    return ((FAMILIES[family](rng, count, n, 24) - rng.choice([0.0, 1.0, -0.5])) * scale).astype(dtype)


def is_right(client: Client, rng: np.random.Generator, family: str, longest: int) -> bool:
    """One request, and whether every bit of its answer is numpy's, or with `grid` its error at most the bound."""
    x = vectors(rng, family, longest, int(rng.integers(1, 4)))
    form = str(rng.choice(BARE if x.size < 4000 else BARE[1:3]))
    asked = x.astype(np.float64) if form in ("json", "csv") else x  # whose numbers are float64
    told: Any
    if rng.random() < 0.2:
        told = client.median(asked, format="json", grid=True)
        return bool((np.abs(told.medians - np.median(asked.astype(np.float64), axis=1)) <= told.error_bound).all())
    if rng.random() < 0.4:
        told, wanted = client.median(x, format=form).medians, np.median(asked, axis=1)
    elif rng.random() < 0.8:
        method: Any = rng.choice(list(METHODS))
        quantiles = [float(q) for q in rng.choice([0.0, 0.5, 1.0, *rng.random(5)], int(rng.integers(1, 4)))]
        told = client.quantile(x, quantiles, method=str(method), format=form).quantiles
        wanted = np.quantile(asked, quantiles, axis=1, method=method).T
    else:
        ranks = [int(k) for k in rng.integers(1, x.shape[1] + 1, 2)]
        told = client.quantile(x, ranks=ranks, format=form).quantiles
        return bool((told == np.sort(asked, axis=1)[:, np.array(ranks) - 1]).all())
    return told.astype(np.float64).tobytes() == np.ascontiguousarray(wanted, np.float64).tobytes()
