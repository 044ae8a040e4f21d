"""The service on a cluster of several nodes (of one machine): the same answers as numpy's while replicas are killed, a
node is taken away, and a new version is rolled out. `make scale` runs it."""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from ray import serve
from ray.cluster_utils import Cluster

from exporter.library import export_model
from service.client import Client, ServiceAnswer, ServiceError
from service.process import ray_app
from service.process.settings import Settings
from service.serving.exchange import OPEN_FILES, OPEN_PATHS
from tests import waiting
from tests.waiting import free_port

until = partial(waiting.until, seconds=600)  # nodes start slowly on a busy machine
KEY = "sesame"
NODE = {"num_cpus": 3, "object_store_memory": 80 * 2**20}
REPLICAS = 4
LONGEST = 65


class Service:
    """The application on a cluster of three nodes, each with an HTTP proxy on the same port."""

    def __init__(self, folder: Path) -> None:
        for d in (64, LONGEST):
            export_model(d, "batcher", folder)
        os.environ[ray_app.KEY] = KEY  # of every node: replicas inherit it
        self.cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
        self.nodes = [self.cluster.add_node(**NODE) for _ in range(2)]
        ray.init(address=self.cluster.address, log_to_driver=False)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.settings = Settings(
            models=folder, build=False, log_level="warning", api_key=KEY, replica_cpus=0.5, replicas=REPLICAS,
            max_replicas=REPLICAS, replica_requests=4,
        )  # fmt: skip
        serve.start(proxy_location="EveryNode", http_options={"host": "127.0.0.1", "port": port})
        self.deploy()

    def deploy(self, **options: Any) -> None:
        serve.run(ray_app.application(replace(self.settings, **options)), name=ray_app.NAME, route_prefix="/")

    def processes(self, deployment: str = ray_app.NAME) -> set[int]:
        """Those that serve; all of the cluster are children of this one."""
        found = set()
        for process in psutil.Process().children(recursive=True):
            try:
                if " ".join(process.cmdline()).startswith(f"ray::ServeReplica:{ray_app.NAME}:{deployment}"):
                    found.add(process.pid)
            except psutil.Error:
                continue
        return found

    def client(self) -> Client:
        return Client(self.url, api_key=KEY, retries=15, patience=90)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, headers={"X-API-Key": KEY}, timeout=30, **options)

    def metric(self, line: str) -> float:
        """A figure of all replicas; NaN while a proxy is changing over."""
        try:
            text = self.get("/metrics").text
        except httpx.TransportError:
            return float("nan")
        found = re.findall(rf"^{re.escape(line)} (\S+)$", text, re.MULTILINE)
        return float(found[0]) if found else 0.0

    def settled(self, replicas: int = REPLICAS) -> bool:
        ready = self.metric('median_replicas{ready="true"}')
        return ready == replicas and len(self.processes()) == replicas

    def close(self) -> None:
        serve.shutdown()
        ray.shutdown()
        self.cluster.shutdown()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    made = Service(tmp_path_factory.mktemp("models"))
    try:
        until(made.settled)
        yield made
    finally:
        made.close()


class Load:
    """Clients that ask all the time, and compare every answer with numpy's."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.stop = threading.Event()
        self.answers = 0
        self.attempts: Counter[int] = Counter()
        self.wrong: list[Any] = []
        self.lost: list[str] = []
        self.lock = threading.Lock()

    def ask_on(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        with self.service.client() as client:
            while not self.stop.is_set():
                rows, d = int(rng.integers(1, 9)), int(rng.integers(1, LONGEST + 1))
                x = rng.normal(size=(rows, d)) * 10.0 ** rng.integers(-200, 200)
                if rng.random() < 0.3:
                    x = np.round(x, 1 - int(np.floor(np.log10(np.abs(x).max()))))  # ties
                try:
                    self.note(client.median(x, format=["json", "npy", "raw"][seed % 3]), x)
                except ServiceError as error:
                    self.lost.append(f"{error.status} {error}")

    def note(self, answer: ServiceAnswer, x: Any) -> None:
        right = answer.medians.tobytes() == np.median(x, axis=1).tobytes()
        with self.lock:
            self.answers += 1
            self.attempts[answer.attempts] += 1
            if not right:
                self.wrong.append((x, answer.medians))

    def more(self, count: int) -> None:
        """Wait for so many more answers."""
        goal = self.answers + count
        until(lambda: self.answers >= goal, what=lambda: f"{self.answers} of {goal} answers; lost: {self.lost[:3]}")


@contextmanager
def load(service: Service, clients: int = 6) -> Iterator[Load]:
    """Every answer right, and none lost: what failed was sent again by the client, as it was told."""
    made = Load(service)
    threads = [threading.Thread(target=made.ask_on, args=(i,)) for i in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        made.stop.set()
        for thread in threads:
            thread.join(180)
    print(f"{made.answers} answers; attempts: {dict(sorted(made.attempts.items()))}")
    assert not made.wrong
    assert not made.lost


def test_answers_under_load_are_numpys(service: Service) -> None:
    counted = 'median_requests_total{route="/median",status="200"}'
    before = service.metric(counted)
    with load(service) as made:
        made.more(600)
    assert set(made.attempts) == {1}
    # the figures are those of all replicas: none of them has answered all
    until(
        lambda: service.metric(counted) == before + made.answers,
        what=lambda: f"{service.metric(counted)} {made.answers}",
    )


def test_a_reload_reaches_every_replica(service: Service) -> None:
    export_model(33, "batcher", service.settings.models)
    body = {"vector": list(range(33)), "model": "median-batcher-d33"}
    headers = {"X-API-Key": KEY}
    assert httpx.post(service.url + "/median", json=body, headers=headers).status_code == 404
    assert httpx.post(service.url + "/models/reload", headers=headers, timeout=30).status_code == 200

    def everywhere() -> bool:  # each of the four is asked, but for a chance of one in a million
        answers = [httpx.post(service.url + "/median", json=body, headers=headers) for _ in range(60)]
        return all(answer.status_code == 200 for answer in answers)

    until(everywhere)


def test_every_way_in_asks_for_the_key(service: Service) -> None:
    """All that the application's own description names, but for what is open on one machine too."""
    ways = [
        (method, re.sub(r"\{\w+\}", "median-batcher-d64", path))
        for path, methods in service.get("/openapi.json").json()["paths"].items()
        for method in methods
        if path not in OPEN_PATHS and not path.startswith(OPEN_FILES)
    ]
    assert {("post", "/median"), ("post", "/models/reload"), ("get", "/metrics")} <= set(ways)
    for method, path in [*ways, ("get", "/openapi.json"), ("get", "/nothing")]:
        for headers in ({}, {"X-API-Key": KEY + "x"}, {"Authorization": "Bearer x"}):
            for _ in range(4):  # each on a connection of its own, and so on any of the proxies
                answer = httpx.request(method.upper(), service.url + path, headers=headers)
                assert answer.status_code == 401, (method, path, answer.text)


def test_handles_lead_to_nothing_but_the_application(service: Service) -> None:
    """Whoever is inside the cluster can call the methods of a deployment: none of them answers a median."""
    own = {name for name in vars(ray_app.Replica) if not name.startswith("__")}
    assert own == {"check_health"}
    handle = serve.get_app_handle(ray_app.NAME)
    assert handle.check_health.remote().result(timeout_s=30) is None
    with pytest.raises(Exception, match="median"):
        handle.median.remote([[1.0]]).result(timeout_s=30)


def test_a_replica_that_is_killed_is_replaced(service: Service) -> None:
    with load(service) as made:
        made.more(100)
        for _ in range(2):
            before = service.processes()
            psutil.Process(min(before)).kill()
            made.more(100)
            until(lambda: len(service.processes() - before) == 1 and service.settled())  # noqa: B023
        made.more(100)


def test_a_replica_that_hangs_is_replaced(service: Service) -> None:
    """It does not answer when Ray asks for its health; nor do the requests that it has, until it is given up."""
    victim = min(service.processes())
    psutil.Process(victim).suspend()
    with load(service) as made:
        until(lambda: victim not in service.processes() and service.settled())
        made.more(100)


def test_a_board_that_is_killed_is_replaced(service: Service) -> None:
    (board,) = service.processes("board")
    with load(service) as made:
        made.more(50)
        psutil.Process(board).kill()
        made.more(100)
    until(lambda: service.processes("board") - {board})
    until(service.settled)
    export_model(17, "batcher", service.settings.models)
    body = {"vector": [1.0], "model": "median-batcher-d17"}
    headers = {"X-API-Key": KEY}
    assert httpx.post(service.url + "/models/reload", headers=headers, timeout=30).status_code == 200
    until(lambda: all(httpx.post(service.url + "/median", json=body, headers=headers).is_success for _ in range(60)))


def test_a_node_that_is_lost_is_made_up_for(service: Service) -> None:
    """The whole node: its replicas, its proxy, and the board if it is there."""

    node = max(service.nodes, key=lambda node: len(on_node(node) & service.processes()))
    lost = on_node(node) & service.processes()
    assert lost
    with load(service) as made:
        made.more(100)
        service.cluster.remove_node(node, allow_graceful=False)
        made.more(200)
        until(lambda: not lost & service.processes() and service.settled())
        made.more(100)
    service.nodes.remove(node)
    service.nodes.append(service.cluster.add_node(**NODE))


def on_node(node: Any) -> set[int]:
    """The processes of a node, which its raylet started."""
    found = set()
    for info in node.all_processes["raylet"]:
        found |= {child.pid for child in psutil.Process(info.process.pid).children(recursive=True)}
    return found


def test_a_new_version_is_rolled_out_under_load(service: Service) -> None:
    before = service.processes()
    with load(service) as made:
        made.more(100)
        service.deploy(max_batch=7)
        until(lambda: not before & service.processes() and service.settled())
        made.more(100)


def test_more_replicas_come_when_many_requests_wait(service: Service) -> None:
    service.deploy(replicas=1, max_replicas=3, replica_requests=1)
    until(lambda: service.settled(1))
    with load(service, clients=12) as made:
        until(lambda: len(service.processes()) > 1)
        made.more(100)
