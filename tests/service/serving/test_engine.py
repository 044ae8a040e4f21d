"""The engine beside what test_app and test_gateway ask of it: work that would keep others waiting goes to a thread."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.models import registry
from service.process.settings import Settings
from service.serving.bodies import Question
from service.serving.engine import Engine
from service.serving.options import MedianOptions
from service.statistics import ordered as solving


@pytest.mark.parametrize(("count", "in_loop"), [(1, True), (4096, False)])
def test_many_vectors_are_prepared_in_a_thread(
    models: Path, monkeypatch: pytest.MonkeyPatch, count: int, in_loop: bool
) -> None:
    threads: list[bool] = []
    ordered = solving.to_ordered

    def watched(*arguments: Any) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return ordered(*arguments)

    monkeypatch.setattr(solving, "to_ordered", watched)
    x = np.random.default_rng(0).normal(size=(count, 9))

    async def scenario() -> np.ndarray:
        engine = Engine(Settings(models=models), registry.load([models]))
        answer = await engine.answers(Question.matrix(x, MedianOptions()))
        engine.close()
        return answer.values

    assert asyncio.run(scenario()).tolist() == np.median(x, axis=1).tolist()
    assert set(threads) == {in_loop}
