"""Image filters in the runtimes of the normal environment: exact, at sizes of one pixel, one row and more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporter.frontends.images.running import windows
from exporter.library import export_model
from tests.runtimes.adapters import RUNTIMES

LIGHT = [r.module for r in RUNTIMES.values() if r.env == ""]
CASES: list[dict[str, Any]] = [
    *({"window": (3, 3), "profile": profile} for profile in ("minmax", "structured", "fused")),
    *({"window": (5, 5), "profile": profile, "border": "reflect"} for profile in ("minmax", "fused")),
    {"window": (3, 3), "border": "zero"},
    {"window": (1, 5), "profile": "structured", "border": "zero"},
    {"window": (3, 3), "profile": "structured", "border": "valid"},
    {"window": (3, 3), "dtype": "uint8"},
    {"window": (3, 3), "dtype": "uint8", "profile": "structured"},
    {"window": (3, 3), "dtype": "float16"},
    {"window": (3, 3), "dtype": "float16", "profile": "structured"},
    {"frames": 5},
    {"frames": 9, "profile": "structured"},
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_exact_in_every_light_runtime(case: dict[str, Any], tmp_path: Path) -> None:
    path = export_model(out=tmp_path, **case)
    rng, more = np.random.default_rng(0), 2 if case.get("border") == "valid" else 0
    images, truths = [], []
    for h, w in ((1, 1), (1, 7), (13, 11)):
        x = rng.integers(0, 256, (case.get("frames", 1), 3, h + more, w + more)).astype(case.get("dtype", "float32"))
        images.append(x)
        seen = (
            np.moveaxis(x, 0, -1)[None] if "frames" in case else windows(x, case["window"], case.get("border", "edge"))
        )
        truths.append(np.median(seen, axis=-1))
    for module in LIGHT:
        for x, truth in zip(images, truths, strict=True):
            y = np.asarray(RUNTIMES[module].adapter().load(path)(x))
            assert y.shape == truth.shape, module
            assert (y == truth).all(), f"{module}: {(y != truth).sum()} pixels of {x.shape}"
