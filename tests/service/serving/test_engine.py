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
from service.serving.options import MedianOptions, QuantileOptions
from service.statistics import ordered as solving
from tests.service import toy_models


@pytest.mark.parametrize(
    ("asked", "in_loop"),
    [((1, 1, None), True), ((4096, 1, None), False), ((1, 1000, None), False), ((16, 1, "wide"), False)],
    ids=["small", "many vectors", "many ranks", "long rows"],
)
def test_large_work_is_prepared_in_a_thread(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: tuple[int, int, str | None], in_loop: bool
) -> None:
    """A few bytes may ask for much work: many ranks, or rows of a long model that the request names."""
    toy_models.write(tmp_path, "wide", toy_models.description(8191))
    count, ranks, model = asked
    threads: list[bool] = []
    ordered = solving.to_ordered

    def watched(*arguments: Any) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return ordered(*arguments)

    monkeypatch.setattr(solving, "to_ordered", watched)
    x = np.random.default_rng(0).normal(size=(count, 9))

    async def scenario() -> np.ndarray:
        engine = Engine(Settings(models=models), registry.load([models, tmp_path]))
        options = QuantileOptions(ranks=tuple(range(1, 10)) * ranks, model=model)
        answer = await engine.answer(Question.matrix(x, options if ranks > 1 else MedianOptions(model=model)))
        engine.close()
        return answer.values

    want = np.tile(np.sort(x, axis=1), ranks) if ranks > 1 else np.median(x, axis=1)
    assert asyncio.run(scenario()).tolist() == want.tolist()
    assert set(threads) == {in_loop}
