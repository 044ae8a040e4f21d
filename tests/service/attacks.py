"""Bodies that try to stop a worker, and what becomes of it meanwhile.

    python -m tests.service.attacks URL PID [MIB]

sends each of them to a running service while another connection asks for /healthz all the time, and prints the status,
the longest wait for /healthz, and by how much the memory of the process grew.
"""

from __future__ import annotations

import io
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import httpx
import numpy as np
import psutil

JSON, NPY, RAW = "application/json", "application/x-npy", "application/octet-stream"
CSV, ARROW = "text/csv", "application/vnd.apache.arrow.stream"


@dataclass(frozen=True)
class Attack:
    """A body of about the size asked for, its type, where it is sent, and the statuses it may be answered with."""

    make: Callable[[int], bytes]
    kind: str = JSON
    path: str = "/median"
    statuses: tuple[int, ...] = (400, 422)


def fill(before: bytes, part: bytes, after: bytes = b"") -> Callable[[int], bytes]:
    """So many times `part` that the body has the size asked for."""
    return lambda size: before + part * max(1, (size - len(before) - len(after)) // len(part)) + after


def npy(shape: Callable[[int], tuple[int, ...]], dtype: str) -> Callable[[int], bytes]:
    def make(size: int) -> bytes:
        file = io.BytesIO()
        np.save(file, np.ones(shape(size), dtype))
        return file.getvalue()

    return make


def infer(data: bytes) -> bytes:
    return b'{"inputs": [{"name": "x", "shape": [1, 64], "datatype": "FP32", "data": ' + data


GOOD = "4096 vectors that are right"
V2, V2_QUANTILE = "/v2/models/{model}/infer", "/v2/models/quantile/infer"
ATTACKS: dict[str, Attack] = {
    "empty arrays": Attack(fill(b"", b"[],")),
    "opening brackets": Attack(fill(b"", b"[")),
    "opening objects": Attack(fill(b"", b'{"a":')),
    "empty vectors": Attack(fill(b'{"vectors": [', b"[],", b"[]]}")),
    "vectors in vectors": Attack(fill(b'{"vectors": [', b"[", b"]}")),
    "short vectors": Attack(fill(b'{"vectors": [', b"[1],", b"[1]]}")),
    "one long vector": Attack(fill(b'{"vector": [', b"1,", b"1]}")),
    "one long vector among vectors": Attack(fill(b'{"vectors": [[1], [', b"1,", b"1]]}")),
    "commas": Attack(fill(b'{"vectors": [[', b",", b"]]}")),
    "objects for numbers": Attack(fill(b'{"vectors": [[1], [', b'{"a":1},', b"1]]}")),
    "a long number": Attack(fill(b'{"vector": [', b"9", b"]}")),
    "a long fraction": Attack(fill(b'{"vector": [1.', b"1", b"]}"), statuses=(200,)),
    "long numbers": Attack(fill(b'{"vectors": [[', b"1." + b"1" * 3000 + b",", b"1]]}"), statuses=(200, 422)),
    "large integers": Attack(fill(b'{"vectors": [[', b"9" * 300 + b",", b"1]]}"), statuses=(200, 422)),
    "spaces": Attack(fill(b'{"vector": [1', b" ", b"]}"), statuses=(200,)),
    "spaces outside": Attack(fill(b"", b" ")),
    "escapes": Attack(fill(b'{"model": "', rb"\u0000", b'"}')),
    "a long string": Attack(fill(b'{"vector": [1], "model": "', b"a", b'"}')),
    "a string for a vector": Attack(fill(b'{"vectors": ["', b"],", b'"]}')),
    "a long name": Attack(fill(b'{"', b"a", b'": 1}')),
    "many names": Attack(fill(b"{", b'"a":1,', b'"b":1}')),
    "the same name": Attack(fill(b"{", b'"vector":[1],', b'"vector":[1]}')),
    "not a number": Attack(fill(b'{"vectors": [[', b"NaN,", b"1]]}")),
    "bytes that are no text": Attack(fill(b'{"vectors": [["', b"\xff", b'"]]}')),
    "half of it": Attack(fill(b'{"vectors": [', b"[1,2,3,4,5,6,7,8,9,10],")),
    "npy of bytes": Attack(npy(lambda size: (size // 32, 32), "u1"), NPY),
    "npy of one vector": Attack(npy(lambda size: (size,), "u1"), NPY),
    "raw of short vectors": Attack(fill(b"", b"\0"), RAW, "/median?dtype=float32&d=1"),
    "v2: opening brackets": Attack(fill(infer(b""), b"["), path=V2),
    "v2: empty arrays": Attack(fill(infer(b"["), b"[],"), path=V2),
    "v2: numbers": Attack(fill(infer(b"["), b"1,", b"1]}]}"), path=V2),
    "v2: strings": Attack(fill(infer(b'["'), b",", b'"]}]}'), path=V2),
    "v2: an empty document": Attack(fill(b"", b"[],"), path=V2),
    "missing numbers": Attack(fill(b'{"nan": "omit", "vectors": [[', b"null,", b"1]]}")),
    "vectors of missing numbers": Attack(fill(b'{"nan": "omit", "vectors": [', b"[null],", b"[1]]}")),
    "quantiles of short vectors": Attack(
        fill(b'{"quantiles": [0, 1], "vectors": [', b"[1],", b"[1]]}"), path="/quantile"
    ),
    "quantiles": Attack(fill(b'{"vector": [1, 2], "quantiles": [', b"0.5,", b"1]}"), path="/quantile"),
    "v2: quantiles": Attack(fill(infer(b"[" + b"1," * 63 + b'1]}], "a": ['), b"1,", b"1]}"), path=V2_QUANTILE),
    "CSV: a long first line": Attack(fill(b"", b"a,"), CSV),
    "CSV: a quoted first line": Attack(fill(b'"', b"a\n"), CSV),
    "CSV: empty lines": Attack(fill(b"a\n", b"\n"), CSV),
    "CSV: short lines": Attack(fill(b"a\n", b"1\n"), CSV),
    "CSV: empty cells": Attack(fill(b"a" + b",b%d" * 999 % tuple(range(999)), b"\n" + b"," * 999), CSV),
    "CSV: a long cell": Attack(fill(b"a\n1", b"1"), CSV),
    "CSV: rows": Attack(fill(b"a,b\n", b"1,2\n"), CSV, "/median?by=rows"),
    "Arrow: zeros": Attack(fill(b"\xff\xff\xff\xff", b"\0"), ARROW),
    "Arrow: a long schema": Attack(fill(b"\xff\xff\xff\xff\xff\xff\x0f\0", b"\x10\0\0\0"), ARROW),
}


def good(size: int, d: int, vectors: int) -> bytes:
    """A body of about this size that is answered: at most `vectors` vectors of d numbers with as many digits as needed."""
    digits = max(1, size // (vectors * d) - 3)
    row = b"[" + b",".join([b"0." + b"5" * digits] * d) + b"]"
    return b'{"vectors": [' + b",".join([row] * vectors) + b"]}"


class Heartbeat:
    """The longest time /healthz was not answered, and the largest memory of a process, from now on."""

    def __init__(self, url: str, pid: int) -> None:
        self.url, self.process = url, psutil.Process(pid)
        self.longest, self.largest, self.beats = 0.0, 0, 0
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._beat)

    def __enter__(self) -> Heartbeat:
        self.before = self.process.memory_info().rss
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()

    @property
    def grown(self) -> int:
        return self.largest - self.before

    def _beat(self) -> None:
        with httpx.Client(base_url=self.url, timeout=120) as client:
            client.get("/healthz")
            while not self.stop.is_set():
                started = time.perf_counter()
                client.get("/healthz").raise_for_status()
                self.longest = max(self.longest, time.perf_counter() - started)
                self.largest = max(self.largest, self.process.memory_info().rss)
                self.beats += 1


def send(url: str, model: str, d: int, name: str, size: int) -> tuple[int, bool, float]:
    """The status of an attack, whether it may be that, and how long it took. In a process of its own: making and sending
    a large body would hold up the heartbeat."""
    attack = {**ATTACKS, GOOD: Attack(lambda size: good(size, d, 4096), statuses=(200,))}[name]
    body = attack.make(size)
    started = time.perf_counter()
    path, headers = attack.path.format(model=model), {"Content-Type": attack.kind}
    status = httpx.post(url + path, content=body, headers=headers, timeout=120).status_code
    return status, status in attack.statuses, time.perf_counter() - started


def main(url: str, pid: str, mib: str = "63") -> None:
    listed = httpx.get(url + "/models").json()["models"]
    largest = max(listed, key=lambda model: int(model["description"]["d"]))
    d = int(largest["description"]["d"])
    with Heartbeat(url, int(pid)) as heart:
        time.sleep(2)
    print(f"{'':<32}{'status':>8}{'answered in':>14}{'/healthz':>12}{'memory':>14}")
    print(f"{'nothing for 2 s':<32}{'':>8}{'':>14}{heart.longest * 1e3:>9.0f} ms{heart.grown / 2**20:>10.0f} MiB")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        for name in (*ATTACKS, GOOD):
            with Heartbeat(url, int(pid)) as heart:
                asked = pool.submit(send, url, largest["name"], d, name, int(float(mib) * 2**20))
                status, expected, seconds = asked.result()
            figures = f"{seconds:>12.2f} s{heart.longest * 1e3:>9.0f} ms{heart.grown / 2**20:>10.0f} MiB"
            print(f"{name:<32}{status:>8}{figures}", "" if expected else "  unexpected", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
