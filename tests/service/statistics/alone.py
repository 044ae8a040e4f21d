"""The exact core without a service: every call of a model is made immediately."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from service.statistics.solve import Answers, Counted, ModelCall, Solving


def run(solving: Solving, model: Callable[[ModelCall], Counted]) -> Answers:
    """The answers of a solution."""
    counted: Any = None
    while True:
        try:
            call = solving.send(counted)
        except StopIteration as end:
            answer: Answers = end.value
            return answer
        counted = model(call)
