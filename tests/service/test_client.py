"""The client against a real server: as a library and as a command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from exporter.problem.families import FAMILIES
from service.client import Client, ServiceError
from service.client.__main__ import main
from tests.service.compare_with_numpy import compare
from tests.service.conftest import Server
from tests.service.random_requests import is_right


@pytest.mark.parametrize("format", ["json", "npy", "raw"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_client_agrees_with_numpy(server: Server, format: str, dtype: str) -> None:
    values = np.random.default_rng(0).normal(size=(6, 33)).astype(dtype)
    with Client(server.url) as client:
        answer = client.median(values, format=format, details=True)
        # JSON carries float64 whatever came in: the mean of two is then rounded in float64
        expected = np.median(values.astype(np.float64) if format == "json" else values, axis=1)
        assert answer.medians.tobytes() == expected.tobytes()
        loose = client.median(values, format=format, grid=True)
        assert loose.error_bound is not None
        assert (np.abs(loose.medians - expected) <= loose.error_bound).all()
        assert {model["name"] for model in client.models()} >= set(answer.models)


def test_refusals_are_exceptions_with_the_details(server: Server) -> None:
    with Client(server.url) as client, pytest.raises(ServiceError) as caught:
        client.median([[1.0], [float("nan")]])
    assert caught.value.status == 422


@pytest.mark.parametrize("format", ["json", "npy", "raw"])
def test_the_command_prints_a_table_and_writes_a_report(
    server: Server, format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.json"
    np.save(tmp_path / "normal.npy", np.random.default_rng(0).normal(size=(40, 64)))
    data = ["--in", str(tmp_path / "normal.npy")]
    arguments = ["--url", server.url, "--concurrency", "4", "--format", format]
    assert main([*arguments, *data, "--model", "median-batcher-d64", "--out", str(out)]) == 0
    table = capsys.readouterr().out
    assert "answers that differ from numpy.median  0\n" in table
    assert "p99" in table
    report = json.loads(out.read_text())
    assert report["differ_from_numpy"] == report["beyond_bound"] == 0
    assert report["grid_differ_from_numpy"] > 30, "normal numbers are not on a grid"
    assert report["largest_error"] > 0
    assert report["models"] == ["median-batcher-d64"]
    assert set(report["service_ms"]) == {"p50", "p95", "p99"}


@pytest.mark.parametrize("format", ["json", "npy", "raw", "csv", "arrow", "feather"])
def test_quantiles_agree_with_numpy(server: Server, format: str) -> None:
    values = np.random.default_rng(0).normal(size=(6, 30))
    with Client(server.url) as client:
        answer = client.quantile(values, [0.1, 0.9], method="weibull", format=format)
        assert answer.quantiles.tobytes() == np.quantile(values, [0.1, 0.9], axis=1, method="weibull").T.tobytes()
        assert client.quantile(values, ranks=[1], format=format).quantiles.shape == (6, 1)
        values[0, 0] = np.nan
        assert np.isnan(client.median(values, format=format, nan="propagate").medians).tolist() == [True] + [False] * 5


def test_errors_of_the_service_and_of_the_network_are_one_line(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--url", server.url, "--d", "9", "--n", "3", "--family", "ties"]) == 0
    assert main(["--url", server.url, "--d", "66", "--n", "1"]) == 2
    assert "at most 65 values" in capsys.readouterr().err
    assert main(["--url", "http://127.0.0.1:1", "--d", "3", "--n", "1"]) == 2
    assert "does not answer" in capsys.readouterr().err


def test_long_numbers_in_large_requests(server: Server) -> None:
    """Thousands of numbers of 24 characters each, both ways: more than some writers reserve room for."""
    rng = np.random.default_rng(3)
    vectors = [(rng.random(rng.integers(1, 65)) - 0.5) * 10.0 ** -rng.uniform(250, 300) for _ in range(2000)]
    with Client(server.url) as client:
        for _ in range(3):
            answer = client.median(vectors)
            assert answer.medians.tolist() == [np.median(vector) for vector in vectors]


@pytest.mark.parametrize("family", FAMILIES)
def test_random_requests_are_bit_equal(server: Server, family: str) -> None:
    """`python tests/benchmarks/bench_service.py requests` sends more, and longer ones."""
    rng = np.random.default_rng(len(family))
    with Client(server.url) as client:
        assert all(is_right(client, rng, family, 32) for _ in range(12))


def test_random_requests_under_concurrency_are_numpys(server: Server) -> None:
    done, wrong = compare(server.url, 1500, longest=32, threads=4)
    assert done >= 1500
    assert wrong == 0
