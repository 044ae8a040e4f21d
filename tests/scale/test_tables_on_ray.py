"""Tables on a Ray cluster of several nodes, simulated on this machine: the same answers, also when nodes die."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ray = pytest.importorskip("ray")

import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

from service.batch.engines import RayEngine  # noqa: E402
from service.batch.run import run  # noqa: E402
from tests.service.batch.tables import answers, batch, options  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without processors and two nodes with one each."""
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    for _ in range(2):
        made.add_node(num_cpus=1)
    root = str(Path(__file__).resolve().parents[2])
    ray.init(address=made.address, runtime_env={"env_vars": {"PYTHONPATH": root}}, logging_level="warning")
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(2)
    for i in range(3):
        n = 4000
        lists = pa.FixedSizeListArray.from_arrays(rng.normal(size=n * 9).astype(np.float32), 9)
        table = {"k": rng.integers(0, 200, n), "x": rng.normal(size=n).astype(np.float32), "v": lists}
        pq.write_table(pa.table(table), folder / f"{i}.parquet", row_group_size=1000)
    return folder


@pytest.mark.parametrize("shape", [("--column", "v"), ("--column", "x"), ("--column", "x", "--by", "k")])
def test_both_engines_answer_alike(cluster: Any, data: Path, tmp_path: Path, shape: Sequence[str]) -> None:
    run(options("--input", data, *shape, "--engine", "ray", "--out", tmp_path / "ray"))
    batch("--input", data, *shape, "--out", tmp_path / "here")
    assert answers(tmp_path / "ray").equals(answers(tmp_path / "here"))


@dataclass(frozen=True)
class Deadly:
    """A task whose process is killed in the middle of it, the first time."""

    task: Any
    mark: Path

    def __call__(self, item: Any) -> Any:
        try:
            self.mark.touch(exist_ok=False)
        except FileExistsError:
            return self.task(item)
        self.task(item)
        os.kill(os.getpid(), signal.SIGKILL)
        return None


class Kills(RayEngine):
    """Kills one of its processes in every pass."""

    def __init__(self, folder: Path) -> None:
        super().__init__(2)
        self.folder, self.runs = folder, 0

    def run(self, task: Any, items: Sequence[Any]) -> Iterator[Any]:
        self.runs += 1
        return super().run(Deadly(task, self.folder / f"killed in run {self.runs}"), items)


def test_a_killed_actor_changes_nothing(cluster: Any, data: Path, tmp_path: Path) -> None:
    workers = Kills(tmp_path)
    run(options("--input", data, "--column", "x", "--quantile", "0.001", "0.5", "--out", tmp_path / "o"), workers)
    x = pq.read_table(data)["x"].to_numpy()
    (row,) = answers(tmp_path / "o").to_pylist()
    assert workers.runs == 2
    assert (tmp_path / "killed in run 2").exists()
    assert (row["q0.001"], row["q0.5"]) == (np.quantile(x, 0.001), np.quantile(x, 0.5))


@dataclass(frozen=True)
class Slow:
    task: Any

    def __call__(self, item: Any) -> Any:
        time.sleep(0.5)
        return self.task(item)


class Slowly(RayEngine):
    def run(self, task: Any, items: Sequence[Any]) -> Iterator[Any]:
        return super().run(Slow(task), items)


def test_a_node_that_goes_away_changes_nothing(cluster: Any, data: Path, tmp_path: Path) -> None:
    node = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    leaves = threading.Timer(4, cluster.remove_node, (node,), {"allow_graceful": False})
    leaves.start()
    run(options("--input", data, "--column", "x", "--out", tmp_path / "o"), Slowly(3))
    leaves.join()
    x = pq.read_table(data)["x"].to_numpy()
    assert answers(tmp_path / "o")["median"].to_pylist() == [np.median(x)]


def test_errors_come_through(cluster: Any, tmp_path: Path) -> None:
    from service.batch.inputs import TableError

    pq.write_table(pa.table({"x": [1.0, None]}), tmp_path / "t.parquet")
    with pytest.raises(TableError, match=r"t\.parquet, column 'x', row group 0: a null"):
        run(options("--input", tmp_path / "t.parquet", "--column", "x", "--engine", "ray", "--out", tmp_path / "o"))
