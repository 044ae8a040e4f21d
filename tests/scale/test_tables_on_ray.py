"""Tables on a Ray cluster of several nodes, simulated on this machine: the same answers, also when nodes die."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ray = pytest.importorskip("ray")

import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

from service.batch import grouping  # noqa: E402
from service.batch.engines import RayEngine  # noqa: E402
from service.batch.run import run  # noqa: E402
from tests.service.batch.killing import Doomed, Kills  # noqa: E402
from tests.service.batch.tables import answers, batch, options  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")
# what can be asked, and how often the workers run for it
SHAPES = {("--column", "v"): 1, ("--column", "x", "--quantile", "0.001", "0.5"): 2, ("--column", "x", "--by", "k"): 2}


@pytest.fixture(autouse=True)
def partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several of a small table, so that all nodes have groups to answer."""
    monkeypatch.setattr(grouping, "PARTITION", 500)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes, the head one of them, with a processor each."""
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
        pq.write_table(pa.table(table), folder / f"{i}.parquet", row_group_size=250)
    return folder


@pytest.mark.parametrize("shape", SHAPES)
def test_both_engines_answer_alike(cluster: Any, data: Path, tmp_path: Path, shape: tuple[str, ...]) -> None:
    run(options("--input", data, *shape, "--engine", "ray", "--out", tmp_path / "ray"))
    batch("--input", data, *shape, "--out", tmp_path / "here")
    assert answers(tmp_path / "ray").equals(answers(tmp_path / "here"))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_killed_actor_changes_nothing(cluster: Any, data: Path, tmp_path: Path, shape: tuple[str, ...]) -> None:
    workers = Kills(RayEngine(2), tmp_path)
    run(options("--input", data, *shape, "--out", tmp_path / "ray"), workers)
    assert workers.runs == SHAPES[shape]
    assert (tmp_path / f"killed in run {workers.runs}").exists()
    batch("--input", data, *shape, "--out", tmp_path / "here")
    assert answers(tmp_path / "ray").equals(answers(tmp_path / "here"))


class Loses(RayEngine):
    """Loses a node in every pass, while it works there; all processors of the cluster are in use."""

    def __init__(self, cluster: Any, folder: Path) -> None:
        self.cluster, self.folder, self.runs = cluster, folder, 0
        super().__init__(0)

    def run(self, task: Any, items: Sequence[Any]) -> Iterator[Any]:
        node = self.cluster.add_node(num_cpus=1)
        while True:  # until it is counted, and one that was lost before is not
            there = [each["NodeID"] for each in ray.nodes() if each["Alive"]]
            if node.node_id in there and self.workers == len(there):
                break
            time.sleep(0.05)
        self.runs += 1
        mark = self.folder / f"lost in run {self.runs}"
        lost = threading.Thread(target=self.lose, args=(node, mark))
        lost.start()
        yield from super().run(Doomed(task, node.node_id, mark), items)
        lost.join()

    def lose(self, node: Any, mark: Path) -> None:
        while not mark.exists():
            time.sleep(0.05)
        self.cluster.remove_node(node, allow_graceful=False)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_lost_node_changes_nothing(cluster: Any, data: Path, tmp_path: Path, shape: tuple[str, ...]) -> None:
    workers = Loses(cluster, tmp_path)
    run(options("--input", data, *shape, "--out", tmp_path / "ray"), workers)
    assert workers.runs == SHAPES[shape]
    assert (tmp_path / f"lost in run {workers.runs}").exists()
    batch("--input", data, *shape, "--out", tmp_path / "here")
    assert answers(tmp_path / "ray").equals(answers(tmp_path / "here"))


def test_errors_come_through(cluster: Any, tmp_path: Path) -> None:
    from service.batch.inputs import TableError

    pq.write_table(pa.table({"x": [1.0, None]}), tmp_path / "t.parquet")
    with pytest.raises(TableError, match=r"t\.parquet, column 'x', row group 0: a null"):
        run(options("--input", tmp_path / "t.parquet", "--column", "x", "--engine", "ray", "--out", tmp_path / "o"))
