"""The answer to a request, before it is written in a format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from service.serving.bodies import Question
from service.statistics.fed_grid import Floats
from service.statistics.solve import Answers
from service.statistics.vectors import Numbers


@dataclass(eq=False, slots=True)
class Answer:
    """`values` has an entry for each vector, or a row of them for several quantiles or ranks. NaN is the answer to a vector
    with numbers missing. `bounds` are those of the networks' own numbers, None for numpy's answers."""

    values: Numbers
    bounds: Floats | None
    found: Answers  # how they came about
    question: Question

    @property
    def about(self) -> dict[str, Any]:
        """The members beside the answers: bounds where they exist, and details where they were asked for."""
        members: dict[str, Any] = {} if self.bounds is None else {"error_bound": self.bounds.tolist()}
        if self.question.options.details:
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
