"""The conformance matrix: `python -m tests.runtimes.matrix`, behind `make runtimes`.

Exports every case, runs it in every runtime, each in a process of its own, compares with numpy and writes models/RUNTIMES.md
and models/runtimes.json. Fails when a required runtime is not exact on a promised file, or when a property is refuted; a
proof whose query did not end is told, and no failure. The table is written after each runtime: cells that were not run
yet, or with --only or --case are not, stay. Each cell has the hash of the graph that it was measured on, so the table says
itself which cells are of older files, and --stale lists those that the exporter would write otherwise now.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from tqdm import tqdm

from tests.runtimes.adapters import RUNTIMES, Runtime
from tests.runtimes.cases import Case, catalogue
from tests.runtimes.proofs import PROOFS
from tests.runtimes.report import Result, stale, title, unproved
from tests.runtimes.table import Table, graph_hash, merged, read, save

ROOT = Path(__file__).resolve().parents[2]
EACH = 4  # vectors per family
TIMEOUT = 180.0  # seconds of processor time for one file in one runtime,
PATIENCE = 10  # times as long by the clock


@dataclass
class Prepared:
    case: Case
    model: Path
    rows: Path
    truth: np.ndarray[Any, Any]
    file: str  # the hash of its graph


def prepare(folder: Path, wanted: str) -> list[Prepared]:
    prepared = []
    for i, case in enumerate(tqdm([c for c in catalogue() if wanted in c.name], desc="exporting", disable=None)):
        x = case.rows(EACH)
        rows = folder / f"rows{i}.npy"
        np.save(rows, x)
        model = case.export(folder / str(i))
        prepared.append(Prepared(case, model, rows, case.answers(x), graph_hash(model)))
    return prepared


class Worker:
    """The process of one runtime; started again after a crash."""

    def __init__(self, runtime: Runtime, timeout: float = TIMEOUT) -> None:
        self.timeout = timeout
        python = ROOT / ".venv-runtimes" / "bin" / "python" if runtime.env else Path(sys.executable)
        self.command = [str(python), "-m", "tests.runtimes.worker", runtime.module]
        self.start()

    def start(self) -> None:
        env = os.environ | {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(self.command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT, env=env)
        self.hello = self.read()

    def read(self) -> dict[str, Any]:
        """The next line, or why there is none: a busy machine makes no runtime late, only processor time does."""
        assert self.process.stdout
        before, start = self.used(), time.monotonic()
        while not select.select([self.process.stdout], [], [], 0.5)[0]:
            if self.used() - before > self.timeout or time.monotonic() - start > PATIENCE * self.timeout:
                return {"crash": f"no answer in {self.timeout:g} s"}
        line = self.process.stdout.readline()
        return dict(json.loads(line)) if line else {"crash": "the process crashed"}

    def used(self) -> float:
        """Processor time, of the processes that it started too."""
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.process.pid)
            return sum(sum(p.cpu_times()[:4]) for p in [process, *process.children(recursive=True)])
        return 0.0

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        answer = self.read()
        if "crash" in answer:
            self.close()
            self.start()
        return answer

    def close(self) -> None:
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                child.kill()
        self.process.kill()
        self.process.communicate()


def run_all(
    runtimes: list[Runtime], prepared: list[Prepared], folder: Path, timeout: float = TIMEOUT
) -> Iterator[dict[str, Any]]:
    bar = tqdm(total=len(runtimes) * len(prepared), desc="running", unit="file", disable=None)
    base: dict[str, float] = {}
    for runtime in runtimes:
        start, worker = time.monotonic(), Worker(runtime, timeout)
        for p in prepared:
            bar.set_postfix_str(f"{runtime.name}: {p.case.name}")
            result = _run_one(runtime, worker, p, folder)
            if runtime.module == "onnxruntime" and "seconds" in result:
                base[p.case.name] = result["seconds"]
            if result.get("seconds") and p.case.name in base:
                result["times_onnxruntime"] = float(f"{result['seconds'] / base[p.case.name]:.3g}")
            yield result
            bar.update()
        worker.close()
        bar.write(f"{runtime.name}: {time.monotonic() - start:.0f} s")
    bar.close()


def _run_one(runtime: Runtime, worker: Worker, p: Prepared, folder: Path) -> dict[str, Any]:
    case = p.case
    result: dict[str, Any] = {
        "runtime": runtime.name, "required": runtime.required,
        "version": worker.hello.get("version"), "options": worker.hello.get("options", ""),
        **case.about, "promised": case.promised, "file": p.file,
    }  # fmt: skip
    if "version" not in worker.hello:
        return result | {"status": "missing", "reason": tidy(worker.hello.get("missing") or worker.hello["crash"])}
    if not runtime.takes(case.d, case.profile):
        return result | {"status": "not tried"}
    x = np.load(p.rows)
    step = max(1, len(x) // runtime.rows)
    rows, out = folder / "rows.npy", folder / "out.npy"
    np.save(rows, x[::step][: runtime.rows])
    truth = p.truth[::step][: runtime.rows]
    answer = worker.ask({"model": str(p.model), "rows": str(rows), "out": str(out), "batch": case.batch})
    if "seconds" not in answer:
        return result | {"status": "fails", "reason": tidy(answer.get("error") or answer["crash"])}
    y = np.load(out).astype(np.float64)
    error = float(np.abs(y - truth).max()) if y.shape == truth.shape and np.isfinite(y).all() else None
    status = "exact" if error == 0 else "inexact"
    return result | {"status": status, "max_error": error, "rows": len(truth)} | answer


def tidy(text: str) -> str:
    """The first line of an error, without paths of this machine."""
    text = re.sub(r"(/[\w.+-]+){2,}/?", "", text)
    return " ".join(text.split())[:160]


def stale_cells(table: Table, folder: Path) -> list[str]:
    """The cells that are missing, or of another graph than the exporter would write now."""
    cases, cells = catalogue(), {(r["runtime"], title(r)): r for r in table["results"]}
    files = {
        c.name: graph_hash(c.export(folder / str(i))) for i, c in enumerate(tqdm(cases, "exporting", disable=None))
    }
    found = []
    for runtime in RUNTIMES.values():
        names = [c.name for c in cases if (cell := cells.get((runtime.name, c.name))) is None or stale(cell, files)]
        found += [f"{runtime.name}: {name}" for name in names]
    done = {title(p): p.get("file") for p in table["proofs"]}
    return found + [f"proof: {p.name}" for p in PROOFS if done.get(p.name) != p.hash(folder)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=[*RUNTIMES, "proofs"], help="a runtime, repeatable (default: all and proofs)"
    )
    parser.add_argument("--case", default="", help="only cases whose name holds this text")
    parser.add_argument("--out", type=Path, default=ROOT / "models", help="where RUNTIMES.md and runtimes.json go")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, metavar="S", help="of processor time for a file")
    parser.add_argument("--stale", action="store_true", help="run nothing, list the cells that are of older files")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if args.stale:
            found = stale_cells(read(args.out), Path(name))
            print("\n".join(found) or "every cell is of the file as it is")
            return 1 if found else 0
        table = measure(args, Path(name))
    return verdict(table)


def measure(args: argparse.Namespace, folder: Path) -> Table:
    """Run what is asked for, and write the table after each runtime and proof."""
    old, titles = read(args.out), [*(c.name for c in catalogue()), *(p.name for p in PROOFS)]
    runtimes = [r for r in RUNTIMES.values() if not args.only or r.module in {*args.only, "onnxruntime"}]
    prepared = prepare(folder, args.case)
    files = {p.case.name: p.file for p in prepared}
    results: list[Result] = []
    for result in run_all(runtimes, prepared, folder, args.timeout):
        results.append(result)
        if len(results) % len(prepared) == 0:  # all of a runtime
            save(args.out, merged(old, titles, files, results, []))
    proved: list[Result] = []
    for proof in PROOFS if not args.case and "proofs" in (args.only or ["proofs"]) else ():
        proved.append(proof.run(folder / "proofs"))
        files[proof.name] = proved[-1]["file"]
    table = merged(old, titles, files, results, proved)
    save(args.out, table)
    return table


def verdict(table: Table) -> int:
    """Say what came out; 1 for a broken promise."""
    results = table["results"]
    broken = [r for r in results if r["required"] and r["promised"] and r["status"] != "exact"]
    for r in broken:
        print(f"{r['runtime']}: {title(r)}: {r['status']}", r.get("reason", ""))
    counts = {s: sum(r["status"] == s for r in results) for s in ("exact", "inexact", "fails", "missing", "not tried")}
    older = sum(stale(r, table["files"]) for r in [*results, *table["proofs"]])
    print(", ".join(f"{n} {s}" for s, n in (counts | {"of older files": older}).items()))
    for p in (p for p in table["proofs"] if not p["proved"]):
        print(f"Marabou, {title(p)}: {unproved(p)}")
    return 1 if broken or any(p["refuted"] for p in table["proofs"]) else 0


if __name__ == "__main__":
    sys.exit(main())
