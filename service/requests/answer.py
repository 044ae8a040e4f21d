"""What a request is told, before it is written in a format."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import nan
from typing import Any

import numpy as np

from service.scaling import Floats


@dataclass(eq=False)
class Answer:
    """One entry a vector, or `columns` of them where several quantiles or ranks were asked for, and how they were served.

    NaN is the answer to a vector with numbers missing, or none left; it names no model.
    """

    dtype: np.dtype[Any]
    medians: list[float]
    error_bound: list[float]
    models: list[str]
    fallback: list[bool]
    batch_size: int = 0
    queue_s: float = 0.0
    inference_s: float = 0.0
    total_s: float = 0.0
    columns: int | None = None
    told: str = "medians"
    labels: list[str] = field(default_factory=lambda: ["median"])
    names: list[str] | None = None

    @classmethod
    def blank(cls, count: int, dtype: np.dtype[Any]) -> Answer:
        return cls(dtype, [nan] * count, [0.0] * count, [""] * count, [False] * count)

    @property
    def array(self) -> Floats:
        """The answers as numbers of the caller's type: (vectors,), or (vectors, columns)."""
        return self.shaped(np.array(self.medians, self.dtype))

    def shaped(self, values: Floats) -> Floats:
        return values if self.columns is None else values.reshape(-1, self.columns)

    def listed(self, entries: list[Any]) -> list[Any]:
        """Entries in the shape of the answer: a list, or one for each vector."""
        wide = self.columns
        return entries if wide is None else [entries[at : at + wide] for at in range(0, len(entries), wide)]
