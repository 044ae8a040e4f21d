"""Abuse of a running service. Every answer meanwhile is right or a proper refusal; afterwards all is as before."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import psutil
import pytest
from google.protobuf.message import DecodeError

from service.process.metrics import ROOM
from tests.service.conftest import Server
from tests.slow.torture import wire
from tests.slow.torture.conftest import Health, left_behind
from tests.slow.torture.wire import LOST, Rng, Tally
from tests.waiting import until

Serve = Callable[..., Server]
Stop = Callable[[], bool]
Figures = Callable[[object], None]
WAITING = re.compile(r"^median_queue_rows (\S+)", re.MULTILINE)
FLOOD_MARGIN = 768 << 20  # bytes that a flood may take while it lasts


def finish(server: Server) -> None:
    family = psutil.Process(server.process.pid).children(recursive=True)
    assert server.stop() == 0
    assert not psutil.wait_procs(family, timeout=20)[1]


def spawn(rng: Rng) -> Rng:
    return np.random.default_rng(rng.integers(2**63))


async def gather(*work: Any) -> None:
    async with asyncio.TaskGroup() as group:
        for each in work:
            group.create_task(each)


def test_split_and_pipelined(serve: Serve, models: Path, rng: Rng, stop: Stop, figures: Figures) -> None:
    """Several requests at a time, their bytes cut anywhere."""
    server = serve(models, "--no-build", "--drain-s", "0").wait()
    health, tally = Health(server), Tally()

    async def client(own: Rng) -> None:
        while not stop():
            asked = [wire.request(own) for _ in range(own.integers(1, 9))]
            stream = b"".join(data for data, _ in asked)
            cuts = np.unique(own.integers(1, len(stream), own.integers(0, 40)))
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 24)

            async def send(writer: Any = writer, stream: bytes = stream, cuts: Any = cuts, own: Rng = own) -> None:
                for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
                    writer.write(stream[start:end])
                    await writer.drain()
                    if own.random() < 0.5:
                        await asyncio.sleep(0)

            sending = asyncio.create_task(send())
            for _, judge in asked:
                answer = await asyncio.wait_for(wire.receive(reader), 60)
                tally.count(answer, judge(answer))
                if answer.headers.get("connection") == "close":
                    break
            else:
                await sending
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            writer.close()

    asyncio.run(gather(*(client(spawn(rng)) for _ in range(8))))
    assert tally.right > tally.refused
    figures(f"{tally}; {health.assert_restored()}")
    finish(server)


def test_floods_of_heads_and_bodies(serve: Serve, models: Path, rng: Rng, stop: Stop, figures: Figures) -> None:
    """Clients that never finish, never read, or send without end, beside one that asks properly."""
    server = serve(models, "--no-build", "--drain-s", "0", "--timeout-s", "4", "--log-level", "warning").wait()
    health, tally, sent = Health(server), Tally(), [0]
    head = b"POST /median HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"

    async def flood(own: Rng) -> None:
        first, more, most = (
            (b"GET / HTTP/1.1\r\n", b"x: " + b"y" * 8000 + b"\r\n", 4 << 20),
            (b"GET / HTTP/1.1\r\nx: ", b"y" * 8000, 4 << 20),
            (b"GET /" + b"a" * 9, b"a" * 8000, 4 << 20),
            (head + b"Content-Length: 67108864\r\n\r\n[", b"[]," * 4000, 16 << 20),
            (head + b"Transfer-Encoding: chunked\r\n\r\n", b"2ee0\r\n" + b"[]," * 4000 + b"\r\n", 16 << 20),
            (head + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n[\r\n" * 2000, 1 << 20),
            (b"", b"GET /models HTTP/1.1\r\nHost: x\r\n\r\n" * 100, 1 << 20),
            (b"", wire.several(own)[0] * 50, 4 << 20),
            (b"PO", b"", 0),
        )[own.integers(9)]
        try:
            _reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 16)
        except OSError:
            return
        try:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(first)
            for _ in range(most // max(1, len(more))):
                writer.write(more)
                sent[0] += len(more)
                await asyncio.wait_for(writer.drain(), 1)
            await asyncio.sleep(own.random())
        except (TimeoutError, *LOST):
            tally.closed += 1
        finally:
            writer.transport.abort()

    async def flooder(own: Rng) -> None:
        while not stop():
            await flood(own)

    async def watcher() -> None:
        while not stop():
            health.watch()
            await asyncio.sleep(0.05)

    async def scenario() -> None:
        asking = wire.ask_on(server.port, spawn(rng), tally, stop, wire.one)
        await gather(*(flooder(spawn(rng)) for _ in range(24)), asking, watcher())

    asyncio.run(scenario())
    extra = health.peak - health.before[0]
    assert extra < FLOOD_MARGIN, f"{extra >> 20} MiB more at the peak"
    assert tally.right > 0
    restored = health.assert_restored()
    figures(f"{sent[0] >> 20} MiB sent, memory +{extra >> 20} MiB at the peak; beside it {tally}; {restored}")
    finish(server)


def test_memory_that_runs_out_and_comes_back(
    serve: Serve, models: Path, tmp_path: Path, rng: Rng, stop: Stop, figures: Figures
) -> None:
    """A limit of address space that comes and goes under large requests.

    Two workers: a process that the system refuses memory in the wrong place ends, and its parent starts another one.
    """
    options = ("--max-vectors", "200000", "--queue", "1000000")
    server = serve(models, "--no-build", "--workers", "2", "--drain-s", "0", *options, TMPDIR=str(tmp_path)).wait()
    until(lambda: server.said("serving") == 2)
    health, tally, limits = Health(server), Tally(), [0]

    def large(own: Rng) -> tuple[bytes, wire.Judge]:
        return wire.binary(own, own.normal(size=(int(own.integers(1, 100000)), int(own.integers(1, 26)))))

    usual = resource.prlimit(server.process.pid, resource.RLIMIT_AS)

    async def squeezer(own: Rng) -> None:
        while not stop():
            for worker in server.workers():
                with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                    room = worker.memory_info().vms + int(own.integers(1, 40 << 20))
                    resource.prlimit(worker.pid, resource.RLIMIT_AS, (room, usual[1]))
                    limits[0] += 1
            await asyncio.sleep(own.random())
            for worker in server.workers():
                with contextlib.suppress(ProcessLookupError):
                    resource.prlimit(worker.pid, resource.RLIMIT_AS, usual)
            await asyncio.sleep(own.random() / 4)

    async def scenario() -> None:
        kinds = (large, large, large, wire.several, wire.request)
        asking = (wire.ask_on(server.port, spawn(rng), tally, stop, kind) for kind in kinds)
        await gather(*asking, squeezer(spawn(rng)))

    asyncio.run(scenario())
    assert tally.right > 0
    until(lambda: len(server.workers()) == 2, what=lambda: server.log[-2000:])
    figures(f"{limits[0]} limits, {tally}; {health.assert_restored()}")
    finish(server)


def test_workers_that_are_killed(
    serve: Serve, models: Path, tmp_path: Path, rng: Rng, stop: Stop, figures: Figures
) -> None:
    server = serve(models, "--no-build", "--workers", "2", "--drain-s", "0", TMPDIR=str(tmp_path)).wait()
    until(lambda: server.log.count('"serving"') == 2)
    health, tally, kills = Health(server), Tally(), [0]

    async def killer(own: Rng) -> None:
        while not stop() or not kills[0]:
            alive = server.workers()
            if len(alive) == 2 and server.log.count('"serving"') == 2 + kills[0]:
                alive[own.integers(2)].kill()
                kills[0] += 1
            await asyncio.sleep(own.random() * 3)

    async def scenario() -> None:
        await gather(*(wire.ask_on(server.port, spawn(rng), tally, stop) for _ in range(8)), killer(spawn(rng)))

    asyncio.run(scenario())
    until(lambda: server.log.count('"serving"') == 2 + kills[0], what=lambda: server.log[-2000:])
    assert tally.right > 0
    until(lambda: WAITING.findall(httpx.get(server.url + "/metrics").text) == ["0.0"], 4)
    kept = sum(file.stat().st_blocks * 512 for file in tmp_path.rglob("metrics/*"))
    assert kept <= 2 * 3 * ROOM, "two workers have three files each, however many were killed"
    figures(f"{kills[0]} kills, {tally}; {health.assert_restored()}, {kept >> 10} KiB of figures")
    finish(server)
    assert not left_behind(tmp_path)


def test_a_disk_without_room(
    serve: Serve, models: Path, tmp_path: Path, rng: Rng, stop: Stop, figures: Figures
) -> None:
    """No file may grow, and the log goes to a device that is full."""
    with open("/dev/full", "wb") as full:
        how = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (60000, 60000)), "stderr": full}
        server = serve(models, "--no-build", "--workers", "2", "--drain-s", "0", how=how, TMPDIR=str(tmp_path)).wait()
    until(lambda: len(server.workers()) == 2)
    health, tally, reloads = Health(server), Tally(), [0]
    alive = server.workers()

    async def reloader() -> None:
        async with httpx.AsyncClient(timeout=60) as http:
            while not stop():
                assert (await http.post(server.url + "/models/reload")).status_code == 200
                reloads[0] += 1

    async def scenario() -> None:
        await gather(*(wire.ask_on(server.port, spawn(rng), tally, stop) for _ in range(4)), reloader())

    asyncio.run(scenario())
    assert tally.right > 0
    assert tally.closed == 0
    assert server.workers() == alive, "a worker died"
    figures(f"{reloads[0]} reloads, {tally}; {health.assert_restored()}")
    finish(server)
    assert not left_behind(tmp_path)


CLOCK = """
import random, time
_time, _random, _calls, _offset = time.time, random.Random({seed}), 0, 0.0
def jumping():
    global _calls, _offset
    _calls += 1
    if _calls % 7 == 0:
        _offset = _random.uniform(-3e7, 3e7)
    return _time() + _offset
time.time = jumping
"""


def test_a_clock_that_jumps(serve: Serve, models: Path, tmp_path: Path, rng: Rng, stop: Stop, figures: Figures) -> None:
    """The time of day goes back and forth by up to a year; limits of time are kept all the same."""
    (tmp_path / "sitecustomize.py").write_text(CLOCK.format(seed=int(rng.integers(2**31))))
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    server = serve(models, "--no-build", "--drain-s", "0", "--timeout-s", "1", PYTHONPATH=path).wait()
    health, tally, late = Health(server), Tally(), [0]

    async def slow() -> None:
        """A body that does not come is given up after a second, neither at once nor never."""
        while not stop() or not late[0]:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"POST /median HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
            started = time.monotonic()
            answer = await asyncio.wait_for(wire.receive(reader), 60)
            assert answer.status == 408
            assert time.monotonic() - started > 0.9
            late[0] += 1
            writer.close()

    async def scenario() -> None:
        await gather(*(wire.ask_on(server.port, spawn(rng), tally, stop) for _ in range(4)), slow())

    asyncio.run(scenario())
    assert tally.right > 0
    assert tally.closed == 0
    stamps = [json.loads(line)["time"][:10] for line in server.log.splitlines()]
    assert len(set(stamps)) > 1, "the clock did not jump"
    figures(f"{late[0]} bodies given up, {tally}; {health.assert_restored()}")
    finish(server)


Mutation = Callable[[Rng, Path], None]


def read(path: Path) -> bytes:
    """A file that is still one: what was put in its place may have no end."""
    if path.is_symlink() or not path.is_file():
        raise ValueError(f"{path} is no file any more")
    return path.read_bytes()


def bytes_of_manifest(rng: Rng, folder: Path) -> None:
    data = bytearray(read(folder / "manifest.json"))
    for _ in range(rng.integers(1, 20)):
        data[rng.integers(len(data))] = rng.integers(256)
    (folder / "manifest.json").write_bytes(data[: rng.integers(len(data))] if rng.random() < 0.2 else data)


def values_of_manifest(rng: Rng, folder: Path) -> None:
    """Any value anywhere becomes any other."""
    values: list[Any] = [
        None,
        True,
        -1,
        0,
        1e308,
        10**30,
        "",
        "x",
        [],
        {},
        [[]],
        float("nan"),
        "\ud800",
        "../x.onnx",
        5e-324,
    ]
    content = json.loads(read(folder / "manifest.json"))
    for _ in range(rng.integers(1, 4)):
        at: Any = content["models"] if rng.random() < 0.95 else content
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not keys:
                break
            key = keys[rng.integers(len(keys))]
            if isinstance(at[key], dict | list) and rng.random() < 0.8:
                at = at[key]
                continue
            at[key] = values[rng.integers(len(values))]
            break
        if not isinstance(content.get("models"), list):
            break
    (folder / "manifest.json").write_text(json.dumps(content))


def any_model(rng: Rng, folder: Path) -> Path:
    found = sorted(folder.glob("*.onnx"))
    return found[rng.integers(len(found))]


def bytes_of_model(rng: Rng, folder: Path) -> None:
    path = any_model(rng, folder)
    data = bytearray(read(path))
    data[rng.integers(len(data))] ^= 1 << rng.integers(8)
    path.write_bytes(data[: rng.integers(len(data))] if rng.random() < 0.3 else data)


def weights_of_model(rng: Rng, folder: Path) -> None:
    """A file that is whole, and vouched for, and wrong: only counting can tell."""
    path = any_model(rng, folder)
    manifest = folder / "manifest.json"
    data, entries = read(path), read(manifest)
    model = onnx.load_model_from_string(data)
    tensors = [each for each in model.graph.initializer if each.data_type == onnx.TensorProto.FLOAT]
    chosen = tensors[rng.integers(len(tensors))]
    value = onnx.numpy_helper.to_array(chosen).copy()
    value.flat[rng.integers(value.size)] += rng.normal()
    chosen.CopyFrom(onnx.numpy_helper.from_array(value, chosen.name))
    path.write_bytes(spoilt := model.SerializeToString())
    before, after = (hashlib.sha256(each).hexdigest().encode() for each in (data, spoilt))
    manifest.write_bytes(entries.replace(before, after))


def no_file(rng: Rng, folder: Path) -> None:
    path = any_model(rng, folder) if rng.random() < 0.8 else folder / "manifest.json"
    path.unlink()
    make: list[Callable[[Path], object]] = [os.mkfifo, Path.mkdir, lambda at: at.symlink_to("/dev/zero")]
    make += [lambda at: at.symlink_to(__file__), lambda at: None]
    make[rng.integers(len(make))](path)


MUTATIONS: list[Mutation] = [bytes_of_manifest, values_of_manifest, bytes_of_model, weights_of_model, no_file]


def test_folders_that_are_corrupt(
    serve: Serve, models: Path, tmp_path: Path, rng: Rng, stop: Stop, figures: Figures
) -> None:
    folder = tmp_path / "models"
    shutil.copytree(models, folder)
    server = serve(folder, "--drain-s", "0", "--no-build", "--log-level", "error").wait()
    health, tally, rounds, left_out = Health(server), Tally(), 0, 0
    statuses = wire.REFUSALS | {500}  # 500 only where no model is right any more, which is said
    with httpx.Client(base_url=server.url, timeout=60) as http:
        while not stop():
            shutil.rmtree(folder)
            shutil.copytree(models, folder)
            for _ in range(rng.integers(1, 4)):
                try:
                    MUTATIONS[rng.integers(len(MUTATIONS))](rng, folder)
                except (OSError, ValueError, KeyError, TypeError, IndexError, DecodeError):
                    continue  # nothing is left to be spoiled in this way
            listed = http.post("/models/reload")
            assert listed.status_code == 200, listed.text
            rounds += 1
            left_out += len(listed.json()["left_out"])
            for model in listed.json()["models"]:
                file = http.get(f"/models/{model['name']}/file")
                if "manifest.json" in listed.json()["left_out"] and file.status_code == 404:
                    continue  # a manifest that cannot be read takes no model away, whatever became of the files
                assert file.status_code == 200
                assert hashlib.sha256(file.content).hexdigest() == model["sha256"]
            for _ in range(4):
                vector = wire.vector(rng)
                got = http.post("/median", json={"vector": vector, "exact": True})
                answer = wire.Answer(got.status_code, dict(got.headers), got.content)
                if answer.status == 200:
                    assert got.json()["medians"] == [np.median(vector)]
                else:
                    answer.refused(statuses)
                    assert answer.status != 500 or "counting refutes" in got.json()["detail"]
                tally.count(answer, answer.status == 200)
        shutil.rmtree(folder)
        shutil.copytree(models, folder)
        assert http.post("/models/reload").json()["left_out"] == {}
    assert rounds
    figures(f"{rounds} folders, {left_out} models left out, {tally}; {health.assert_restored()}")
    finish(server)


def test_the_suite_notices_a_wrong_number() -> None:
    """A judge that finds everything right would make all of the above worthless."""
    _, judge = wire.one(np.random.default_rng(0))
    with pytest.raises(AssertionError):
        judge(wire.Answer(200, {"content-type": "application/json"}, b'{"medians": [1.0]}'))
    with pytest.raises(AssertionError):
        judge(wire.Answer(500, {"content-type": "application/problem+json"}, b'{"status": 500}'))
