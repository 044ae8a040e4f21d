"""The HTTP interface in one process, on real models: answers, errors, limits, metrics, documentation."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporter.problem.families import FAMILIES
from service.process import logs
from service.serving.formats import EXAMPLES
from tests.service import toy_models
from tests.service.asking import JSON, NPY, RAW, medians, npy, refused

MAX = 1.7976931348623157e308


def test_medians_of_different_lengths_in_one_request(client: Any) -> None:
    rng = np.random.default_rng(0)
    vectors = [rng.normal(size=n) * 10.0 ** rng.integers(-300, 300) for n in range(1, 66)]
    answer = medians(client, vectors, grid=True, details=True)
    expected = [np.median(vector) for vector in vectors]
    assert (np.abs(np.subtract(answer["medians"], expected)) <= answer["error_bound"]).all()
    assert answer["fallback"] == 0
    assert answer["models"] == ["median-batcher-d25", "median-batcher-d64", "median-batcher-d65"]
    assert medians(client, vectors) == {"medians": expected}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_exactly(client: Any, family: str) -> None:
    rng = np.random.default_rng(1)
    for n in (1, 2, 17, 24, 25, 40, 63, 64, 65):
        vectors = FAMILIES[family](rng, 8, n, 24)
        assert medians(client, list(vectors))["medians"] == np.median(vectors, axis=1).tolist()


@pytest.mark.parametrize("n", [2, 24, 26, 64])
def test_the_convention_for_even_lengths(client: Any, n: int) -> None:
    vector = np.random.default_rng(n).integers(0, 1000, n)
    ordered = np.sort(vector)
    low, high = ordered[n // 2 - 1], ordered[n // 2]
    for even, expected in (("lower", low), ("upper", high), ("mean", (low + high) / 2)):
        assert medians(client, [vector], even=even)["medians"] == [expected]


def test_one_vector_has_a_shorthand(client: Any) -> None:
    response = client.post("/median", json={"vector": [3, 1, 2]})
    assert response.json()["medians"] == [2.0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("grid", [True, False])
def test_raw_and_npy_answer_in_kind(client: Any, dtype: str, grid: bool) -> None:
    values = np.random.default_rng(2).normal(size=(5, 60)).astype(dtype)
    expected = np.median(values, axis=1)
    query = {"grid": str(grid).lower(), "details": "true"}
    raw = client.post("/median", content=values.tobytes(), headers=RAW, params={**query, "dtype": dtype, "d": 60})
    packed = client.post("/median", content=npy(values), headers=NPY, params=query)
    for response, answer in (
        (raw, np.frombuffer(raw.content, dtype)),
        (packed, np.load(io.BytesIO(packed.content), allow_pickle=False)),
    ):
        assert response.status_code == 200, response.text
        assert answer.dtype == dtype
        bound = float(response.headers.get("X-Median-Error-Bound", "0"))
        assert (np.abs(answer.astype(np.float64) - expected) <= bound).all()
        assert (bound > 0) == grid
        assert response.headers["X-Median-Models"] == "median-batcher-d64"
        assert "inference;dur=" in response.headers["Server-Timing"]
    plain = client.post("/median", content=npy(values), headers=NPY)
    assert np.load(io.BytesIO(plain.content)).tobytes() == expected.tobytes()
    assert not [name for name in plain.headers if name.startswith("x-median")]


def test_extremes_of_float64_are_answered(client: Any) -> None:
    vectors = [[MAX, -MAX, 0], [MAX, MAX], [5e-324, 0, -5e-324], [-0.0, -0.0], [1e300, 1, 2], [MAX, MAX, MAX]]
    assert medians(client, vectors)["medians"] == [0, MAX, 0, 0, 2, MAX]
    loose = medians(client, vectors, grid=True)
    for got, bound, want in zip(loose["medians"], loose["error_bound"], [0, MAX, 0, 0, 2, MAX], strict=True):
        assert abs(got / 2 - want / 2) <= bound / 2


def test_other_content_types_and_encodings(client: Any) -> None:
    refused(client.post("/median", content=b"1", headers={"Content-Type": "text/plain"}), 415)
    refused(client.post("/median", content=b"1", headers={**JSON, "Content-Encoding": "gzip"}), 415)
    response = client.post(
        "/median", content=b'{"vector": [1]}', headers={"Content-Type": "Application/JSON; charset=utf-8"}
    )
    assert response.status_code == 200


def test_unknown_paths_and_methods(client: Any) -> None:
    refused(client.get("/nothing"), 404)
    refused(client.get("/median"), 405)


def test_models_are_listed_described_and_downloaded(client: Any, models: Path) -> None:
    listed = client.get("/models").json()
    names = [model["name"] for model in listed["models"]]
    assert names == ["median-batcher-d25", "median-batcher-d64", "median-batcher-d65"]
    assert listed["left_out"] == {}
    described = client.get(f"/models/{names[0]}").json()
    assert described["description"]["construction"] == "batcher"
    file = client.get(f"/models/{names[0]}/file")
    assert file.content == (models / f"{names[0]}.onnx").read_bytes()
    for name in ("nothing", "..%2fmanifest.json", "%2e%2e", "..", "manifest"):
        assert client.get(f"/models/{name}").status_code in (404, 200 if name == ".." else 404)
        assert client.get(f"/models/{name}/file").status_code == 404


def test_a_body_that_is_too_large_is_refused_unread(connect: Callable[..., Any], models: Path) -> None:
    client = connect(models, max_body_mib=0.001)
    read = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(100):
            read += 1
            yield b"1" * 512

    declared = {**JSON, "Content-Length": "999999"}
    problem = refused(client.post("/median", content=chunks(), headers=declared), 413)
    assert "1048 bytes" in problem["detail"]
    assert refused(client.post("/median", content=chunks(), headers=JSON), 413)
    assert medians(client, [[1, 2, 3]])["medians"] == [2.0]


def test_the_api_key(connect: Callable[..., Any], models: Path) -> None:
    client = connect(models, api_key="sésame")
    for path in ("/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"):
        assert client.get(path).status_code == 200
    for headers in ({}, {"X-API-Key": "wrong"}, {"Authorization": "Bearer"}, {"Authorization": "Basic x"}):
        assert refused(client.get("/models", headers=headers), 401)
        assert refused(client.post("/median", content=b"{", headers=headers), 401)
        assert client.get("/v2", headers=headers).json()["error"]
    for key in ({b"X-API-Key": "sésame".encode()}, {b"Authorization": "Bearer sésame".encode()}):
        assert client.get("/models", headers=key).status_code == 200


def test_request_ids_are_kept_made_and_never_injected(client: Any) -> None:
    assert client.get("/healthz", headers={"X-Request-ID": "abc-1"}).headers["X-Request-ID"] == "abc-1"
    made = client.get("/healthz", headers={"X-Request-ID": 'x"} {"level": "fake'}).headers["X-Request-ID"]
    assert re.fullmatch(r"[0-9a-f]{12}-[0-9a-f]+", made)
    assert made != client.get("/healthz").headers["X-Request-ID"]


def test_log_lines_are_json_with_the_request_id(
    connect: Callable[..., Any], models: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    client = connect(models, log_level="info")
    client.post("/median", json={"vector": [1]}, headers={"X-Request-ID": "find-me"})

    async def record() -> None:
        client.engine.record()  # requests are logged in company

    client.wait(record())
    logs.flush()
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    (line,) = [line for line in lines if line.get("request_id") == "find-me"]
    assert (line["path"], line["status"], line["level"]) == ("/median", 200, "info")
    logs.configure("error")


def test_an_exception_is_logged_as_one_line() -> None:
    try:
        raise RuntimeError("two\nlines")
    except RuntimeError as error:
        record = logging.LogRecord(
            "service", logging.ERROR, "", 0, "failed", None, (type(error), error, error.__traceback__)
        )
    line = logs.Handler().format(record)
    assert "\n" not in line
    assert "two\nlines" in json.loads(line)["exception"]


def test_metrics_count_what_happened(client: Any) -> None:
    def value(name: str, text: str) -> float:
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))

    before = client.get("/metrics").text
    medians(client, [[1, 2, 3]] * 5)
    client.post("/median", content=b"{")
    after = client.get("/metrics").text
    good = 'median_requests_total{route="/median",status="200"}'
    bad = 'median_requests_total{route="/median",status="400"}'
    vectors = 'median_vectors_total{model="median-batcher-d25"}'
    rows = 'median_batch_rows_sum{model="median-batcher-d25"}'
    for name, difference in ((good, 1), (bad, 1), (vectors, 5), (rows, 5)):
        assert value(name, after) - value(name, before) == difference
    for name in ("median_queue_seconds", "median_inference_seconds", "median_failures", "median_certificate_misses"):
        assert name in after


def test_the_examples_of_the_documentation_run(client: Any) -> None:
    document = client.get("/openapi.json").json()
    for path in ("/median", "/quantile"):
        examples = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["examples"]
        assert examples == EXAMPLES[path]
        for example in examples.values():
            assert client.post(path, json=example["value"]).status_code == 200
    assert client.get("/docs").status_code == 200
    assert {"/median", "/models", "/models/{name}/file", "/models/reload", "/v2/models/{name}/infer"} <= set(
        document["paths"]
    )


def test_a_probabilistic_miss_is_answered_by_an_exact_model(connect: Callable[..., Any], tmp_path: Path) -> None:
    risky = toy_models.description(9, construction="risky", failure_bound=0.01)
    toy_models.write(tmp_path, "missing", risky, wrong="sorted")
    toy_models.write(tmp_path, "safe", toy_models.description(15))
    client = connect(tmp_path)
    vectors = [[5, 3, 1, 4, 2, 9, 8, 7, 6], [1, 2, 3, 4, 5, 6, 7, 8, 9], [9, 8, 7, 6, 5, 4, 3, 2, 1]]
    for grid in (False, True):
        answer = medians(client, vectors, construction="risky", grid=grid, details=True)
        assert answer["medians"] == [5.0, 5.0, 5.0]
        assert answer["models"] == ["missing", "safe"]
        assert answer["fallback"] == 1
    assert medians(client, vectors, details=True)["models"] == ["safe"]  # unasked, nobody gets a risk
    assert 'median_certificate_misses_total{model="missing"} 2.0' in client.get("/metrics").text
    raw = np.array(vectors, "<f4").tobytes()
    response = client.post("/median?dtype=float32&d=9&model=missing&details=true", content=raw, headers=RAW)
    assert response.headers["X-Median-Fallback"] == "1"
    tensor = {"name": "x", "shape": [3, 9], "datatype": "FP32", "data": vectors}
    infer = client.post("/v2/models/missing/infer", json={"inputs": [tensor]}).json()
    assert infer["outputs"][0]["data"] == [5, 5, 5]
    assert infer["parameters"]["fallback"] == 1


def test_no_answer_rather_than_a_wrong_one(connect: Callable[..., Any], tmp_path: Path) -> None:
    toy_models.write(tmp_path, "liar", toy_models.description(9), wrong="always")
    client = connect(tmp_path)
    problem = refused(client.post("/median", json={"vector": [1, 2, 3, 4, 5]}), 500)
    assert "counting refutes" in problem["detail"]


def test_a_request_that_takes_too_long_is_told_so(connect: Callable[..., Any], tmp_path: Path) -> None:
    toy_models.write(tmp_path, "slow", toy_models.description(3), slow=800)
    client = connect(tmp_path, timeout_s=0.05)
    refused(client.post("/median", json={"vectors": [[1, 2, 3]] * 64}), 504)
    assert client.get("/healthz").status_code == 200


def test_a_body_that_never_ends_times_out(connect: Callable[..., Any], models: Path) -> None:
    client = connect(models, timeout_s=0.1)

    async def trickle() -> AsyncIterator[bytes]:
        yield b'{"vector"'
        await asyncio.Event().wait()
        yield b""

    # httpx's transport in this process reads the body lazily, as a socket would deliver it
    refused(client.post("/median", content=trickle(), headers=JSON), 408)


def test_a_full_queue_answers_429(connect: Callable[..., Any], tmp_path: Path) -> None:
    toy_models.write(tmp_path, "slow", toy_models.description(3), slow=100)
    client = connect(tmp_path, queue=2, max_batch=1, threads=1, inline_ms=0)
    responses = client.together([lambda http: http.post("/median", json={"vector": [1, 2, 3]}) for _ in range(30)])
    statuses = {response.status_code for response in responses}
    assert statuses == {200, 429}
    busy = next(response for response in responses if response.status_code == 429)
    assert int(refused(busy, 429) is not None)
    assert int(busy.headers["Retry-After"]) >= 1


def test_reload_picks_up_new_files_and_keeps_sessions(connect: Callable[..., Any], tmp_path: Path) -> None:
    toy_models.write(tmp_path, "first", toy_models.description(3))
    client = connect(tmp_path)
    kept = client.engine.registry.models["first"]
    refused(client.post("/median", json={"vector": [1, 2, 3, 4]}), 422)
    toy_models.write(tmp_path, "second", toy_models.description(5))
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    toy_models.enter(tmp_path, tmp_path / "broken.onnx", toy_models.description(7))
    asked = [lambda http: http.post("/median", json={"vector": [1, 2, 3]}) for _ in range(50)]
    *answers, listed = client.together([*asked, lambda http: http.post("/models/reload")])
    assert {answer.status_code for answer in answers} == {200}
    assert [model["name"] for model in listed.json()["models"]] == ["first", "second"]
    assert "broken.onnx" in listed.json()["left_out"]
    assert client.engine.registry.models["first"] is kept
    assert client.post("/median", json={"vector": [1, 2, 3, 4], "details": True}).json()["models"] == ["second"]


def test_without_models_the_service_is_alive_but_not_ready(connect: Callable[..., Any], tmp_path: Path) -> None:
    client = connect(tmp_path)
    assert client.get("/healthz").status_code == 200
    refused(client.get("/readyz"), 503)
    assert "No model" in refused(client.post("/median", json={"vector": [1]}), 503)["detail"]


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_of_a_key_is_read_in_any_case_and_needed(
    connect: Callable[..., Any], models: Path, scheme: str
) -> None:
    client = connect(models, api_key="sesame")
    assert client.get("/models", headers={"Authorization": f"{scheme} sesame"}).status_code == 200
    for wrong in ("sesame", f"{scheme}sesame", f"{scheme} sesam", "Basic sesame", f"{scheme} "):
        refused(client.get("/models", headers={"Authorization": wrong}), 401)


def test_a_mean_beyond_float64_on_the_way_is_still_the_mean(client: Any) -> None:
    large = 1.7e308
    with np.errstate(over="ignore"):
        assert np.median([large, large]) == np.inf  # numpy adds first
    vectors, want = [[large, large], [-large, -large], [large, large * 0.9, 0, large]], [large, -large, large * 0.95]
    assert np.allclose(medians(client, vectors)["medians"], want, rtol=1e-15, atol=0)
    answer = medians(client, vectors, grid=True)
    assert (np.abs(np.subtract(answer["medians"], want)) <= answer["error_bound"]).all()
    packed = client.post("/median", content=npy(np.array([large, large])), headers=NPY)
    assert np.load(io.BytesIO(packed.content))[0] == large


def test_the_answer_without_options_is_numpys(client: Any) -> None:
    rng = np.random.default_rng(5)
    vectors: list[Any] = [[0.1, 0.2, 0.3], [1, 2, 3, 4, 1e12], [1, 2, 3, 1e12]]
    vectors += [rng.normal(size=n) for n in rng.integers(1, 66, 150)]
    vectors += [rng.normal(size=n) * 10.0 ** rng.uniform(-30, 30, n) for n in rng.integers(1, 66, 150)]
    answer = medians(client, vectors)
    assert np.array(answer["medians"]).tobytes() == np.array([np.median(vector) for vector in vectors]).tobytes()
    assert list(answer) == ["medians"]
    for dtype in ("float32", "float64"):
        for n in (32, 33):
            x = (rng.normal(size=(50, n)) * 10.0 ** rng.uniform(-9, 9, (50, n))).astype(dtype)
            told = client.post("/median", content=npy(x), headers=NPY)
            assert np.load(io.BytesIO(told.content)).tobytes() == np.median(x, axis=1).tobytes()


def test_grid_asks_for_the_number_of_the_network(client: Any) -> None:
    answer = medians(client, [[0.1, 0.23, 0.3]], grid=True)
    assert 0 < abs(answer["medians"][0] - 0.23) <= answer["error_bound"][0]
    assert medians(client, [[0.1, 0.2, 0.3]], exact=False)["medians"] == [0.2]  # `exact` has no effect
