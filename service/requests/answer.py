"""What a request is told, before it is written in a format."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np

from service.scaling import Floats


@dataclass(eq=False)
class Answer:
    """One entry a vector, and how they were served."""

    dtype: np.dtype[Any]
    medians: list[float]
    error_bound: list[float]
    models: list[str]
    fallback: list[bool]
    batch_size: int = 0
    queue_s: float = 0.0
    inference_s: float = 0.0
    total_s: float = 0.0

    @classmethod
    def blank(cls, count: int, dtype: np.dtype[Any]) -> Answer:
        return cls(dtype, [nan] * count, [nan] * count, [""] * count, [False] * count)

    @property
    def array(self) -> Floats:
        """The medians as numbers of the caller's type."""
        return np.array(self.medians, self.dtype)
