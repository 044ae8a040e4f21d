"""What a fault leaves behind: the answer of the moment, what readiness says of it, and the service afterwards."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.models.registry import LoadedModel
from service.statistics.fed_grid import Floats
from tests.service import toy_models
from tests.service.conftest import InProcess

Connect = Callable[..., InProcess]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MemoryError(), 503),
        (RuntimeError("can't start new thread"), 503),
        (RuntimeError("std::bad_alloc"), 503),
        (RuntimeError("some fault of onnxruntime"), 500),
    ],
)
def test_readiness_tells_the_truth_during_and_after_a_fault(
    connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    def fail(model: LoadedModel, rows: Floats) -> Any:
        raise error

    toy_models.write(tmp_path, "model", toy_models.description(5))
    client = connect(tmp_path, build=False)
    run = LoadedModel.run
    monkeypatch.setattr(LoadedModel, "run", fail)
    assert client.get("/readyz").status_code == 200  # nothing has failed yet
    for _ in range(3):
        answer = client.post("/median", json={"vector": [3, 1, 2]})
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        assert client.get("/readyz").status_code == 503
        assert client.get("/v2/health/ready").status_code == 503
        assert client.get("/v2/models/model/ready").status_code == 503
    assert client.get("/healthz").status_code == 200
    monkeypatch.setattr(LoadedModel, "run", run)
    assert client.get("/readyz").status_code == 200
    assert client.get("/v2/models/model/ready").json() == {"name": "model", "ready": True}
    assert client.post("/median", json={"vector": [3, 1, 2]}).json()["medians"] == [2.0]


def test_a_request_of_many_lengths_is_let_in_as_a_whole(connect: Connect, models: Path) -> None:
    client = connect(models, queue=4)
    vectors = [np.random.default_rng(n).normal(size=n).tolist() for n in range(1, 9)]
    for _ in range(5):
        answer = client.post("/median", json={"vectors": vectors})
        assert answer.status_code == 200, answer.text
        assert answer.json()["medians"] == [np.median(vector) for vector in vectors]
    assert client.engine.gate.waiting == 0


@pytest.mark.parametrize("bad", [[1, None], [1, "x"], [[1], [2]], [1e999]])
def test_a_request_that_fails_on_its_way_to_the_queue_leaves_nothing_there(
    connect: Connect, models: Path, bad: Any
) -> None:
    client = connect(models, queue=4)
    for _ in range(5):
        body = f'{{"vectors": [[1, 2], {str(bad).replace("None", "null").replace("inf", "1e999")}, [1, 2, 3]]}}'
        answer = client.post("/median", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code in (400, 422)
    x = np.array([[1.0, 2.0, np.nan]] * 3, "f4")
    for _ in range(5):
        headers = {"Content-Type": "application/octet-stream"}
        assert client.post("/median?dtype=float32&d=3", content=x.tobytes(), headers=headers).status_code == 422
    assert client.engine.gate.waiting == 0


def test_vectors_that_have_to_be_run_again_are_not_refused_by_their_own_request(
    connect: Connect, tmp_path: Path
) -> None:
    toy_models.write(tmp_path, "doubtful", toy_models.description(9, failure_bound=0.1), wrong="sorted")
    toy_models.write(tmp_path, "exact", toy_models.description(9))
    client = connect(tmp_path, build=False, queue=1)
    for _ in range(3):
        answer = client.post(
            "/median", json={"vectors": [list(range(9)), list(range(8)), [5] * 9], "model": "doubtful"}
        )
        assert answer.status_code in (200, 422), answer.text
        answer = client.post("/median", json={"vectors": [list(range(9))] * 3, "model": "doubtful", "details": True})
        assert answer.json()["medians"] == [4.0] * 3
        assert answer.json()["fallback"] == 3
    assert client.engine.gate.waiting == 0


def test_figures_that_cannot_be_counted_cost_no_answer(connect: Connect, models: Path) -> None:
    client = connect(models)

    def fail(value: float) -> None:
        raise OSError(28, "No space left on device")

    for model in client.engine.registry.models.values():
        meter = client.engine.calls.meter(model)
        meter.batch_rows = meter.inference = meter.queue = meter.vectors = fail
    for _ in range(3):
        assert client.post("/median", json={"vectors": [[3, 1, 2]] * 9}).json()["medians"] == [2.0] * 9
        assert client.get("/metrics").status_code == 200


def test_the_gauge_of_waiting_rows_is_zero_when_idle(connect: Connect, models: Path) -> None:
    client = connect(models)
    client.post("/median", json={"vectors": [[3, 1, 2]] * 9})
    assert re.search(r"^median_queue_rows 0\.0$", client.get("/metrics").text, re.M)
