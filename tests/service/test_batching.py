"""Batches: shared, cut, fair, and harmless to those who share them. The model is real; only failures are arranged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service import registry
from service.batching import Gate, Lane, Outcome
from service.errors import BusyError
from service.registry import Model
from service.scaling import Floats
from service.settings import Settings
from tests.service import standin

D = 5


class Spy:
    """The model, noting the rows of every call; rows holding the poison make a call fail."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.calls: list[int] = []
        self.poison = -1.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def run(self, rows: Floats) -> Floats:
        self.calls.append(len(rows))
        if (rows == self.poison).any():
            raise RuntimeError("poisoned")
        return self.model.run(rows)


Scenario = Callable[[Lane, Spy], Coroutine[Any, Any, None]]


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., None]:
    """Run a scenario on a lane over a real session."""

    def run(scenario: Scenario, slow: int = 0, **options: Any) -> None:
        standin.write(tmp_path, "model", standin.description(D), slow=slow)
        spy = Spy(registry.load([tmp_path]).models["model"])
        settings = replace(Settings(), **{"threads": 1, **options})

        async def main() -> None:
            with ThreadPoolExecutor(settings.inference_threads) as pool:
                lane = Lane(spy, settings, Gate(settings.queue), pool)  # type: ignore[arg-type]
                spy.calls.clear()
                await scenario(lane, spy)
                assert lane.gate.waiting == lane.queued_rows == 0
                assert not lane.queue

        asyncio.run(main())

    return run


def rows(count: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).integers(0, 2**24, (count, D)).astype(np.float32) * np.float32(2**-24)


def right(outcome: Outcome, asked: Floats) -> bool:
    return [low for low, _ in outcome.found[0]] == np.median(asked, axis=1).tolist()


@pytest.mark.parametrize("inline_ms", [0.0, 1000.0])
def test_concurrent_requests_share_a_call(play: Callable[..., None], inline_ms: float) -> None:
    async def scenario(lane: Lane, spy: Spy) -> None:
        asked = [rows(1 + i % 3, i) for i in range(10)]
        outcomes = await asyncio.gather(*(lane.run(part, (0,)) for part in asked))
        assert spy.calls == [19]
        for outcome, part in zip(outcomes, asked, strict=True):
            assert right(outcome, part)
            assert outcome.batch_rows == 19

    play(scenario, inline_ms=inline_ms)


def test_batching_can_be_turned_off(play: Callable[..., None]) -> None:
    async def scenario(lane: Lane, spy: Spy) -> None:
        await asyncio.gather(*(lane.run(rows(1, i), (0,)) for i in range(5)))
        assert spy.calls == [1] * 5

    play(scenario, max_batch=1)


def test_batches_are_cut_to_the_cache(play: Callable[..., None]) -> None:
    async def scenario(lane: Lane, spy: Spy) -> None:
        asked = rows(100)
        outcome = await lane.run(asked, (0,))
        assert right(outcome, asked)
        assert max(spy.calls) == 25  # 1 KiB // (5 floats x 4 bytes x 2 layers)
        assert sum(spy.calls) == 100

    play(scenario, cache_kib=1)


def test_a_large_request_does_not_hold_back_a_small_one(play: Callable[..., None]) -> None:
    async def scenario(lane: Lane, spy: Spy) -> None:
        large = asyncio.create_task(lane.run(rows(400), (0,)))
        await asyncio.sleep(0)
        small = await lane.run(rows(1, 1), (0,))
        assert right(small, rows(1, 1))
        assert not large.done()
        assert right(await large, rows(400))

    play(scenario, max_batch=4, inline_ms=0)


def test_a_failing_neighbour_fails_alone(play: Callable[..., None]) -> None:
    async def scenario(lane: Lane, spy: Spy) -> None:
        spy.poison = 0.75
        bad = np.full((1, D), 0.75, np.float32)
        results = await asyncio.gather(
            *(lane.run(part, (0,)) for part in (rows(2, 1), bad, rows(3, 2))), return_exceptions=True
        )
        assert isinstance(results[1], RuntimeError)
        assert right(results[0], rows(2, 1))  # type: ignore[arg-type]
        assert right(results[2], rows(3, 2))  # type: ignore[arg-type]
        assert spy.calls[0] == 6
        assert right(await lane.run(rows(1), (0,)), rows(1))

    play(scenario)


def test_the_delay_gathers_what_comes_later(play: Callable[..., None]) -> None:
    async def late(lane: Lane) -> Outcome:
        await asyncio.sleep(0.01)
        return await lane.run(rows(1, 2), (0,))

    async def scenario(lane: Lane, spy: Spy) -> None:
        await asyncio.gather(lane.run(rows(1), (0,)), late(lane))
        assert spy.calls == [2]
        spy.calls.clear()
        await asyncio.gather(lane.run(rows(5), (0,)), lane.run(rows(5), (0,)))  # a full batch does not wait
        assert spy.calls[0] == 6

    play(scenario, batch_delay_ms=500, max_batch=6)


def test_a_full_queue_refuses_and_recovers(play: Callable[..., None]) -> None:
    async def scenario(lane: Lane, spy: Spy) -> None:
        first = asyncio.create_task(lane.run(rows(3), (0,)))
        await asyncio.sleep(0)
        with pytest.raises(BusyError) as caught:
            await lane.run(rows(1), (0,))
        assert int(caught.value.headers["Retry-After"]) >= 1
        assert right(await first, rows(3))
        assert right(await lane.run(rows(5), (0,)), rows(5))  # larger than the queue, but alone

    play(scenario, queue=3, inline_ms=0)


def test_a_cancelled_request_leaves_the_queue(play: Callable[..., None]) -> None:
    async def scenario(lane: Lane, spy: Spy) -> None:
        running = asyncio.create_task(lane.run(rows(1), (0,)))
        await asyncio.sleep(0.001)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await lane.run(rows(50), (0,))
        await running
        assert sum(spy.calls) < 51
        assert right(await lane.run(rows(1), (0,)), rows(1))

    play(scenario, slow=150, inline_ms=0, max_batch=1)
