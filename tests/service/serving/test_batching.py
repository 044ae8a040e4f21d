"""Batches: shared, cut, fair, and harmless to those who share them. The model is real; only failures are arranged."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import REGISTRY

from service.errors import BusyError
from service.models import registry
from service.models.registry import LoadedModel
from service.process.metrics import settle
from service.process.settings import Settings
from service.serving.admission import Gate
from service.serving.batching import Job, Lane
from service.statistics.fed_grid import Floats
from tests.service import toy_models

D = 5


class Spy:
    """The model, noting the rows of every call, which waits for `go_on`; rows holding the poison make it fail. `pool` is
    where calls are run."""

    pool: Refusing

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        self.calls: list[int] = []
        self.poison = -1.0
        self.go_on = threading.Event()
        self.go_on.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def run(self, rows: Floats) -> Any:
        self.calls.append(len(rows))
        assert self.go_on.wait(20)
        if (rows == self.poison).any():
            raise RuntimeError("poisoned")
        return self.model.run(rows)


class Refusing(ThreadPoolExecutor):
    """A pool that has no thread to give when told so."""

    refusals = 0

    def submit(self, *arguments: Any, **options: Any) -> Any:
        if self.refusals:
            self.refusals -= 1
            raise RuntimeError("can't start new thread")
        return super().submit(*arguments, **options)


Scenario = Callable[[Lane, Spy], Coroutine[Any, Any, None]]


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., None]:
    """Run a scenario on a lane over a real session."""

    def run(scenario: Scenario, **options: Any) -> None:
        toy_models.write(tmp_path, "model", toy_models.description(D))
        spy = Spy(registry.load([tmp_path]).models["model"])
        settings = replace(Settings(), **{"threads": 1, **options})

        async def main() -> None:
            with Refusing(settings.inference_threads) as pool:
                spy.pool = pool
                lane = Lane(spy, settings, Gate(settings.queue), pool)  # type: ignore[arg-type]
                spy.calls.clear()
                await scenario(lane, spy)
                assert not lane.queue
                assert not lane.queue

        asyncio.run(main())

    return run


def rows(count: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).integers(0, 2**24, (count, D)).astype(np.float32) * np.float32(2**-24)


def right(outcome: Job, asked: Floats) -> bool:
    return outcome.counted[:, 0].tolist() == np.median(asked, axis=1).tolist()


@pytest.mark.parametrize("inline_ms", [0.0, 1000.0])
def test_concurrent_requests_share_a_call(play: Callable[..., None], inline_ms: float) -> None:
    async def scenario(lane: Lane, spy: Spy) -> None:
        asked = [rows(1 + i % 3, i) for i in range(10)]
        outcomes = await asyncio.gather(*(lane.run(part) for part in asked))
        assert spy.calls == [19]
        for outcome, part in zip(outcomes, asked, strict=True):
            assert right(outcome, part)
            assert outcome.batch_rows == 19

    play(scenario, inline_ms=inline_ms)


def test_batching_can_be_turned_off(play: Callable[..., None]) -> None:
    async def scenario(lane: Lane, spy: Spy) -> None:
        await asyncio.gather(*(lane.run(rows(1, i)) for i in range(5)))
        assert spy.calls == [1] * 5

    play(scenario, max_batch=1)


def test_batches_are_cut_to_the_cache(play: Callable[..., None]) -> None:
    async def scenario(lane: Lane, spy: Spy) -> None:
        asked = rows(100)
        outcome = await lane.run(asked)
        assert right(outcome, asked)
        assert max(spy.calls) == 25  # 1 KiB // (5 floats x 4 bytes x 2 layers)
        assert sum(spy.calls) == 100

    play(scenario, cache_kib=1)


def test_a_large_request_does_not_hold_back_a_small_one(play: Callable[..., None]) -> None:
    async def scenario(lane: Lane, spy: Spy) -> None:
        large = asyncio.create_task(lane.run(rows(400)))
        await asyncio.sleep(0)
        small = await lane.run(rows(1, 1))
        assert right(small, rows(1, 1))
        assert not large.done()
        assert right(await large, rows(400))

    play(scenario, max_batch=4, inline_ms=0)


def test_a_failing_neighbour_fails_alone(play: Callable[..., None]) -> None:
    async def scenario(lane: Lane, spy: Spy) -> None:
        spy.poison = 0.75
        bad = np.full((1, D), 0.75, np.float32)
        results = await asyncio.gather(
            *(lane.run(part) for part in (rows(2, 1), bad, rows(3, 2))), return_exceptions=True
        )
        assert isinstance(results[1], RuntimeError)
        assert right(results[0], rows(2, 1))  # type: ignore[arg-type]
        assert right(results[2], rows(3, 2))  # type: ignore[arg-type]
        assert spy.calls[0] == 6
        assert right(await lane.run(rows(1)), rows(1))

    play(scenario)


def test_a_full_gate_refuses_and_recovers() -> None:
    gate = Gate(3)
    with gate.admit(3):
        with pytest.raises(BusyError) as caught, gate.admit(1):
            raise AssertionError("let in")
        assert int(caught.value.headers["Retry-After"]) >= 1
    with gate.admit(5):  # larger than the limit, but alone
        assert gate.waiting == 5
    assert gate.waiting == 0


def test_a_cancelled_request_leaves_the_queue(play: Callable[..., None]) -> None:
    async def scenario(lane: Lane, spy: Spy) -> None:
        spy.go_on.clear()
        running = asyncio.create_task(lane.run(rows(1)))
        while not spy.calls:
            await asyncio.sleep(0)
        waiting = asyncio.create_task(lane.run(rows(50)))
        while sum(len(job.rows) - job.taken for job in lane.queue) < 50:
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        spy.go_on.set()
        assert right(await running, rows(1))
        assert spy.calls == [1]
        assert right(await lane.run(rows(1)), rows(1))

    play(scenario, inline_ms=0, max_batch=1)


@pytest.mark.parametrize("refusals", [1, 3])
def test_a_pool_without_threads_costs_the_requests_of_that_moment(play: Callable[..., None], refusals: int) -> None:
    async def scenario(lane: Lane, spy: Spy) -> None:
        spy.pool.refusals = refusals
        for i in range(refusals):
            with pytest.raises(RuntimeError, match="thread"):
                await asyncio.wait_for(lane.run(rows(3, i)), 10)
            assert isinstance(lane.failing, RuntimeError)
        for i in range(5):
            assert right(await asyncio.wait_for(lane.run(rows(2, i)), 10), rows(2, i))
        assert lane.failing is None
        assert lane.running == 0

    play(scenario, inline_ms=0)


def test_a_shared_call_that_fails_when_there_are_no_threads_answers_everybody(play: Callable[..., None]) -> None:
    async def scenario(lane: Lane, spy: Spy) -> None:
        spy.pool.refusals = 2
        spy.poison = 0.75
        bad = np.full((1, D), 0.75, np.float32)
        asked = (lane.run(part) for part in (rows(1, 1), rows(1, 2), rows(1, 3), bad))
        told = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 10)
        assert [type(each) for each in told] == [RuntimeError, RuntimeError, Job, RuntimeError]
        assert lane.running == 0
        assert right(await asyncio.wait_for(lane.run(rows(1)), 10), rows(1))

    play(scenario, inline_ms=1000)


@pytest.mark.parametrize("inline_ms", [0.0, 1e18])
def test_rows_that_no_memory_holds_cost_only_their_requests(play: Callable[..., None], inline_ms: float) -> None:
    async def scenario(lane: Lane, spy: Spy) -> None:
        endless = np.broadcast_to(rows(1), (2**42, D))  # joining two of them needs 160 TiB
        for _ in range(2):
            asked = (lane.run(part) for part in (endless, endless))
            told = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 10)
            assert all(isinstance(each, MemoryError) for each in told)
        assert lane.running == 0
        assert right(await asyncio.wait_for(lane.run(rows(2)), 10), rows(2))

    play(scenario, max_batch=2**50, cache_kib=2**50, queue=2**60, inline_ms=inline_ms)


def test_a_request_that_fails_in_parts_is_told_once(play: Callable[..., None]) -> None:
    async def scenario(lane: Lane, spy: Spy) -> None:
        spy.poison = 0.75
        failing = asyncio.create_task(lane.run(np.full((40, D), 0.75, np.float32)))
        await asyncio.sleep(0)
        assert right(await asyncio.wait_for(lane.run(rows(1)), 10), rows(1))
        with pytest.raises(RuntimeError, match="poisoned"):
            await failing
        while lane.running:
            await asyncio.sleep(0)
        assert sum(spy.calls) < 40

    play(scenario, max_batch=4, inline_ms=0, threads=2)


def test_what_is_under_way_is_the_gauge() -> None:
    gate = Gate(100)
    with gate.admit(12):
        settle()
        assert REGISTRY.get_sample_value("median_queue_rows") == 12
    settle()
    assert REGISTRY.get_sample_value("median_queue_rows") == 0
