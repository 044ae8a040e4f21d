"""Requests as bytes, and judges of what comes back: right by numpy, or a proper refusal; nothing else will do."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

REFUSALS = frozenset({400, 401, 404, 405, 408, 413, 415, 422, 429, 431, 503, 504})
LONGEST = 65  # of the models that are served
Rng = np.random.Generator


@dataclass
class Answer:
    """One response as it came."""

    status: int
    headers: dict[str, str]
    body: bytes

    def refused(self, statuses: frozenset[int] = REFUSALS) -> bool:
        """Whether it is a refusal in the form that is promised; anything else that is not success is a failure."""
        assert self.status in statuses, (self.status, self.body[:500])
        kind = self.headers.get("content-type", "")
        if kind == "application/problem+json":
            assert json.loads(self.body)["status"] == self.status
        elif kind == "application/json":
            assert json.loads(self.body)["error"]  # the dialect of the inference protocol
        else:
            assert self.status in (400, 408, 431, 503), (self.status, kind)  # no request yet: the parser's own words
        return True


Judge = Callable[[Answer], bool]  # True for a right answer, False for a proper refusal


@dataclass
class Tally:
    """What came back, over all clients of a test."""

    right: int = 0
    refused: int = 0
    closed: int = 0
    statuses: dict[int, int] = field(default_factory=dict)

    def count(self, answer: Answer, is_right: bool) -> None:
        self.right += is_right
        self.refused += not is_right
        self.statuses[answer.status] = self.statuses.get(answer.status, 0) + 1

    def __str__(self) -> str:
        statuses = ", ".join(f"{count} x {status}" for status, count in sorted(self.statuses.items()))
        return f"{self.right} right, {self.refused} refused, {self.closed} connections closed ({statuses})"


def request(rng: Rng) -> tuple[bytes, Judge]:
    """A request of any kind, and who judges its answer."""
    return (one, several, binary, npy, infer, look, nonsense)[rng.integers(7)](rng)


def vector(rng: Rng) -> list[float]:
    n = int(rng.integers(1, LONGEST + 1))
    values = rng.normal(size=n) * 10.0 ** rng.integers(-30, 30)
    return list(map(float, values if rng.random() < 0.8 else np.round(rng.normal(size=n) * 3)))


def one(rng: Rng) -> tuple[bytes, Judge]:
    asked = vector(rng)
    return post(rng, "/median", "application/json", json.dumps({"vector": asked, "exact": True}).encode()), told(
        [asked]
    )


def several(rng: Rng) -> tuple[bytes, Judge]:
    asked = [vector(rng) for _ in range(rng.integers(1, 30))]
    body = json.dumps({"vectors": asked, "exact": True}).encode()
    return post(rng, "/median", "application/json", body), told(asked)


def told(asked: list[list[float]]) -> Judge:
    def judge(answer: Answer) -> bool:
        if answer.status != 200:
            return not answer.refused()
        assert json.loads(answer.body)["medians"] == [np.median(each) for each in asked]
        return True

    return judge


def matrix(rng: Rng, longest: int = 40) -> Any:
    shape = int(rng.integers(1, longest)), int(rng.integers(1, LONGEST + 1))
    return rng.normal(size=shape).astype(("f4", "f8")[rng.integers(2)])


def binary(rng: Rng, x: Any = None) -> tuple[bytes, Judge]:
    x = matrix(rng) if x is None else x
    path = f"/median?dtype={x.dtype.name}&d={x.shape[1]}&exact=true"

    def judge(answer: Answer) -> bool:
        if answer.status != 200:
            return not answer.refused()
        assert (np.frombuffer(answer.body, x.dtype) == np.median(x, axis=1)).all()
        return True

    return post(rng, path, "application/octet-stream", x.tobytes()), judge


def npy(rng: Rng) -> tuple[bytes, Judge]:
    x = matrix(rng)
    file = io.BytesIO()
    np.save(file, x)

    def judge(answer: Answer) -> bool:
        if answer.status != 200:
            return not answer.refused()
        assert (np.load(io.BytesIO(answer.body)) == np.median(x, axis=1)).all()
        return True

    return post(rng, "/median?exact=true", "application/x-npy", file.getvalue()), judge


def infer(rng: Rng) -> tuple[bytes, Judge]:
    x = rng.normal(size=(int(rng.integers(1, 9)), 25))
    tensor = {"name": "x", "shape": list(x.shape), "datatype": "FP64", "data": x.ravel().tolist()}

    def judge(answer: Answer) -> bool:
        if answer.status != 200:
            return not answer.refused()
        found = json.loads(answer.body)
        assert found["outputs"][0]["data"] == np.median(x, axis=1).tolist()
        return True

    body = json.dumps({"inputs": [tensor]}).encode()
    return post(rng, "/v2/models/median-batcher-d25/infer", "application/json", body), judge


def look(rng: Rng) -> tuple[bytes, Judge]:
    path = ("/healthz", "/readyz", "/models", "/metrics", "/v2", "/models/median-batcher-d25")[rng.integers(6)]

    def judge(answer: Answer) -> bool:
        return True if answer.status == 200 else not answer.refused()

    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), judge


def nonsense(rng: Rng) -> tuple[bytes, Judge]:
    """Whole requests of which nothing can be made."""
    bodies = [b"", b"{", b"[1]", b'{"vector": []}', b'{"vector": [1, null]}', b'{"vectors": [[1], "x"]}', b"\xff" * 9]
    bodies += [b'{"vector": [1e999]}', rng.bytes(int(rng.integers(1, 2000))), b'{"vector": [' + b"1," * 70 + b"1]}"]
    kind = ("application/json", "application/x-npy", "text/plain", "application/octet-stream")[rng.integers(4)]
    path = ("/median", "/median", "/nothing", "/v2/models/none/infer")[rng.integers(4)]

    def judge(answer: Answer) -> bool:
        return not answer.refused()

    return post(rng, path, kind, bodies[rng.integers(len(bodies))]), judge


def post(rng: Rng, path: str, kind: str, body: bytes) -> bytes:
    """The bytes of a request, written as clients do, in one of several ways."""
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Type: {kind}"]
    if rng.random() < 0.3:
        lines.insert(1 + int(rng.integers(2)), "X-Request-ID: " + "r" * int(rng.integers(1, 128)))
    if rng.random() < 0.2:
        lines.append("x-filling:  " + "f" * int(rng.integers(1, 3000)))
    if rng.random() < 0.2 and body:
        cuts = np.sort(rng.integers(0, len(body) + 1, 3))
        parts = [part for part in (bytes(p) for p in np.split(np.frombuffer(body, "u1"), cuts)) if part]
        body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        lines.append("Transfer-Encoding: chunked")
    else:
        lines.append(f"{'content-length' if rng.random() < 0.5 else 'Content-Length'}: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


async def receive(reader: asyncio.StreamReader) -> Answer:
    """The next response of a connection."""
    head = await reader.readuntil(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    body = b""
    if headers.get("transfer-encoding") == "chunked":
        while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
    elif "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    else:
        body = await reader.read()
    return Answer(int(status.split()[1]), headers, body)


LOST = (ConnectionError, asyncio.IncompleteReadError)


async def ask_on(port: int, rng: Rng, tally: Tally, stop: Callable[[], bool], make: Any = request) -> None:
    """A client that asks one request after the other, on a new connection whenever the old one is gone."""
    while not stop():
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        except OSError:
            tally.closed += 1
            await asyncio.sleep(0.05)
            continue
        try:
            while not stop():
                data, judge = make(rng)
                writer.write(data)
                await writer.drain()
                answer = await asyncio.wait_for(receive(reader), 60)
                tally.count(answer, judge(answer))
                if answer.headers.get("connection") == "close":
                    break
        except LOST:
            tally.closed += 1
        finally:
            writer.close()
