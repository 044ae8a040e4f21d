"""POST /quantile and its sister /v2/models/quantile against numpy.quantile, and what becomes of missing numbers."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporter.problem.families import FAMILIES
from exporter.problem.quantiles import METHODS
from tests.service import toy_models
from tests.service.asking import NPY, RAW, npy
from tests.service.conftest import InProcess, Server

QS = [0.0, 0.1, 0.25, 1 / 3, 0.5, 0.9, 1.0]


def bits(values: Any) -> list[int]:
    return np.asarray(values, np.float64).view(np.int64).tolist()


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_bit_equal_and_within_its_bound(client: InProcess, method: Any) -> None:
    rng = np.random.default_rng(1)
    vectors = [rng.normal(size=n) * 10.0 ** rng.uniform(-300, 300) for n in (1, 2, 3, 5, 8, 13, 32, 32)]
    body = {"vectors": [vector.tolist() for vector in vectors], "quantiles": QS, "method": method}
    exact = client.post("/quantile", json=body).json()
    expected = [np.quantile(vector, QS, method=method) for vector in vectors]
    assert bits(exact["quantiles"]) == bits(expected)
    assert list(exact) == ["quantiles"]
    loose = client.post("/quantile", json={**body, "grid": True}).json()
    error = np.abs(np.array(loose["quantiles"]) - np.array(expected))
    assert (error <= np.array(loose["error_bound"])).all()


@pytest.mark.parametrize("name", FAMILIES)
def test_all_families_ties_and_zeros(client: InProcess, name: str) -> None:
    rng = np.random.default_rng(7)
    x = (FAMILIES[name](rng, 20, 31, 24) - 0.5).astype(np.float64)
    x[:, ::5], x[:, 1::5] = 0.0, -0.0
    body = {"vectors": x.tolist(), "quantiles": QS}
    assert bits(client.post("/quantile", json=body).json()["quantiles"]) == bits(np.quantile(x, QS, axis=1).T)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_npy_and_raw_answer_in_float64_as_numpy_does(client: InProcess, dtype: str) -> None:
    x = np.random.default_rng(2).normal(size=(5, 20)).astype(dtype)
    query = "method=hazen&quantiles=0.1,0.5,.9"
    expected = np.quantile(x, [0.1, 0.5, 0.9], axis=1, method="hazen").T
    told = client.post(f"/quantile?{query}", content=npy(x), headers=NPY)
    assert bits(np.load(io.BytesIO(told.content))) == bits(expected)
    told = client.post(f"/quantile?{query}&dtype={dtype}&d=20", content=x.tobytes(), headers=RAW)
    assert bits(np.frombuffer(told.content).reshape(5, 3)) == bits(expected)
    told = client.post("/quantile?ranks=1,20&exact=true", content=npy(x), headers=NPY)
    assert np.load(io.BytesIO(told.content)).tolist() == np.sort(x, axis=1)[:, [0, 19]].astype(float).tolist()


def test_every_rank_of_every_length_that_fits(client: InProcess) -> None:
    for n in range(1, 34):
        x = np.random.default_rng(n).permutation(n) * 1.5
        body = {"vector": x.tolist(), "ranks": list(range(1, n + 1))}
        assert client.post("/quantile", json=body).json()["ranks"] == [np.sort(x).tolist()]


BAD = [
    ({}, "either"),
    ({"quantiles": [0.1], "ranks": [1]}, "either"),
    ({"quantiles": []}, "1 to 1024"),
    ({"quantiles": [0.5] * 1025}, "1 to 1024"),
    ({"quantiles": [1.5]}, "from 0 to 1"),
    ({"quantiles": [-0.1]}, "from 0 to 1"),
    ({"quantiles": [None]}, "from 0 to 1"),
    ({"quantiles": [True]}, "from 0 to 1"),
    ({"quantiles": [[0.5]]}, "from 0 to 1"),
    ({"quantiles": "0.5"}, "array"),
    ({"quantiles": 0.5}, "array"),
    ({"ranks": [0]}, "whole numbers"),
    ({"ranks": [1.5]}, "whole numbers"),
    ({"ranks": [4]}, "no rank 4"),
    ({"ranks": [10**30]}, ""),
    ({"ranks": [1], "method": "linear"}, "method"),
    ({"quantiles": [0.5], "method": "best"}, "method must be one of inverted_cdf"),
    ({"quantiles": [0.5], "method": 5}, "method"),
    ({"quantiles": [0.5], "even": "mean"}, "Unknown member 'even'"),
    ({"quantiles": [0.5], "nan": "drop"}, "nan must be one of"),
    ({"quantiles": [0.5], "nan": None}, "nan must be one of"),
]


@pytest.mark.parametrize(("options", "said"), BAD, ids=[json.dumps(case[0])[:40] for case in BAD])
@pytest.mark.parametrize("space", [b"", b" " * 30_000], ids=["whole", "in pieces"])
def test_wrong_options_are_named(client: InProcess, options: dict[str, Any], said: str, space: bytes) -> None:
    numbers = b"[1" + space + b", 2" + space + b", 3" + space + b"]"
    body = json.dumps({"vectors": [[1, 2, 3]], **options}).encode().replace(b"[1, 2, 3]", numbers)
    answer = client.post("/quantile", content=body)
    assert answer.status_code == 422
    assert said in answer.json()["detail"]


@pytest.mark.parametrize(
    "query",
    ["quantiles=", "quantiles=a", "quantiles=2", "quantiles=0.1,,0.2", "ranks=0", "ranks=1.5", "method=x", "even=mean"],
)
def test_wrong_queries_are_refused(client: InProcess, query: str) -> None:
    answer = client.post(f"/quantile?{query}", content=npy(np.ones((2, 3))), headers=NPY)
    assert answer.status_code == 422


def test_no_more_answers_than_can_be_told(connect: Callable[..., InProcess], models: Path) -> None:
    client = connect(models, max_vectors=4)
    body: dict[str, Any] = {"vectors": [[1, 2]] * 4, "quantiles": [i / 16 for i in range(17)]}
    assert "Too many answers" in client.post("/quantile", json=body).json()["detail"]
    body["quantiles"] = body["quantiles"][:16]
    assert client.post("/quantile", json=body).status_code == 200


def test_a_model_that_misses_is_replaced_for_the_answers_it_missed(
    connect: Callable[..., InProcess], tmp_path: Path
) -> None:
    risky = toy_models.description(9, construction="risky", failure_bound=0.01)
    toy_models.write(tmp_path, "risky", risky, wrong="always")
    toy_models.write(tmp_path, "safe", toy_models.description(15))
    client = connect(tmp_path)
    body = {"vectors": [[3, 1, 2], [5, 4]], "quantiles": [0.1, 0.5], "construction": "risky", "details": True}
    told = client.post("/quantile", json=body).json()
    assert told["quantiles"] == [np.quantile(v, [0.1, 0.5]).tolist() for v in ([3, 1, 2], [5, 4])]
    assert told["fallback"] == 4
    assert "safe" in told["models"]


X = [[3.0, float("nan"), 1.0, 2.0], [1.0, 2.0, 3.0, 9.0], [float("nan")] * 4]


@pytest.mark.parametrize("path", ["/median", "/quantile"])
@pytest.mark.parametrize("nan", ["omit", "propagate", "error", None])
@pytest.mark.parametrize("form", ["null", "NaN", "npy"])
@pytest.mark.parametrize("size", [1, 30_000], ids=["small", "in pieces"])
def test_missing_numbers(client: InProcess, path: str, nan: str | None, form: str, size: int) -> None:
    options: dict[str, Any] = {"nan": nan} if nan else {}
    per = 2 if path == "/quantile" else 1
    if form == "npy":
        query = "&".join([f"nan={nan}"] * bool(nan) + ["quantiles=0.5,0.5"] * (per == 2) + ["exact=true"])
        answer = client.post(f"{path}?{query}", content=npy(np.array(X)), headers=NPY)
    else:
        options |= {"quantiles": [0.5, 0.5]} if per == 2 else {}
        text = json.dumps({"vectors": X, **options}).replace("NaN", form).replace("9.0", "9.0" + " " * size)
        answer = client.post(path, content=text.encode())
    if nan in (None, "error"):
        assert answer.status_code == 422
        assert (answer.json()["vector"], answer.json()["index"]) == (0, 1)
        return
    assert answer.status_code == 200, answer.text
    if form == "npy":
        told = np.load(io.BytesIO(answer.content))
    else:
        told = np.array(answer.json()["medians" if per == 1 else "quantiles"], np.float64)
    first = 2.0 if nan == "omit" else np.nan
    expected = np.repeat([[first], [2.5], [np.nan]], per, axis=1)
    np.testing.assert_array_equal(told.reshape(3, per), expected)


def test_an_infinity_is_refused_whatever_becomes_of_nan(client: InProcess) -> None:
    answer = client.post("/median?nan=omit", content=npy(np.array([[1.0, np.inf, np.nan]])), headers=NPY)
    assert answer.status_code == 422


def infer(client: InProcess, tensor: dict[str, Any], **parameters: Any) -> Any:
    return client.post("/v2/models/quantile/infer", json={"inputs": [tensor], "parameters": parameters})


@pytest.mark.parametrize("quantiles", ["0.1,0.9", [0.1, 0.9]], ids=["text", "list"])
def test_quantiles_under_v2(client: InProcess, quantiles: Any) -> None:
    x = np.random.default_rng(3).normal(size=(4, 21))
    for datatype in ("FP64", "FP32"):
        values = x.astype("f8" if datatype == "FP64" else "f4")
        tensor = {"name": "x", "shape": [4, 21], "datatype": datatype, "data": values.ravel().astype(float).tolist()}
        told = infer(client, tensor, quantiles=quantiles, method="weibull", exact=True).json()
        (output,) = told["outputs"]
        assert (output["datatype"], output["shape"]) == ("FP64", [4, 2])
        assert bits(output["data"]) == bits(np.quantile(values, [0.1, 0.9], axis=1, method="weibull").T.ravel())
        assert told["parameters"]["fallback"] == 0
    assert client.get("/v2/models/quantile").json()["inputs"][0]["shape"] == [-1, -1]
    assert client.get("/v2/models/quantile/ready").json() == {"name": "quantile", "ready": True}
    assert client.get("/v2/models/quantile/versions/2").status_code == 404


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [([1, 3], {}), ([1, 0], {"ranks": "1"}), ([1, 3], {"ranks": [9]}), ([1, 3], {"ranks": {}}), ("x", {"ranks": "1"}),
     ([2, 3], {"ranks": "1"}), ([1, 10**9], {"ranks": "1"}), ([1, 3], {"quantiles": "a"}), ([1, True], {"ranks": "1"})],
)  # fmt: skip
def test_nonsense_under_v2_is_refused(client: InProcess, shape: Any, parameters: dict[str, Any]) -> None:
    tensor = {"name": "x", "shape": shape, "datatype": "FP64", "data": [1, 2, 3]}
    answer = infer(client, tensor, **parameters)
    assert answer.status_code == 400
    assert answer.json()["error"]


def test_tritonclient_asks_for_quantiles(server: Server) -> None:
    import tritonclient.http as triton

    x = np.random.default_rng(0).normal(size=(3, 30))
    tensor = triton.InferInput("x", x.shape, "FP64")
    tensor.set_data_from_numpy(x)
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    told = client.infer("quantile", [tensor], parameters={"quantiles": "0.25,0.75"}).as_numpy("y")
    client.close()
    assert bits(told) == bits(np.quantile(x, [0.25, 0.75], axis=1).T)
