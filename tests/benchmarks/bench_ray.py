"""The exact median of one column of float32 on a Ray cluster of this machine, four ways, beside Ray's own Quantile.

    .venv-scale/bin/python tests/benchmarks/bench_ray.py --entries 100000000

Needs Ray (`make scale` has it). Every way is a process with a cluster of its own, of two processors. Private memory is
polled: that of all processes of the cluster together, and that of the largest. Exit status 1 where an answer of ours differs
from numpy's.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from bench_vector import sorted_entries, write

ROOT = Path(__file__).parents[2]
WAYS = ("medians", "quantiles", "ExactQuantile", "Quantile")


def answer(way: str, paths: list[str]) -> Any:
    import ray
    from ray.data.aggregate import Quantile

    from service.tables import medians
    from service.tables.ray import ExactQuantile, quantiles

    if way == "medians":
        return medians(paths, columns="x", engine="ray")["median"][0].as_py()
    dataset = ray.data.read_parquet(paths, columns=["x"])
    if way == "quantiles":
        return quantiles(dataset, "x")[0]
    aggregation = ExactQuantile("x") if way == "ExactQuantile" else Quantile("x")
    return next(iter(dataset.aggregate(aggregation).values()))


class Watch(threading.Thread):
    """Processor time and private memory of this process and the workers of its cluster."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.me, self.ended = psutil.Process(), threading.Event()
        self.together, self.largest = 0, 0
        self.processor: dict[int, float] = {}

    def look(self) -> None:
        total = 0
        for process in [self.me, *self.me.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                if process.pid == self.me.pid or process.cmdline()[:1][0].startswith("ray::"):
                    times, memory = process.cpu_times(), process.memory_full_info().uss
                    self.processor[process.pid] = times.user + times.system
                    self.largest, total = max(self.largest, memory), total + memory
        self.together = max(self.together, total)

    def run(self) -> None:
        while not self.ended.wait(0.1):
            self.look()


def one(way: str, paths: list[str]) -> None:
    """Answer in this process, and print the answer and what it took."""
    import ray

    environment = {"env_vars": {"PYTHONPATH": str(ROOT)}}
    ray.init(num_cpus=2, include_dashboard=False, logging_level="error", runtime_env=environment)
    ray.data.DataContext.get_current().enable_progress_bars = False
    ray.data.range(100).map_batches(lambda batch: batch).count()  # workers are there
    watch = Watch()
    watch.look()
    before, started = sum(watch.processor.values()), time.perf_counter()
    watch.start()
    found = answer(way, paths)
    seconds = time.perf_counter() - started
    watch.ended.set()
    watch.join()
    processor = sum(watch.processor.values()) - before
    print(f"\nANSWER {found!r} {seconds} {processor} {watch.together / 1e9} {watch.largest / 1e9}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=10**7)
    parser.add_argument("--way", choices=WAYS, nargs="+", default=list(WAYS))
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        one(args.one[0], args.one[1:])
        return 0
    good = True
    with tempfile.TemporaryDirectory() as folder:
        data = write(Path(folder) / "data", "normal", args.entries + 1 - args.entries % 2)
        paths = sorted(data.glob("*.parquet"))
        entries = args.entries + 1 - args.entries % 2
        want = float(sorted_entries(paths, entries)[entries // 2])
        print(f"{entries} entries, median {want!r}")
        for way in args.way:
            command = [sys.executable, "-W", "ignore", __file__, "--one", way, *map(str, paths)]
            variables = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_raylet_start_wait_time_s": "300"}
            done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
            (line,) = [each for each in done.stdout.splitlines() if each.startswith("ANSWER")] or [""]
            if not line:
                sys.exit(done.stdout + done.stderr)
            found, seconds, processor, together, largest = map(float, line.split()[1:])
            print(
                f"  {way:14} {seconds:7.1f} s, {processor:7.1f} s of processors, {together:5.2f} GB together, "
                f"{largest:5.2f} GB in the largest process{'' if found == want else f', DIFFERS: {found!r}'}",
                flush=True,
            )
            good &= found == want or way == "Quantile"
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
