"""The answer to a request, before it is written in a format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from service.statistics.scaling import Floats
from service.statistics.vectors import Numbers


@dataclass(eq=False)
class Served:
    """How a request was served: which models answered, how many answers another model had to give because counting refuted
    the first one, the rows of its largest onnxruntime call, and seconds."""

    models: list[str] = field(default_factory=list)
    fallback: int = 0
    batch_size: int = 0
    queue_s: float = 0.0
    inference_s: float = 0.0
    total_s: float = 0.0


@dataclass(eq=False)
class Answer:
    """`values` has an entry for each vector, or a row of them for several quantiles or ranks. NaN is the answer to a vector
    with numbers missing. `bounds` are those of the networks' own numbers, None for numpy's answers."""

    values: Numbers
    bounds: Floats | None
    served: Served
    told: str = "medians"  # the name of the answers
    labels: list[str] = field(default_factory=lambda: ["median"])
    names: list[str] | None = None  # of the vectors, where a table gives them
    details: bool = False

    @property
    def about(self) -> dict[str, Any]:
        """The members beside the answers: bounds where they exist, and details where they were asked for."""
        members: dict[str, Any] = {} if self.bounds is None else {"error_bound": self.bounds.tolist()}
        if self.details:
            served = self.served
            members |= {
                "models": served.models,
                "fallback": served.fallback,
                "batch_size": served.batch_size,
                "timings": {
                    "queue_ms": served.queue_s * 1e3,
                    "inference_ms": served.inference_s * 1e3,
                    "total_ms": served.total_s * 1e3,
                },
            }
        return members
