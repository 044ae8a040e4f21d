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
def test_the_command_prints_a_table_and_writes_report_and_picture(
    server: Server, format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, picture = tmp_path / "report.json", tmp_path / "report.png"
    np.save(tmp_path / "normal.npy", np.random.default_rng(0).normal(size=(40, 64)))
    data = ["--in", str(tmp_path / "normal.npy"), "--compare"]
    arguments = ["--url", server.url, "--concurrency", "4", "--format", format]
    files = ["--out", str(out), "--plot", str(picture)]
    assert main([*arguments, *data, "--model", "median-batcher-d64", *files]) == 0
    table = capsys.readouterr().out
    assert "answers that differ from numpy.median  0\n" in table
    assert "p99" in table
    report = json.loads(out.read_text())
    assert report["differ_from_numpy"] == report["beyond_bound"] == 0
    assert report["grid_differ_from_numpy"] > 30, "normal numbers are not on a grid"
    assert report["largest_error"] > 0
    assert report["models"] == ["median-batcher-d64"]
    assert set(report["service_ms"]) == {"p50", "p95", "p99"}
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_users_own_vectors(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "data.csv"
    table.write_text("1, 2, 3\n\n4;5\n1e300 -2.5 7 8\n")
    matrix = tmp_path / "data.npy"
    np.save(matrix, np.arange(12).reshape(3, 4))
    for path, count in ((table, 3), (matrix, 3)):
        assert main(["--url", server.url, "--in", str(path), "--compare"]) == 0
        assert f"{count} of length" in capsys.readouterr().out


def printed(server: Server, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["--url", server.url, *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_file_is_answered_line_by_line(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "numbers.csv"
    path.write_text("1, 2, 4\n\n4;5\n1e300 -2.5 7 8\n")
    assert printed(server, capsys, "--in", str(path)) == ["2.0", "4.5", "7.5"]
    path.write_text("3\n1\n2\n")
    assert printed(server, capsys, "--in", str(path)) == ["2.0"], "a single column"
    assert printed(server, capsys, "--in", str(path), "--by", "rows") == ["3.0", "1.0", "2.0"]
    path.write_text('price,"a, b"\n3,1\n1,\n2,5\n')
    assert main(["--url", server.url, "--in", str(path)]) == 2
    assert "not a number" in capsys.readouterr().err
    told = printed(server, capsys, "--in", str(path), "--nan", "omit")
    assert told == ["price\t2.0", "a, b\t3.0"]
    told = printed(
        server, capsys, "--in", str(path), "--columns", "price", "--quantiles", "0,0.25", "--method", "hazen"
    )
    assert told == ["price\t1.0\t" + repr(float(np.quantile([3, 1, 2], 0.25, method="hazen")))]
    assert printed(server, capsys, "--in", str(path), "--columns", "price", "--ranks", "3") == ["price\t3.0"]
    np.save(tmp_path / "m.npy", np.arange(3000.0).reshape(1500, 2))
    assert len(printed(server, capsys, "--in", str(tmp_path / "m.npy"))) == 1500


@pytest.mark.parametrize("format", ["json", "npy", "raw", "csv", "arrow", "feather"])
def test_quantiles_agree_with_numpy(server: Server, format: str) -> None:
    values = np.random.default_rng(0).normal(size=(6, 30))
    with Client(server.url) as client:
        answer = client.quantile(values, [0.1, 0.9], method="weibull", format=format)
        assert answer.quantiles.tobytes() == np.quantile(values, [0.1, 0.9], axis=1, method="weibull").T.tobytes()
        assert client.quantile(values, ranks=[1], format=format).quantiles.shape == (6, 1)
        values[0, 0] = np.nan
        assert np.isnan(client.median(values, format=format, nan="propagate").medians).tolist() == [True] + [False] * 5


@pytest.mark.parametrize("content", ["1,x\n", None])
def test_a_bad_file_is_one_line(content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "data.csv"
    if content is not None:
        path.write_text(content)
    assert main(["--in", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("service.client: ")
    assert error.count("\n") == 1


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
