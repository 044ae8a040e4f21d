"""One runtime in a process of its own: `python -m tests.runtimes.worker MODULE`, a job a line on stdin, a result a line out.

{"model": path, "rows": path.npy, "out": path.npy, "batch": 1 or null}  ->
{"loading": seconds of processor time, "seconds": per row} or {"error": text}
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from tests.runtimes.adapters import RUNTIMES, Array, one_by_one, version

REPEATS, PATIENCE = 5, 1.0  # the best of so many runs, or of what fits in so many seconds


def work(load: Any, job: dict[str, Any]) -> dict[str, Any]:
    before = used()
    run = load(Path(job["model"]))
    x = np.load(job["rows"])
    run(x[:1] if job["batch"] else x)  # compilers compile at the first call
    loading = used() - before
    times: list[float] = []
    started = time.perf_counter()
    y: Array = np.zeros(0)
    while not times or (len(times) < REPEATS and time.perf_counter() - started < PATIENCE):
        start = time.perf_counter()
        y = np.asarray(one_by_one(run, x) if job["batch"] else run(x)).reshape(len(x), -1)
        wall = time.perf_counter() - start
        times.append(wall if job["batch"] else getattr(run, "seconds", wall))
    np.save(job["out"], y)
    return {"loading": round(loading, 2), "seconds": min(times) / len(x)}


def used() -> float:
    """Processor time, of processes that ended too."""
    return sum(os.times()[:4])


def main(module: str) -> None:
    sys.stdout.flush()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # runtimes talk on both
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    warnings.simplefilter("ignore")
    try:
        adapter = RUNTIMES[module].adapter()
        hello = {"version": version(adapter).split("+")[0], "options": getattr(adapter, "OPTIONS", "")}
    except Exception as error:
        print(json.dumps({"missing": f"{type(error).__name__}: {error}"}), file=out, flush=True)
        return
    print(json.dumps(hello), file=out, flush=True)
    for line in sys.stdin:
        try:
            answer = work(adapter.load, json.loads(line))
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
