"""Open Inference Protocol v2, with the real Triton client over a socket, and by hand for what that client never sends."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
import pytest

from tests.service.conftest import Server

triton = pytest.importorskip("tritonclient.http")
MODEL = "median-batcher-d64"


@pytest.fixture
def remote(server: Server) -> Any:
    client = triton.InferenceServerClient(server.url.removeprefix("http://"))
    yield client
    client.close()


def test_health_and_metadata(remote: Any) -> None:
    assert remote.is_server_live()
    assert remote.is_server_ready()
    assert remote.is_model_ready(MODEL)
    assert remote.is_model_ready(MODEL, "1")
    assert not remote.is_model_ready("nothing")
    assert remote.get_server_metadata()["extensions"] == ["binary_tensor_data"]
    metadata = remote.get_model_metadata(MODEL)
    assert metadata["inputs"][0]["shape"] == [-1, 64]
    assert metadata["outputs"][0]["datatype"] == "FP32"
    assert remote.get_model_metadata(MODEL, "1") == metadata


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False, None])
@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
def test_inference(remote: Any, binary_in: bool, binary_out: bool | None, datatype: str) -> None:
    names = remote.get_model_metadata(MODEL)
    values = np.random.default_rng(0).normal(size=(7, 64)).astype("f4" if datatype == "FP32" else "f8")
    tensor = triton.InferInput(names["inputs"][0]["name"], values.shape, datatype)
    tensor.set_data_from_numpy(values, binary_data=binary_in)
    output = names["outputs"][0]["name"]
    outputs = None if binary_out is None else [triton.InferRequestedOutput(output, binary_data=binary_out)]
    result = remote.infer(MODEL, [tensor], outputs=outputs, request_id="seven", model_version="1")
    answer = result.get_response()
    assert answer["id"] == "seven"
    assert answer["parameters"]["fallback"] == 0
    got = result.as_numpy(output)
    assert got.shape == (7, 1)
    assert got.dtype == values.dtype
    assert got[:, 0].tobytes() == np.median(values, axis=1).tobytes()


def test_errors_reach_the_client_as_the_protocol_says(remote: Any) -> None:
    values = np.zeros((1, 63), np.float32)
    tensor = triton.InferInput("x", values.shape, "FP32")
    tensor.set_data_from_numpy(values)
    with pytest.raises(triton.InferenceServerException):
        remote.infer(MODEL, [tensor])
    with pytest.raises(triton.InferenceServerException, match="no model"):
        remote.infer("nothing", [tensor])
    with pytest.raises(triton.InferenceServerException, match="Compressed"):
        remote.infer(MODEL, [tensor], request_compression_algorithm="gzip")


def good(client: Any, **changes: Any) -> dict[str, Any]:
    name = client.get(f"/v2/models/{MODEL}").json()["inputs"][0]["name"]
    return {"name": name, "shape": [1, 64], "datatype": "FP32", "data": list(range(64)), **changes}


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"shape": [64]},
        {"shape": [2, 64]},
        {"shape": [0, 64]},
        {"shape": [True, 64]},
        {"shape": [-1, 64]},
        {"shape": [10**9, 64]},
        {"shape": "64"},
        {"datatype": "INT64"},
        {"datatype": 5},
        {"data": None},
        {"data": "numbers"},
        {"data": [1, 2]},
        {"data": [*range(63), "x"]},
        {"data": [*range(63), True]},
        {"data": [*range(63), None]},
        {"data": [*range(63), 1e39]},
        {"data": [*range(63), 10**400]},
        {"parameters": 5},
        {"parameters": {"binary_data_size": 256}},
        {"parameters": {"binary_data_size": "x"}},
    ],
    ids=str,
)
def test_bad_tensors_are_refused(client: Any, change: dict[str, Any]) -> None:
    response = client.post(f"/v2/models/{MODEL}/infer", json={"inputs": [good(client, **change)]})
    assert response.status_code == 400
    assert response.json()["error"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"inputs": []}',
        b'{"inputs": [1]}',
        b'{"inputs": {}}',
        b"[" * 50_000,
        b'{"inputs": [{}, {}]}',
        b'{"inputs": [{"data": [NaN]}]}',
        b'{"id": "\\ud800", "inputs": [{"name": "x", "shape": [1, 64], "datatype": "FP32", "data": [1]}]}',
        b'{"inputs": [{"name": "\\ud800", "shape": [1, 64], "datatype": "FP32", "data": [1]}]}',
        b'{"id": "a", "id": "b", "inputs": []}',
        b'{"inputs": [{"data": [1], "data": [1]}]}',
        b'{"inputs": [{"name": "x", "shape": [1, 64], "datatype": "FP32", "data": [[1, 2], [3]]}]}',
        b'{"inputs": [{"name": "x", "shape": [1, 64], "datatype": "FP32", "data": [[[1]]]}]}',
    ],
)
def test_bad_bodies_are_refused(client: Any, body: bytes) -> None:
    response = client.post(f"/v2/models/{MODEL}/infer", content=body)
    assert response.status_code == 400
    assert response.json()["error"]


def test_a_tensor_with_half_a_surrogate_pair_for_a_name(client: Any) -> None:
    """A good request but for the id, which could not be sent back."""
    body = json.dumps({"id": "\ud800", "inputs": [good(client)]}).encode()
    response = client.post(f"/v2/models/{MODEL}/infer", content=body)
    assert response.status_code == 400
    assert "surrogate" in response.json()["error"]


@pytest.mark.parametrize("extra", [{"id": 5}, {"outputs": [{"name": "other"}]}, {"outputs": 5}, {"parameters": []}])
def test_bad_requests_around_a_good_tensor(client: Any, extra: dict[str, Any]) -> None:
    response = client.post(f"/v2/models/{MODEL}/infer", json={"inputs": [good(client)], **extra})
    assert response.status_code == (200 if extra == {"parameters": []} else 400)


def test_nested_data_and_the_place_of_a_bad_number(client: Any) -> None:
    matrix = np.arange(128.0).reshape(2, 64).tolist()
    tensor = good(client, shape=[2, 64], data=matrix)
    response = client.post(f"/v2/models/{MODEL}/infer", json={"inputs": [tensor]})
    assert response.json()["outputs"][0]["data"] == [31.5, 95.5]
    matrix[1][3] = "x"
    response = client.post(f"/v2/models/{MODEL}/infer", json={"inputs": [tensor]})
    assert "(vector 1) (index 3)" in response.json()["error"]


@pytest.mark.parametrize("length", ["x", "-1", "999999", "٣"])
def test_a_wrong_header_length(client: Any, length: str) -> None:
    body = json.dumps({"inputs": [good(client)]}).encode()
    headers = [(b"Inference-Header-Content-Length", length.encode())]
    assert client.post(f"/v2/models/{MODEL}/infer", content=body, headers=headers).status_code == 400


def test_binary_that_is_not_finite_or_too_short(client: Any) -> None:
    for data, said in ((np.full(64, np.nan, "<f4").tobytes(), "not a finite"), (b"\0" * 255, "255 bytes")):
        tensor = good(client, parameters={"binary_data_size": len(data)})
        del tensor["data"]
        header = json.dumps({"inputs": [tensor]}).encode()
        headers = {"Inference-Header-Content-Length": str(len(header))}
        response = client.post(f"/v2/models/{MODEL}/infer", content=header + data, headers=headers)
        assert response.status_code == 400
        assert said in response.json()["error"]


def test_other_versions_and_unknown_paths(client: Any) -> None:
    assert client.get(f"/v2/models/{MODEL}/versions/2").status_code == 404
    assert client.get("/v2/models/nothing/ready").json()["error"]
    assert client.get("/v2/nothing").json()["error"]


def test_v2_over_the_socket_by_hand(server: Server) -> None:
    assert httpx.get(server.url + "/v2").json()["name"] == "onnx-median"
