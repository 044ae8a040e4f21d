"""Tables on a Ray cluster of several nodes, simulated on this machine: the same answers, also when a node is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

ray = pytest.importorskip("ray")

import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

from service.tables import medians, run  # noqa: E402
from service.tables import ray as on_ray  # noqa: E402
from service.tables.types import TableError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")
SHAPES: list[dict[str, Any]] = [
    {"columns": "v"}, {"columns": "x", "q": [0.001, 0.5]}, {"columns": "x", "by": "k"}, {"columns": "x", "by": ["s", "k"]},
]  # fmt: skip


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
        table["s"] = pa.array(np.array(["a", "b", "ä"])[rng.integers(0, 3, n)])
        pq.write_table(pa.table(table), folder / f"{i}.parquet", row_group_size=250)
    return folder


@pytest.mark.parametrize("shape", SHAPES)
def test_both_engines_answer_alike(
    cluster: Any, data: Path, shape: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_ray, "SHARE", 2000)
    assert medians(data, **shape, engine="ray", memory="1MB") == medians(data, **shape)


@pytest.mark.parametrize("shape", SHAPES[:3])
def test_a_lost_node_changes_nothing(
    cluster: Any, data: Path, shape: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A node is removed while a task waits on it; Ray runs the task elsewhere."""
    monkeypatch.setattr(on_ray, "SHARE", 2000)
    node, ended = cluster.add_node(num_cpus=1), threading.Event()
    cluster.wait_for_nodes()
    monkeypatch.setattr(run, "PART", 500)
    name, mark = "_read" if "by" in shape else "_call", tmp_path / "reached"
    task, doomed = getattr(on_ray, name), node.node_id

    def waits(*given: Any) -> Any:
        if ray.get_runtime_context().get_node_id() == doomed:
            mark.touch()
            time.sleep(600)
        end = time.monotonic() + 5
        while not mark.exists() and time.monotonic() < end:
            time.sleep(0.02)
        return task(*given)

    def lose() -> None:
        while not mark.exists() and not ended.is_set():
            time.sleep(0.05)
        cluster.remove_node(node, allow_graceful=False)

    monkeypatch.setattr(on_ray, name, waits)
    losing = threading.Thread(target=lose)
    losing.start()
    try:
        found = medians(data, **shape, engine="ray", memory="1MB")
    finally:
        ended.set()
        losing.join()
    assert mark.exists()
    assert found == medians(data, **shape)


def test_errors_come_through(cluster: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1.0, None], "k": [1, 2]}), tmp_path / "t.parquet")
    for by in ((), "k"):
        with pytest.raises(TableError, match="column 'x': 1 values are null"):
            medians(tmp_path / "t.parquet", columns="x", by=by, engine="ray")
    with pytest.raises(TableError, match="give a path"):
        medians({"x": [1.0]}, engine="ray")


def test_an_aggregation_for_ray_data(cluster: Any, data: Path) -> None:
    """Ray's own Quantile rounds otherwise than numpy; values that repeat are counted."""
    from service.tables.ray import ExactQuantile

    ray.data.DataContext.get_current().enable_progress_bars = False
    table = pq.read_table(data)
    x, k = table["x"].to_numpy(), table["k"].to_numpy()
    few = np.round(x * 2).astype(np.int64)
    rows = pa.table({"x": x, "k": k, "few": few, "hole": pa.array(x, mask=k > 100)})
    dataset = ray.data.from_arrow([rows.slice(i, 3000) for i in range(0, len(rows), 3000)])
    exact = [
        ExactQuantile("x"),
        ExactQuantile("x", q=0.9, method="hazen", alias_name="high"),
        ExactQuantile("few", q=0.3),
    ]
    found = dataset.aggregate(*exact, ExactQuantile("hole"))
    assert found == {
        "median(x)": np.median(x), "high": np.quantile(x, [0.9], method="hazen")[0], "q0.3(few)": np.quantile(few, [0.3])[0],
        "median(hole)": np.median(x[k <= 100]),
    }  # fmt: skip
    groups = {row["k"]: row["median(x)"] for row in dataset.groupby("k").aggregate(ExactQuantile("x")).take_all()}
    assert groups == {key: np.median(x[k == key]) for key in np.unique(k).tolist()}


@pytest.mark.parametrize("column", ["x", "y", "hole"])
def test_quantiles_are_counted_on_the_nodes(cluster: Any, column: str) -> None:
    """Blocks of several sizes, one of them empty; `memory` is too small to gather before values are counted."""
    from service.tables.ray import quantiles

    ray.data.DataContext.get_current().enable_progress_bars = False
    rng, n = np.random.default_rng(6), 9000
    y = rng.normal(size=n) * 10.0 ** rng.integers(-30, 30, n)
    rows = pa.table({"x": rng.normal(size=n).astype(np.float32), "y": y, "hole": pa.array(y, mask=y > 1)})
    dataset = ray.data.from_arrow([rows.slice(0, 10), rows.slice(10, 0), rows.slice(10, 6000), rows.slice(6010)])
    own = rows[column].drop_null().to_numpy()
    assert quantiles(dataset, column, memory="9kB") == [np.median(own)]
    wanted = [0.1, 0.5, 0.999]
    assert quantiles(dataset, column, wanted, method="hazen") == np.quantile(own, wanted, method="hazen").tolist()
    with pytest.raises(TableError, match=r"column 'hole': .* values are null"):
        quantiles(dataset, "hole", ignore_nulls=False)


def test_a_killed_driver_leaves_no_process(tmp_path: Path) -> None:
    """A cluster that the command started itself ends with the command, whichever way the command ends."""
    rng = np.random.default_rng(4)
    for i in range(4):
        pq.write_table(pa.table({"x": rng.normal(size=1 << 20)}), tmp_path / f"{i}.parquet", row_group_size=1 << 14)
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {"PYTHONPATH": str(root), "RAY_ADDRESS": "local"}  # not the cluster of the other tests
    command = [sys.executable, "-m", "service.tables", "--input", str(tmp_path), "--column", "x", "--engine", "ray"]
    for sent in (signal.SIGKILL, signal.SIGTERM):
        with (tmp_path / "said").open("w") as said:
            process = subprocess.Popen(
                [*command, "--memory", "1MB"], cwd=root, env=environment, stdout=said, stderr=said
            )
        children: list[psutil.Process] = []
        end = time.monotonic() + 120
        while not _working(children) and process.poll() is None and time.monotonic() < end:
            children = psutil.Process(process.pid).children(recursive=True)
            time.sleep(0.05)
        assert process.poll() is None, (tmp_path / "said").read_text()
        assert _working(children)
        process.send_signal(sent)
        process.wait(60)
        assert not psutil.wait_procs(children, timeout=120)[1]


def _working(processes: list[psutil.Process]) -> bool:
    """Whether one of the processes runs a task of ours."""
    for each in processes:
        with contextlib.suppress(psutil.Error):
            if "ray::_call" in " ".join(each.cmdline()):
                return True
    return False
