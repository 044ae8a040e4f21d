"""The planner of a construction by its name, and the places of a grouping."""

from __future__ import annotations

import numpy as np

from exporter.constructions import lookup
from exporter.constructions.sampling import groups
from exporter.constructions.scheduled import Planned


def planner(construction: str) -> Planned:
    build = lookup(construction).build
    assert isinstance(build, Planned), f"{construction} needs no schedule"
    return build


def slot_of(d: int, slots: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The slot of every place of a permutation."""
    return np.repeat(np.arange(slots), [size for _, blocks, size in groups(d, slots) for _ in range(blocks)])
