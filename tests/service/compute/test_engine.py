"""The engine beside what test_app and test_short_way ask of it: turns that a large request leaves to others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.compute import engine as subject
from service.compute import registry
from service.compute.engine import Engine
from service.requests.bodies import Bundle, Question
from service.requests.options import MedianOptions
from service.scaling import scale
from service.settings import Settings


def test_many_lengths_leave_turns_to_others(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request of all lengths is begun a few at a time, however fast each of them is."""
    done: Counter[str] = Counter()

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            done[name] += 1
            return function(*arguments)

        return call

    found = registry.load([models])
    monkeypatch.setattr(registry.Registry, "median", counted("chosen", registry.Registry.median))
    monkeypatch.setattr(subject, "scale", counted("scaled", scale))
    rng = np.random.default_rng(0)
    vectors = [rng.normal(size=(1, n)) for n in range(1, 66)]
    question = Question([Bundle(x, [i]) for i, x in enumerate(vectors)], len(vectors), MedianOptions(exact=True))
    seen = [done.copy()]

    async def watch() -> None:
        while True:
            seen.append(done.copy())
            await asyncio.sleep(0)

    async def scenario() -> list[float]:
        watching = asyncio.create_task(watch())
        engine = Engine(Settings(models=models), found)
        answer = await engine.answers(question)
        watching.cancel()
        engine.close()
        return answer.medians

    assert asyncio.run(scenario()) == [float(np.median(x)) for x in vectors]
    assert done == {"chosen": 65, "scaled": 65}
    for earlier, later in zip(seen, [*seen[1:], done], strict=True):
        assert all(later[name] - earlier[name] <= subject.LENGTHS for name in done)
