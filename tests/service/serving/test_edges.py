"""Requests at the edges of the formats, each of which was once answered with a wrong number, a wrong type or a 500."""

from __future__ import annotations

import csv
import io
import socket
import struct
import time
from types import SimpleNamespace
from typing import Any

import flatbuffers  # type: ignore[import-untyped]
import httpx
import numpy as np
import pyarrow as pa
import pytest

from service.models.filters import LoadedFilter
from tests.service.asking import NPY, RAW, npy, refused
from tests.service.conftest import InProcess, Server
from tests.waiting import until

CSV, STREAM = {"Content-Type": "text/csv"}, {"Content-Type": "application/vnd.apache.arrow.stream"}


def cells(answer: httpx.Response) -> list[list[str]]:
    assert answer.status_code == 200, answer.text
    return [line.split(",") for line in answer.text.splitlines()]


def test_raw_numbers_need_their_type(client: InProcess) -> None:
    problem = refused(client.post("/median?d=3", content=bytes(24), headers=RAW), 422)
    assert "dtype=float32" in problem["detail"]


@pytest.mark.parametrize("nan", ["omit", "propagate"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_answers_of_nan_have_the_type_of_the_numbers(client: InProcess, nan: str, dtype: str) -> None:
    x = np.full((3, 4), np.nan, dtype)
    raw = client.post(f"/median?d=4&dtype={dtype}&nan={nan}", content=x.tobytes(), headers=RAW)
    assert np.isnan(np.frombuffer(raw.content, dtype)).tolist() == [True] * 3
    stored = np.load(io.BytesIO(client.post(f"/median?nan={nan}", content=npy(x), headers=NPY).content))
    assert (stored.dtype, stored.shape) == (np.dtype(dtype), (3,))


@pytest.mark.parametrize("dtype", ["<i8", ">i8", "<u8"])
def test_integers_are_exact_or_refused(client: InProcess, dtype: str) -> None:
    good = np.array([[2**53, 2**53 - 1, 2**53 - 3]], dtype)
    answer = client.post("/quantile?ranks=1,2", content=npy(good), headers=NPY)
    assert np.load(io.BytesIO(answer.content)).tolist() == [[2**53 - 3, 2**53 - 1]]
    wide = np.array([[1, 2, 3], [1, 2**53 + 1, 3]], dtype)
    answer = client.post("/quantile?ranks=3", content=npy(wide), headers=NPY)
    if answer.status_code == 200:
        assert np.load(io.BytesIO(answer.content)).tolist() == [[3], [2**53 + 1]]
    else:
        assert (refused(answer, 422)["vector"], answer.json()["index"]) == (1, 1)
    table = pa.table({"a": wide[1].astype(dtype[1:])})
    assert "2^53" in refused(client.post("/median", content=stream(table), headers=STREAM), 422)["detail"]


def stream(table: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def test_lines_may_end_in_several_ways(client: InProcess) -> None:
    """A column of text makes every line as long as a block of the reader."""
    rows = [f"{i},{'x' * 1_000_000}" + ("\r" if i % 2 else "\n") for i in range(1, 9)]
    answer = client.post("/median?columns=a", content=("a,b\n" + "".join(rows)).encode(), headers=CSV)
    assert cells(answer) == [["column", "median"], ["a", "4.5"]]
    assert (answer.headers["x-median-rows"], answer.headers["x-median-columns"]) == ("8", "1")
    for end in ("\r", "\n", "\r\n"):
        text = end.join(["a,b", "1,5", "2,7", "9,6", ""])
        assert cells(client.post("/median", content=text.encode(), headers=CSV))[1:] == [["a", "2.0"], ["b", "6.0"]]


def test_blank_lines_take_no_memory(client: InProcess) -> None:
    """4096 columns and a million blank lines: a matrix of 32 GiB, were they rows."""
    names = ",".join(f"c{i}" for i in range(4096))
    numbers = ",".join(map(str, range(4096)))
    answer = client.post("/median", content=f"{names}\n{numbers}\n".encode() + b"\n" * 1_000_000, headers=CSV)
    assert cells(answer)[-1] == ["c4095", "4095.0"]
    assert answer.headers["x-median-rows"] == "1"


@pytest.mark.parametrize(
    ("text", "query", "rows"),
    [
        ("1,2\n3,4\n5,9", "", 3),
        ("1,2\n3,4\n5,9", "?header=true", 2),
        ("a,2\n3,4\n5,9", "", 2),
        ("a,b\n3,4\n5,9", "?header=true", 2),
        ("1,NA\n3,4\n5,9", "?nan=omit", 3),
        (".5,-1e3\n3,4\n5,9", "", 3),
        ("1_0,2\n3,4\n5,9", "", 2),
    ],
)
def test_a_first_line_of_numbers_is_data(client: InProcess, text: str, query: str, rows: int) -> None:
    answer = client.post("/median" + query, content=text.encode(), headers=CSV)
    assert answer.status_code == 200, answer.text
    assert (answer.headers["x-median-rows"], answer.headers["x-median-columns"]) == (str(rows), "2")


def big_endian(values: list[float]) -> bytes:
    """A stream of one column of float64 whose schema says that its numbers are big-endian."""
    b = flatbuffers.Builder(256)
    name = b.CreateString("a")
    b.StartObject(1)
    b.PrependInt16Slot(0, 2, 0)  # double precision
    kind = b.EndObject()
    b.StartVector(4, 0, 4)
    children = b.EndVector()
    b.StartObject(7)
    for slot, offset in ((0, name), (3, kind), (5, children)):
        b.PrependUOffsetTRelativeSlot(slot, offset, 0)
    b.PrependUint8Slot(2, 3, 0)  # floating point
    field = b.EndObject()
    b.StartVector(4, 1, 4)
    b.PrependUOffsetTRelative(field)
    fields = b.EndVector()
    b.StartObject(4)
    b.PrependInt16Slot(0, 1, 0)  # big
    b.PrependUOffsetTRelativeSlot(1, fields, 0)
    schema = b.EndObject()
    b.StartObject(5)
    b.PrependInt16Slot(0, 4, 0)
    b.PrependUint8Slot(1, 1, 0)  # a schema
    b.PrependUOffsetTRelativeSlot(2, schema, 0)
    b.Finish(b.EndObject())
    head = bytes(b.Output())
    head += bytes(-len(head) % 8)
    plain = stream(pa.table({"a": values}))
    batch = plain[8 + struct.unpack("<I", plain[4:8])[0] :]
    data, at = np.array(values, ">f8").tobytes(), 8 + struct.unpack("<I", batch[4:8])[0]
    return struct.pack("<iI", -1, len(head)) + head + batch[:at] + data + batch[at + len(data) :]


def test_big_endian_numbers_are_swapped(client: InProcess) -> None:
    body = big_endian([1.0, 2.0, 3.5, 4.0, 5.0])
    answer = client.post("/median", content=body, headers=STREAM)
    assert answer.status_code == 200, answer.text
    assert pa.ipc.open_stream(answer.content).read_all().to_pydict() == {"column": ["a"], "median": [3.5]}


def test_names_that_need_quotes_in_an_answer(client: InProcess) -> None:
    table = pa.table({"a\u2028b": [1.0], "c\nd": [2.0], "\u00e4\U0001f600": [3.0]})
    answer = client.post("/median", content=stream(table), headers={**STREAM, "Accept": "text/csv"})
    rows = list(csv.reader(io.StringIO(answer.text)))
    assert rows[1:] == [["a\u2028b", "1.0"], ["c\nd", "2.0"], ["\u00e4\U0001f600", "3.0"]]


@pytest.mark.parametrize("kind", [None, "", "application/x-www-form-urlencoded", "application/json; charset=utf-8"])
def test_json_is_what_is_meant_without_a_type(client: InProcess, kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    answer = client.post("/median", content=b'{"vector": [3, 1, 2]}', headers=headers)
    assert (answer.status_code, answer.json()["medians"]) == (200, [2.0])


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("*/*", "application/json"),
        ("text/csv", "text/csv"),
        ("text/*", "text/csv"),
        ("application/json;q=0.5, application/x-npy", "application/x-npy"),
        ("text/html, application/json;q=0.9, */*;q=0.8", "application/json"),
        ("application/json;q=0, application/*", "application/x-npy"),
        ("TEXT/CSV ; q=1.0", "text/csv"),
    ],
)
def test_accept_chooses_the_format_of_the_answer(client: InProcess, accept: str, kind: str) -> None:
    answer = client.post("/median", json={"vectors": [[3, 1, 2], [5, 4]]}, headers={"Accept": accept})
    assert (answer.status_code, answer.headers["content-type"]) == (200, kind)
    if kind == "text/csv":
        assert answer.text == "median\n2.0\n4.5\n"
    if kind == "application/x-npy":
        assert np.load(io.BytesIO(answer.content)).tolist() == [2.0, 4.5]


@pytest.mark.parametrize("accept", ["text/html", "application/json;q=0", "application/json;q=x", "image/*"])
def test_an_answer_that_nobody_accepts(client: InProcess, accept: str) -> None:
    problem = refused(client.post("/median", json={"vector": [1]}, headers={"Accept": accept}), 406)
    assert "text/csv" in problem["accepted"]


def test_the_stable_names(client: InProcess) -> None:
    for route, body in (("/median", {"vector": [3, 1, 2, 9]}), ("/quantile", {"vector": [3, 1, 2], "ranks": [1]})):
        assert client.post("/v1" + route, json=body).json() == client.post(route, json=body).json()
        assert "/v1" + route in client.get("/openapi.json").json()["paths"]
    refused(client.post("/v1/median", json={"vector": [1], "ranks": [1]}), 422)
    assert 'route="/v1/median",status="422"' in client.get("/metrics").text


def test_many_channels_take_few_tiles(client: InProcess) -> None:
    """However a picture of 64 MiB is shaped, its tiles are thousands, not millions."""
    terms = SimpleNamespace(operations=40, window=(3, 3), valid=False)
    loaded: Any = SimpleNamespace(terms=terms)
    pixels = np.broadcast_to(np.uint8(0), (1 << 26,))
    for shape in ((1, 1, 1, 1 << 26), (1, 1 << 26, 1, 1), (1, 1, 1 << 26, 1), (1, 8192, 8192, 1), (1, 2, 2, 1 << 24)):
        tiles = LoadedFilter.tiles(loaded, pixels.reshape(shape))
        assert sum(1 for _ in tiles) < 5000, shape


def segments(server: Server, *parts: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            connection.sendall(part)
            time.sleep(0.03)
        return connection.recv(4096)[9:12]


BODY = b'{"vector":[3,1,2]}'


@pytest.mark.parametrize(
    "field",
    [b"Content-Length: 18 ", b"Content-Length:\t18\t", b"Content-Length: 00000000000000000000018",
     b"Content-Length: 18\r\nContent-Type: application/json\t", b"Content-Length: 18\r\nAccept:\t*/* "],
)  # fmt: skip
def test_space_around_a_value_is_no_part_of_it(server: Server, field: bytes) -> None:
    head = b"POST /median HTTP/1.1\r\nHost: a\r\n" + field + b"\r\n\r\n"
    assert segments(server, head + BODY) == b"200"
    assert segments(server, head, BODY) == b"200"


def test_a_bad_chunk_is_the_mistake_of_its_client(server: Server) -> None:
    head = b"POST /median HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
    assert segments(server, head) in (b"400", b"100")
    bad = 'median_requests_total{route="unknown",status="400"}'
    until(lambda: bad in httpx.get(server.url + "/metrics").text)
    assert 'status="500"' not in httpx.get(server.url + "/metrics").text
    assert server.said("request failed") == 0
