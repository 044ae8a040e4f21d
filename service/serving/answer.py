"""The answer to a request, before it is written in a format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from service.statistics.scaling import Floats
from service.statistics.solve import Answers
from service.statistics.vectors import Numbers


@dataclass(eq=False)
class Answer:
    """`values` has an entry for each vector, or a row of them for several quantiles or ranks. NaN is the answer to a vector
    with numbers missing. `bounds` are those of the networks' own numbers, None for numpy's answers."""

    values: Numbers
    bounds: Floats | None
    found: Answers  # how they came about
    told: str = "medians"  # the name of the answers
    labels: list[str] = field(default_factory=lambda: ["median"])
    names: list[str] | None = None  # of the vectors, where a table gives them
    details: bool = False

    @property
    def about(self) -> dict[str, Any]:
        """The members beside the answers: bounds where they exist, and details where they were asked for."""
        members: dict[str, Any] = {} if self.bounds is None else {"error_bound": self.bounds.tolist()}
        if self.details:
            found = self.found
            members |= {
                "models": sorted(found.models),
                "fallback": found.fallback,
                "batch_size": found.batch_size,
                "timings": {
                    "queue_ms": found.queue_s * 1e3,
                    "inference_ms": found.inference_s * 1e3,
                    "total_ms": found.total_s * 1e3,
                },
            }
        return members
