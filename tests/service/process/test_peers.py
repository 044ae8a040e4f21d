"""What workers tell each other: one mark for reloads, and figures that add up to those of all, dead or alive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from service.process import metrics
from service.process.peers import Neighbours, Peers, peers_of
from service.process.settings import Settings
from tests.service.conftest import InProcess


def exposition(requests: int, waiting: int, seconds: tuple[float, ...] = ()) -> bytes:
    registry = CollectorRegistry()
    Counter("median_requests_total", "Requests.", ["route"], registry=registry).labels('/a"b\\').inc(requests)
    Gauge("median_queue_rows", "Rows.", registry=registry).set(waiting)
    histogram = Histogram("median_request_seconds", "Time.", registry=registry, buckets=(0.1, 1.0))
    for each in seconds:
        histogram.observe(each)
    Gauge("process_resident_memory_bytes", "Not ours.", registry=registry).set(5)
    return generate_latest(registry)


def values(text: bytes) -> dict[str, float]:
    samples = [s for family in text_string_to_metric_families(text.decode()) for s in family.samples]
    return {" ".join([s.name, *s.labels.values()]): s.value for s in samples}


def test_figures_are_those_of_all_and_the_dead_count_on() -> None:
    live, dead = exposition(3, 7, (0.05, 0.5)), exposition(4, 2, (5.0,))
    told = values(metrics.total([(live, True), (dead, False)]))
    assert told['median_requests_total /a"b\\'] == 7
    assert told["median_queue_rows"] == 7, "nothing waits in what is gone"
    buckets = [told[f"median_request_seconds_bucket {le}"] for le in ("0.1", "1.0", "+Inf")]
    assert buckets == [1, 2, 3]
    assert told["median_request_seconds_count"] == 3
    assert told["median_request_seconds_sum"] == pytest.approx(5.55)
    assert not [name for name in told if "created" in name or "process" in name]


def test_our_own_figures_survive_being_added_up() -> None:
    metrics.VECTORS.labels("x").inc(0)
    one = values(metrics.exposition()[0])
    two = values(metrics.total([(metrics.exposition()[0], True)] * 2))
    assert two
    for name, value in two.items():
        assert value == pytest.approx(2 * one[name]), name


def test_who_has_peers(tmp_path: Path) -> None:
    assert not peers_of(Settings()).several
    assert not peers_of(Settings(runtime_dir=str(tmp_path))).several
    several = peers_of(Settings(runtime_dir=str(tmp_path), workers=2))
    assert isinstance(several, Neighbours)
    asyncio.run(several.tell())
    assert asyncio.run(several.mark()) != several.seen


def test_an_application_asks_its_peers(models: Path, connect: Callable[..., InProcess]) -> None:
    """A reload asked of one that knows of others is passed on, and what goes wrong with that is said."""

    class Others(Peers):
        told = 0

        async def tell(self) -> None:
            self.told += 1

        async def figures(self) -> tuple[bytes, str]:
            return b"all of us", "text/plain"

    others = Others()
    client = connect(models)
    client.engine.peers = others
    assert client.post("/models/reload").status_code == 200
    assert others.told == 1
    assert client.get("/metrics").text == "all of us"
