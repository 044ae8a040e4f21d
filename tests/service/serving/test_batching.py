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

from service.errors import BadInputError, BusyError
from service.models import registry
from service.models.registry import LoadedModel
from service.process.metrics import settle
from service.process.settings import Settings
from service.serving.admission import Gate
from service.serving.batching import STEP, Calls, Wanted
from service.statistics.fed_grid import Floats
from service.statistics.layout import Target
from service.statistics.padding import padding_for
from service.statistics.solve import Answers, Models, Use
from service.statistics.statistic import Statistic
from service.statistics.vectors import Vectors
from tests.service import toy_models

D = 5


class Spy(Models):
    """The model, noting the rows of every call, which waits for `go_on`. A call fails that has the least number of its grid
    as often as the poison says."""

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        self.calls: list[int] = []
        self.poison = -1
        self.go_on = threading.Event()
        self.go_on.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def choose(self, n: int, target: Target) -> Use:
        found = padding_for(self.model.columns, self.model.d, n, target)
        assert found is not None
        return Use(self, found)

    def instead(self, n: int, target: Target, failed: Any) -> None:
        return None

    def run(self, rows: Floats) -> Any:
        self.calls.append(len(rows))
        assert self.go_on.wait(20)
        if ((rows == rows.min(axis=1)[:, None]).sum(axis=1) == self.poison).any():
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


class Asked:
    """Requests of one service, all for medians."""

    def __init__(self, spy: Spy, calls: Calls, pool: Refusing) -> None:
        self.spy, self.calls, self.pool = spy, calls, pool
        self.wanted = Wanted((Statistic(),), spy)

    def small(self, asked: Floats) -> Coroutine[Any, Any, Answers]:
        model: Any = self.spy
        return self.calls.shared(self.wanted, Vectors.matrix(asked), model)

    def large(self, asked: Floats, step: int = STEP) -> Coroutine[Any, Any, Answers]:
        return self.calls.alone(self.wanted.solving(Vectors.matrix(asked), step), in_loop=False)


Scenario = Callable[[Asked], Coroutine[Any, Any, None]]


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., None]:
    """Run a scenario over a real session."""

    def run(scenario: Scenario, **options: Any) -> None:
        toy_models.write(tmp_path, "model", toy_models.description(D))
        spy = Spy(registry.load([tmp_path]).models["model"])
        settings = replace(Settings(), **{"threads": 1, **options})

        async def main() -> None:
            with Refusing(settings.inference_threads) as pool:
                calls = Calls(settings, Gate(settings.queue), pool)
                await scenario(Asked(spy, calls, pool))
                await asyncio.gather(*calls.tasks)
                assert not calls.open

        asyncio.run(main())

    return run


def rows(count: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).permuted(np.arange(D * count, dtype=np.float32).reshape(count, D), axis=1)


POISON = np.array([[1.0, 1.0, 1.0, 2.0, 3.0]], np.float32)


def right(answers: Any, asked: Floats) -> bool:
    return bool(answers.values[0].tolist() == np.median(asked, axis=1).tolist())


@pytest.mark.parametrize("inline_ms", [0.0, 1000.0])
def test_concurrent_requests_share_a_call(play: Callable[..., None], inline_ms: float) -> None:
    async def scenario(service: Asked) -> None:
        asked = [rows(1 + i % 3, i) for i in range(10)]
        answers = await asyncio.gather(*map(service.small, asked))
        assert service.spy.calls == [19]
        for answer, part in zip(answers, asked, strict=True):
            assert right(answer, part)
            assert answer.batch_size == 19
            assert sum(answer.answered.values()) == len(part)

    play(scenario, inline_ms=inline_ms)


def test_requests_of_other_lengths_share_a_call(play: Callable[..., None]) -> None:
    async def scenario(service: Asked) -> None:
        asked = [rows(3, i)[:, : 1 + 2 * (i % 3)] for i in range(9)]
        answers = await asyncio.gather(*map(service.small, asked))
        assert service.spy.calls == [27]
        assert all(map(right, answers, asked))

    play(scenario)


def test_batching_can_be_turned_off(play: Callable[..., None]) -> None:
    async def scenario(service: Asked) -> None:
        await asyncio.gather(*(service.small(rows(1, i)) for i in range(5)))
        assert service.spy.calls == [1] * 5

    play(scenario, max_batch=1)


def test_batches_are_cut_to_the_cache(play: Callable[..., None]) -> None:
    async def scenario(service: Asked) -> None:
        assert right(await service.large(rows(100)), rows(100))
        assert max(service.spy.calls) == 25  # 1 KiB // (5 floats x 4 bytes x 2 layers)
        assert sum(service.spy.calls) == 100

    play(scenario, cache_kib=1)


@pytest.mark.parametrize("small", [True, False], ids=["small", "one step"])
def test_a_large_request_does_not_hold_back_another(play: Callable[..., None], small: bool) -> None:
    async def scenario(service: Asked) -> None:
        large = asyncio.create_task(service.large(rows(4000), step=20 * D))
        await asyncio.sleep(0)
        assert right(await (service.small if small else service.large)(rows(1, 1)), rows(1, 1))
        assert not large.done()
        assert right(answers := await large, rows(4000))
        assert answers.queue_s > 0

    play(scenario, inline_ms=0)


def test_a_failing_neighbour_fails_alone(play: Callable[..., None]) -> None:
    async def scenario(service: Asked) -> None:
        service.spy.poison = 3
        parts = rows(2, 1), POISON, rows(3, 2)
        results: list[Any] = await asyncio.gather(*map(service.small, parts), return_exceptions=True)
        assert isinstance(results[1], RuntimeError)
        assert right(results[0], rows(2, 1))
        assert right(results[2], rows(3, 2))
        assert service.spy.calls[0] == 6
        assert right(await service.small(rows(1)), rows(1))

    play(scenario)


def test_numbers_that_are_refused_are_those_of_one_request(play: Callable[..., None]) -> None:
    async def scenario(service: Asked) -> None:
        parts = rows(2, 1), np.full((1, D), np.inf, np.float32), rows(3, 2)
        results: list[Any] = await asyncio.gather(*map(service.small, parts), return_exceptions=True)
        assert isinstance(results[1], BadInputError)
        assert results[1].members == {"vector": 0, "index": 0}
        assert right(results[0], rows(2, 1))
        assert right(results[2], rows(3, 2))

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


def test_a_cancelled_request_is_not_solved(play: Callable[..., None]) -> None:
    async def scenario(service: Asked) -> None:
        service.spy.go_on.clear()
        running = asyncio.create_task(service.small(rows(1)))
        while not service.spy.calls:
            await asyncio.sleep(0)
        waiting = asyncio.create_task(service.small(rows(50)))
        while not service.calls.open:
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        service.spy.go_on.set()
        assert right(await running, rows(1))
        assert right(await service.small(rows(1)), rows(1))
        assert sum(service.spy.calls) == 2

    play(scenario, inline_ms=0)


@pytest.mark.parametrize("refusals", [1, 3])
def test_a_pool_without_threads_costs_the_requests_of_that_moment(play: Callable[..., None], refusals: int) -> None:
    async def scenario(service: Asked) -> None:
        service.pool.refusals = refusals
        for i in range(refusals):
            with pytest.raises(RuntimeError, match="thread"):
                await asyncio.wait_for(service.small(rows(3, i)), 10)
        for i in range(5):
            assert right(await asyncio.wait_for(service.small(rows(2, i)), 10), rows(2, i))

    play(scenario, inline_ms=0)


def test_a_call_that_fails_is_remembered_until_one_succeeds(play: Callable[..., None]) -> None:
    async def scenario(service: Asked) -> None:
        service.spy.poison = 3
        with pytest.raises(RuntimeError, match="poisoned"):
            await service.large(np.tile(POISON, (40, 1)))
        assert [model.name for model in service.calls.failing] == [service.spy.name]
        assert right(await service.small(rows(1)), rows(1))
        assert not service.calls.failing
        assert sum(service.spy.calls) < 40

    play(scenario, max_batch=4)


def test_what_is_under_way_is_the_gauge() -> None:
    gate = Gate(100)
    with gate.admit(12):
        settle()
        assert REGISTRY.get_sample_value("median_queue_rows") == 12
    settle()
    assert REGISTRY.get_sample_value("median_queue_rows") == 0
