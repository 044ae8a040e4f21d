"""Reloads: the newest one wins, and no request waits for one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.models import registry
from tests.service import toy_models
from tests.service.conftest import InProcess
from tests.waiting import until

Connect = Callable[..., InProcess]


def test_an_older_reload_never_replaces_a_newer_one(
    connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy_models.write(tmp_path, "first", toy_models.description(3))
    client = connect(tmp_path)
    real, has_read, go_on = registry.load, threading.Event(), threading.Event()

    def load(*arguments: Any) -> Any:
        found = real(*arguments)
        if not has_read.is_set():
            has_read.set()
            go_on.wait(20)
        return found

    monkeypatch.setattr(registry, "load", load)
    older = asyncio.run_coroutine_threadsafe(client.http.post("/models/reload"), client.loop)
    assert has_read.wait(20)
    toy_models.write(tmp_path, "second", toy_models.description(5))
    newer = asyncio.run_coroutine_threadsafe(client.http.post("/models/reload"), client.loop)
    threading.Timer(0.3, go_on.set).start()
    newer.result(20)
    older.result(20)
    assert sorted(client.engine.registry.models) == ["first", "second"]


def test_no_request_waits_for_a_reload(connect: Connect, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = connect(models)
    reloads, go_on, real = [], threading.Event(), registry.load

    def load(*arguments: Any) -> Any:
        reloads.append(arguments)
        go_on.wait(30)
        return real(*arguments)

    monkeypatch.setattr(registry, "load", load)
    asked = [asyncio.run_coroutine_threadsafe(client.http.post("/models/reload"), client.loop) for _ in range(2)]
    until(lambda: reloads)
    vectors = np.random.default_rng(1).normal(size=(2000, 25))  # enough to be prepared in a thread
    answer = asyncio.run_coroutine_threadsafe(
        client.http.post("/median", json={"vectors": vectors.tolist(), "exact": True}), client.loop
    )
    try:
        assert answer.result(15).json()["medians"] == np.median(vectors, axis=1).tolist()
    finally:
        go_on.set()
    assert [each.result(20).status_code for each in asked] == [200, 200]


def test_a_model_that_failed_after_it_was_unloaded_is_not_asked_again(connect: Connect, models: Path) -> None:
    """A request under way keeps the model that it began with. Readiness does not depend on that model any more."""
    client = connect(models)
    (old, *_) = client.engine.registry.models.values()
    toy_models.write(models.parent / "other", "other", toy_models.description(5))
    client.engine.use(registry.load([models.parent / "other"]))
    client.engine.calls.failing[old] = RuntimeError("it failed")
    old.__dict__["input_name"] = "nothing"  # no call succeeds
    assert client.get("/readyz").status_code == 200
    assert not client.engine.calls.failing
