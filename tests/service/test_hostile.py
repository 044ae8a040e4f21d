"""What attacking a running service brought to light, each as small as it could be made."""

from __future__ import annotations

import hashlib
import json
import resource
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper, numpy_helper

from service.__main__ import port_is_free
from service.client import Client, ServiceError
from service.client import __main__ as program
from service.models import registry
from service.process.settings import Settings
from tests.service.conftest import InProcess, Server
from tests.waiting import until

Serve = Callable[..., Server]
Connect = Callable[..., InProcess]
NPY, RAW = "application/x-npy", "application/octet-stream"
INFER = "/v2/models/median-batcher-d25/infer"
TENSOR: dict[str, Any] = {"name": "x", "shape": [1, 25], "datatype": "FP64", "data": list(range(25))}


def post(body: bytes, *fields: str, path: str = "/median", length: bool = True) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", *fields]
    lines += [f"Content-Length: {len(body)}"] if length else []
    return "\r\n".join([*lines, "", ""]).encode() + body


def until_closed(connection: socket.socket) -> bytes:
    received = b""
    while data := connection.recv(1 << 16):
        received += data
    return received


@pytest.mark.parametrize("length", ["0" * 5000, "0" * 20 + "1" * 4400])
def test_the_length_of_a_header_of_thousands_of_digits(client: InProcess, length: str) -> None:
    answer = client.post(INFER, json={"inputs": [TENSOR]}, headers={"Inference-Header-Content-Length": length})
    assert answer.status_code == 400


@pytest.mark.parametrize(
    "member",
    [
        {"parameters": 0},
        {"parameters": ""},
        {"outputs": {}},
        {"outputs": 0},
        {"parameters": {"binary_data_output": "false"}},
        {"outputs": [{"name": "y", "parameters": {"binary_data": "false"}}]},
    ],
)
def test_members_of_the_wrong_type_are_refused(client: InProcess, member: dict[str, Any]) -> None:
    assert client.post(INFER, json={"inputs": [TENSOR], **member}).status_code == 400


def test_bytes_that_belong_to_no_tensor_are_refused(client: InProcess) -> None:
    header = json.dumps({"inputs": [TENSOR]}).encode()
    fields = {"Inference-Header-Content-Length": str(len(header))}
    assert client.post(INFER, content=header + bytes(100), headers=fields).status_code == 400


def test_a_query_parameter_twice_is_refused(client: InProcess) -> None:
    path = "/median?d=6&d=3&dtype=float64"
    assert client.post(path, content=bytes(48), headers={"Content-Type": RAW}).status_code == 422


@pytest.mark.parametrize("order", ["'True'", "(1,)", "[]"])
def test_an_order_that_is_no_boolean_is_refused(client: InProcess, order: str) -> None:
    header = f"{{'descr': '<f8', 'fortran_order': {order}, 'shape': (2, 3), }}".encode()
    body = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(48)
    assert client.post("/median", content=body, headers={"Content-Type": NPY}).status_code == 400


def test_a_space_that_is_none_in_json(client: InProcess) -> None:
    assert client.post("/median", content=b'{"vector": [1,\x0b2]}').status_code == 400


def test_a_slash_too_many_is_not_found(client: InProcess) -> None:
    assert client.get("/models/", headers={"Host": "elsewhere.example"}).status_code == 404


H2C = "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"


@pytest.mark.parametrize(
    "offer", [H2C, ("Connection: upgrade", "Upgrade: websocket"), ("Connection: Upgrade, close", "Upgrade: a/1")]
)
@pytest.mark.parametrize("size", [1, 7, 1 << 16])
def test_an_upgrade_that_is_offered_may_be_declined(server: Server, offer: tuple[str, ...], size: int) -> None:
    """With its body whole or in pieces, and one more request behind it."""
    close = any("close" in field for field in offer)
    data = post(b'{"vector": [3, 1, 2]}', *offer) + b"GET /healthz HTTP/1.1\r\nHost: x\r\n" * (not close)
    data += "".join(field + "\r\n" for field in offer[:-1]).encode() * (not close)
    data += b"Connection: close\r\n\r\n" * (not close)
    with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(data), size):
            connection.sendall(data[start : start + size])
        received = until_closed(connection)
    assert received.count(b"HTTP/1.1 200 OK") == 2 - close
    assert b'"medians":[2.0]' in received


def test_a_proxy_is_asked_for_in_vain(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
        connection.sendall(b"CONNECT example.org:80 HTTP/1.1\r\nHost: example.org:80\r\n\r\n")
        assert until_closed(connection).startswith(b"HTTP/1.1 400 ")


def test_a_client_that_has_said_all_gets_its_answer(server: Server) -> None:
    vectors = [[float(i)] * (1 + i % 65) for i in range(4000)]
    with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
        connection.sendall(post(json.dumps({"vectors": vectors}).encode()))
        connection.shutdown(socket.SHUT_WR)
        assert b"200 OK" in until_closed(connection)


@pytest.mark.parametrize("end", [b"0\r\nX-Trailer: ", b"0;extension="], ids=["trailer", "extension"])
def test_trailers_and_extensions_have_the_limit_of_a_head(serve: Serve, models: Path, end: bytes) -> None:
    server = serve(models, "--drain-s", "0", "--timeout-s", "3", "--max-head-kib", "8").wait()
    with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
        connection.sendall(post(b"2\r\n{}\r\n" + end, "Transfer-Encoding: chunked", length=False))
        connection.sendall(bytes(b"a" * (1 << 18)))
        assert until_closed(connection).split()[1] in (b"400", b"431")
    server.stop()


def test_a_client_refused_within_its_body_is_not_kept(server: Server) -> None:
    """It neither closes nor stops writing: it gets its answer, what it sends is let by for a moment, then it is cut off."""
    ours = psutil.Process(server.process.pid)
    with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
        mine = connection.getsockname()[1]

        def kept() -> bool:
            return any(c.raddr and c.raddr.port == mine for c in ours.net_connections("tcp"))

        connection.sendall(post(b"2\r\n[[\r\nno length\r\n", "Transfer-Encoding: chunked", length=False))
        assert until_closed(connection).startswith(b"HTTP/1.1 400 ")
        assert kept()
        until(lambda: not kept())


def test_a_shortage_during_a_reload_costs_no_model(serve: Serve, models: Path) -> None:
    server = serve(models, "--drain-s", "0").wait()
    with httpx.Client(base_url=server.url, timeout=20) as http:
        assert http.get("/readyz").status_code == 200
        pid = server.process.pid
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        try:
            http.post("/models/reload")
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        assert http.get("/readyz").status_code == 200
    server.stop()


def test_a_model_with_a_loop_is_left_out(models: Path, tmp_path: Path) -> None:
    """It goes round once here, so that the test ends."""
    folder = tmp_path / "models"
    shutil.copytree(models, folder)
    path = folder / "median-batcher-d25.onnx"
    model = onnx.load(path)
    output = model.graph.output[0]
    number = output.type.tensor_type.elem_type
    state: list[tuple[str, int, list[int] | None]] = [("go", TensorProto.BOOL, []), ("y", number, None)]
    inputs = [helper.make_tensor_value_info(*each) for each in [("round", TensorProto.INT64, []), *state]]
    outputs = [helper.make_tensor_value_info(f"{name}_on", kind, shape) for name, kind, shape in state]
    steps = [helper.make_node("Identity", [name], [f"{name}_on"]) for name, _, _ in state]
    for node in model.graph.node:
        node.output[:] = ["before" if name == output.name else name for name in node.output]
    once = [numpy_helper.from_array(np.array(1), "rounds"), numpy_helper.from_array(np.array(True), "begin")]
    model.graph.initializer.extend(once)
    body = helper.make_graph(steps, "body", inputs, outputs)
    model.graph.node.append(helper.make_node("Loop", ["rounds", "begin", "before"], [output.name], body=body))
    before, after = hashlib.sha256(path.read_bytes()).hexdigest(), model.SerializeToString()
    path.write_bytes(after)
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace(before, hashlib.sha256(after).hexdigest()))
    assert "loop" in registry.load([folder]).left_out["median-batcher-d25.onnx"].lower()


@pytest.mark.parametrize("host", ["a..b", "a" * 70], ids=["empty label", "long label"])
def test_a_host_that_is_no_name_is_one_line(host: str) -> None:
    assert not port_is_free(Settings(host=host, port=0))


def test_help_shows_any_default(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MEDIAN_HOST", "100%")
    with pytest.raises(SystemExit):
        Settings.from_args(["--help"])
    assert "100%" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["inline_ms", "drain_s"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_times_are_finite(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        Settings(**{name: value})  # type: ignore[arg-type]


def test_threads_have_a_limit() -> None:
    with pytest.raises(ValueError, match="threads"):
        Settings(threads=10**6)


@pytest.mark.parametrize("key", [" k ", "k\n", "\udcff"])
def test_a_key_that_cannot_be_sent_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="api_key"):
        Settings(api_key=key)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--url", "http://a..b"],
        ["--url", "http://\x01"],
        ["--seed", "-1"],
        ["--n", str(10**13)],
        ["--out", "{}/missing/report.json"],
        ["--in", "{}/empty.npy"],
        ["--in", "{}/packed.npy"],
        ["--in", "{}/none.npy"],
        ["--in", "{}/absent.npy"],
    ],
    ids=lambda arguments: " ".join(arguments)[:30].replace("\x01", "SOH"),
)
def test_mistakes_of_the_caller_are_one_line(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    (tmp_path / "empty.npy").touch()
    np.savez(tmp_path / "packed.npz", np.ones(3))
    (tmp_path / "packed.npz").rename(tmp_path / "packed.npy")
    np.save(tmp_path / "none.npy", np.ones((0, 5)))
    given = [argument.replace("{}", str(tmp_path)) for argument in arguments]
    try:
        status = program.main(["--url", server.url, "--n", "2", "--d", "3", *given])
    except SystemExit as end:
        status = int(end.code or 0)
    assert status == 2
    assert capsys.readouterr().err.strip()


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Something else that listens there, and says the same to everybody."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def reply(status: str, body: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


NOTHING = json.dumps(
    {"medians": [], "error_bound": [], "fallback": [], "models": [], "certified": []}
    | {"batch_size": 1, "timings": {"queue_ms": 1, "inference_ms": 1, "total_ms": 1}}
).encode()


@pytest.mark.parametrize("format", ["json", "npy", "raw"])
@pytest.mark.parametrize(
    "answer",
    [reply("200 OK", b"hello"), reply("200 OK", b"{}"), reply("500 No", b"[1]"), reply("200 OK", NOTHING)],
    ids=["text", "object", "list", "empty"],
)
def test_an_answer_that_is_nonsense_is_one_line(capsys: pytest.CaptureFixture[str], answer: bytes, format: str) -> None:
    with answering(answer) as url:
        assert program.main(["--url", url, "--n", "1", "--d", "3", "--format", format]) == 2
    assert capsys.readouterr().err.startswith("service.client: ")


def test_a_redirection_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(reply("302 Found", b"")) as url:
        assert program.main(["--url", url, "--n", "1", "--d", "3"]) == 2
    assert "302" in capsys.readouterr().err


def test_a_service_that_is_not_there_is_a_service_error() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with Client(f"http://127.0.0.1:{unused.getsockname()[1]}") as client, pytest.raises(ServiceError):
            client.median([[1.0]])
