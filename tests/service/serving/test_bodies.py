"""Bodies in JSON, npy and raw, sent to the application: what is read, and how the rest is refused."""

from __future__ import annotations

import io
import json
import pickle
from typing import Any

import numpy as np
import pytest

from tests.service.asking import JSON, NPY, RAW, medians, npy, refused


def test_npy_of_integers_big_endian_and_one_vector(client: Any) -> None:
    for array in (np.array([5, 1, 9, 2]), np.array([5, 1, 9], ">f8"), np.array([[7]], np.uint8)):
        response = client.post("/median?exact=true", content=npy(array), headers=NPY)
        assert response.status_code == 200, response.text
        assert np.load(io.BytesIO(response.content))[0] == np.median(array)


BAD_JSON: list[tuple[bytes, int, dict[str, Any]]] = [
    (b'{"vectors": [[1, 2], [3, NaN]]}', 422, {"vector": 1, "index": 1}),
    (b'{"vectors": [[1, Infinity]]}', 422, {"vector": 0, "index": 1}),
    (b'{"vectors": [[1], [-Infinity]]}', 422, {"vector": 1, "index": 0}),
    (b'{"vectors": [[1, 1e400]]}', 422, {"vector": 0, "index": 1}),
    (b'{"vector": [1, ' + b"9" * 400 + b"]}", 422, {"vector": 0, "index": 1}),
    (b'{"vector": [1, ' + b"9" * 5000 + b"]}", 422, {"vector": 0, "index": 1}),
    (b'{"vectors": [[1, "2"]]}', 422, {"vector": 0, "index": 1}),
    (b'{"vectors": [[1, true]]}', 422, {"vector": 0, "index": 1}),
    (b'{"vectors": [[null]]}', 422, {"vector": 0, "index": 0}),
    (b'{"vectors": [[1, [2]]]}', 422, {"vector": 0, "index": 1}),
    (b'{"vectors": [[[1, 2], []]]}', 422, {"vector": 0, "index": 0}),
    (b'{"vector": [[1, 2], []]}', 422, {"vector": 0, "index": 0}),
    (b'{"vectors": [[1], [{"a": 1}]]}', 422, {"vector": 1, "index": 0}),
    (b'{"vectors": [[1], []]}', 422, {"vector": 1}),
    (b'{"vectors": [[1], 2]}', 422, {"vector": 1}),
    (b'{"vectors": ["12", [1]]}', 422, {"vector": 0}),
    (b'{"vectors": []}', 422, {}),
    (b'{"vectors": {}}', 422, {}),
    (b'{"vectors": null}', 422, {}),
    (b'{"vector": []}', 422, {"vector": 0}),
    (b'{"vector": [1], "vectors": [[1]]}', 422, {}),
    (b"{}", 422, {}),
    (b"[[1]]", 422, {}),
    (b"7", 422, {}),
    (b"", 400, {}),
    (b'{"vectors": [[1, 2', 400, {}),
    (b'{"vectors": [[1 2]]}', 400, {}),
    (b'{"vectors": [[1]]} x', 400, {}),
    (b"[" * 100_000, 400, {}),
    (b'{"vectors": ' + b"[" * 900 + b"]" * 900 + b"}", 422, {"vector": 0, "index": 0}),
    (b"\xff\xfe\x00", 400, {}),
    (b'{"vector": [1], "exact": 1}', 422, {}),
    (b'{"vector": [1], "even": "middle"}', 422, {}),
    (b'{"vector": [1], "even": null}', 422, {}),
    (b'{"vector": [1], "model": 5}', 422, {}),
    (b'{"vector": [1], "model": "../manifest"}', 404, {}),
    (b'{"vector": [1], "construction": "none"}', 404, {}),
    (b'{"vector": [1], "exakt": true}', 422, {}),
    (json.dumps({"vectors": [[1], [1.5] * 66]}).encode(), 422, {"vector": 1}),
    (json.dumps({"vectors": [[1]] * 4097}).encode(), 422, {}),
    (b'{"vector": [1, 2, 3], "model": "median-batcher-d64", "even": "lower"}', 200, {}),
    (b'{"vector": ' + json.dumps([1] * 63).encode() + b', "model": "median-batcher-d64"}', 200, {}),
    (b'{"vector": ' + json.dumps([1] * 65).encode() + b', "model": "median-batcher-d64"}', 422, {"vector": 0}),
]


@pytest.mark.parametrize(
    ("body", "status", "place"), BAD_JSON, ids=[case[0][:40].decode("latin1") for case in BAD_JSON]
)
def test_bad_json_is_refused_with_its_place(client: Any, body: bytes, status: int, place: dict[str, Any]) -> None:
    response = client.post("/median", content=body, headers=JSON)
    if status == 200:
        assert response.status_code == 200
        return
    problem = refused(response, status)
    assert {key: problem[key] for key in ("vector", "index") if key in problem} == place
    assert medians(client, [[3, 1, 2]])["medians"] == [2.0]


class Bomb:
    def __reduce__(self) -> Any:
        return (print, ("the pickle was loaded",))


HEADER = npy(np.zeros((2, 3)))

BAD_NPY = {
    "empty": b"",
    "no npy": b"hello world, this is not numpy",
    "cut header": HEADER[:40],
    "cut data": HEADER[:-1],
    "too much data": HEADER + b"0",
    "pickled": npy(np.array([Bomb()], object), allow_pickle=True),
    "pickle alone": pickle.dumps(Bomb()),
    "object dtype": HEADER.replace(b"'<f8'", b"'|O'  "),
    "code in the header": HEADER.replace(b"(2, 3)", b"f()   "),
    "negative shape": HEADER.replace(b"(2, 3)", b"(-2,3)"),
    "huge shape": HEADER.replace(b"(2, 3)", b"(9**9)"),
    "other version": HEADER[:6] + b"\x09" + HEADER[7:],
    "huge header": b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 100,
    "nested header": b"\x93NUMPY\x01\x00\x00\x0f" + b"(" * 3840,
    "three axes": npy(np.zeros((2, 2, 2))),
    "no axis": npy(np.zeros(())),
    "no vectors": npy(np.zeros((0, 3))),
    "empty vectors": npy(np.zeros((3, 0))),
    "fortran": npy(np.asfortranarray(np.zeros((2, 3)))),
    "complex": npy(np.zeros(3, complex)),
    "boolean": npy(np.zeros(3, bool)),
    "half": npy(np.zeros(3, np.float16)),
    "strings": npy(np.array(["a"])),
    "records": npy(np.zeros(2, "f8,i4")),
    "too long": npy(np.zeros(66)),
    "too many": npy(np.zeros((4097, 1))),
}


@pytest.mark.parametrize("name", BAD_NPY)
def test_bad_npy_is_refused(client: Any, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    response = client.post("/median", content=BAD_NPY[name], headers=NPY)
    assert 400 <= response.status_code < 500
    refused(response, response.status_code)
    assert "the pickle was loaded" not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ({"d": "3"}, b""),
        ({"d": "3"}, b"\0" * 11),
        ({"d": "3"}, b"\0" * 16),
        ({}, b"\0" * 12),
        ({"d": "0"}, b"\0" * 12),
        ({"d": "-3"}, b"\0" * 12),
        ({"d": "3.0"}, b"\0" * 12),
        ({"d": "٣"}, b"\0" * 12),
        ({"d": "9" * 5000}, b"\0" * 12),
        ({"d": "66"}, b"\0" * 264),
        ({"d": "3", "dtype": "float16"}, b"\0" * 12),
        ({"d": "1", "exact": "yes"}, b"\0" * 4),
        ({"d": "1", "even": "odd"}, b"\0" * 4),
        ({"d": "1", "depth": "3"}, b"\0" * 4),
    ],
)
def test_bad_raw_bodies_are_refused(client: Any, query: dict[str, str], body: bytes) -> None:
    refused(client.post("/median", content=body, params={"dtype": "float32", **query}, headers=RAW), 422)


@pytest.mark.parametrize("kind", [RAW, NPY], ids=["raw", "npy"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_binary_numbers_that_are_not_finite_are_located(client: Any, kind: dict[str, str], bad: float) -> None:
    values = np.ones((3, 4), np.float32)
    values[2, 3] = bad
    body = values.tobytes() if kind == RAW else npy(values)
    query = {"d": "4", "dtype": "float32"} if kind == RAW else {}
    problem = refused(client.post("/median", content=body, params=query, headers=kind), 422)
    assert (problem["vector"], problem["index"]) == (2, 3)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (True, True), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1 is 1, 3), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (2L, 3L), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (2if 1else 3, 3), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999, 99999999999999), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), 'shape': (2, 3), }",
        "{'descr': '<f8', 'fortran_order': 0, 'shape': (2, 3), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': [2, 3], }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (6), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), 'more': 'x', }",
        "{'descr': '\\\\d', 'fortran_order': False, 'shape': (2, 3), }",
        "{'descr': '<f16', 'fortran_order': False, 'shape': (1, 3), }",
        "{'descr': '|V8', 'fortran_order': False, 'shape': (2, 3), }",
        "{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (2, 3), }",
        "{'descr': '<f8', 'fortran_order': False}",
        "",
    ],
)
def test_a_hostile_npy_header_is_refused_in_silence(
    client: Any, header: str, capfd: pytest.CaptureFixture[str]
) -> None:
    text = header.encode() + b"\n"
    body = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + b"\0" * 48
    answer = client.post("/median", content=body, headers=NPY)
    assert refused(answer, answer.status_code)["status"] in (400, 422)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", ">f8", "|u1", "|i1", "<i2", ">u4", "<i8", ">u8"])
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_npy_numpy_writes_is_read(client: Any, dtype: str, version: tuple[int, int]) -> None:
    for array in (np.arange(12).reshape(4, 3).astype(dtype), np.arange(5).astype(dtype)):
        file = io.BytesIO()
        np.lib.format.write_array(file, array, version=version)
        response = client.post("/median?exact=true", content=file.getvalue(), headers=NPY)
        assert response.status_code == 200, response.text
        assert np.array_equal(np.load(io.BytesIO(response.content)), np.median(np.atleast_2d(array), axis=1))
