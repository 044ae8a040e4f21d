"""The conformance matrix: `python -m tests.runtimes.matrix`, behind `make runtimes`.

Exports every case, runs it in every runtime, each in a process of its own, compares with numpy and writes models/RUNTIMES.md
and models/runtimes.json. Fails when a required runtime is not exact on a promised file, or when a property is refuted; a
proof whose searches did not end is told, and no failure. The table is written after each runtime: cells that were not run
yet, or with --only or --case are not, stay as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from exporter.build import build, to_onnx
from exporter.files.manifest import replace_file, write
from exporter.options import Options
from exporter.question.grid import Grid
from exporter.question.task import median
from exporter.tools.properties import write_properties
from tests.runtimes.adapters import RUNTIMES, Runtime
from tests.runtimes.cases import Case, catalogue
from tests.runtimes.report import markdown, unproved

Result = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
EACH = 4  # vectors per family
TIMEOUT = 180.0  # seconds for one file in one runtime
PROOFS = (("radix", 3, 2, "range"), ("radix", 3, 2, "swap"), ("batcher", 3, 16, "range"))


@dataclass
class Prepared:
    case: Case
    model: Path
    rows: Path
    truth: np.ndarray[Any, Any]


def prepare(folder: Path, wanted: str) -> list[Prepared]:
    prepared = []
    for i, case in enumerate(tqdm([c for c in catalogue() if wanted in c.name], desc="exporting", disable=None)):
        x = case.rows(EACH)
        rows = folder / f"rows{i}.npy"
        np.save(rows, x)
        prepared.append(Prepared(case, case.export(folder / str(i)), rows, case.answers(x)))
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
        """The next line, or why there is none."""
        assert self.process.stdout
        timer = threading.Timer(self.timeout, self.process.kill)
        timer.start()
        line = self.process.stdout.readline()
        late = not timer.is_alive()
        timer.cancel()
        if line:
            return dict(json.loads(line))
        return {"crash": f"no answer in {self.timeout:g} s" if late else "the process crashed"}

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
        self.process.kill()
        self.process.communicate()


def run_all(
    runtimes: list[Runtime], prepared: list[Prepared], folder: Path, timeout: float = TIMEOUT
) -> Iterator[dict[str, Any]]:
    bar = tqdm(total=len(runtimes) * len(prepared), desc="running", unit="file", disable=None)
    base: dict[str, float] = {}
    for runtime in runtimes:
        worker = Worker(runtime, timeout)
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
    bar.close()


def _run_one(runtime: Runtime, worker: Worker, p: Prepared, folder: Path) -> dict[str, Any]:
    case = p.case
    result: dict[str, Any] = {
        "runtime": runtime.name, "required": runtime.required,
        "version": worker.hello.get("version"), "options": worker.hello.get("options", ""),
        "construction": case.construction, "d": case.d, "bits": case.bits, "profile": case.profile,
        "dtype": case.dtype, "batch": case.batch, "promised": case.promised,
    }  # fmt: skip
    if "version" not in worker.hello:
        return result | {"status": "missing", "reason": tidy(worker.hello.get("missing", "not installed"))}
    if not runtime.takes(case.d, case.profile):
        return result | {"status": "not tried", "reason": "only small d is tried"}
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
    return result | {"status": status, "max_error": error, "rows": len(truth), "seconds": answer["seconds"]}


def tidy(text: str) -> str:
    """The first line of an error, without paths of this machine."""
    text = re.sub(r"(/[\w.+-]+){2,}/?", "", text)
    return " ".join(text.split())[:160]


def proofs(folder: Path) -> Iterator[dict[str, Any]]:
    """VNN-LIB properties that Marabou proves, on models as small as it can take."""
    for construction, d, bits, kind in tqdm(PROOFS, desc="proving", disable=None):
        model = build(
            median(d), Options(construction, grid=Grid(bits=bits), dtype="float32", profile="dense", inputs="grid")
        )
        path = folder / f"median-{construction}-d{d}-b{bits}.onnx"
        write(to_onnx(model), path, model.description())
        write_properties(model, path)
        about = {"construction": construction, "d": d, "bits": bits, "property": kind}
        net = path if kind == "range" else path.with_name(f"{path.stem}-{kind}.onnx")
        command = [str(ROOT / ".venv-runtimes/bin/python"), "-m", "tests.runtimes.prove", str(net)]
        command.append(str(path.with_name(f"{path.stem}-{kind}.vnnlib")))
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
            yield about | json.loads(done.stdout)
        except (subprocess.SubprocessError, json.JSONDecodeError) as error:
            yield about | {"cases": 0, "proved": False, "refuted": True, "reason": type(error).__name__}


def merged(path: Path, results: list[Result], proved: list[Result]) -> tuple[list[Result], list[Result]]:
    """New cells among the old ones, in the order of runtimes and catalogue."""
    old = json.loads(path.read_text()) if path.exists() else {"results": [], "proofs": []}
    keys = ("runtime", "construction", "d", "bits", "dtype", "profile", "batch")
    cells = {tuple(r[k] for k in keys): r for r in [*old["results"], *results]}
    places = [
        (r.name, c.construction, c.d, c.bits, c.dtype, c.profile, c.batch)
        for r in RUNTIMES.values()
        for c in catalogue()
    ]
    return [cells[p] for p in places if p in cells], proved or old["proofs"]


def save(out: Path, results: list[Result], proved: list[Result]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    table = {"format": 1, "rows_per_family": EACH, "results": results, "proofs": proved}
    replace_file(out / "runtimes.json", (json.dumps(table, indent=1) + "\n").encode())
    replace_file(out / "RUNTIMES.md", markdown(results, proved).encode())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=list(RUNTIMES), help="a runtime, repeatable (default: all)")
    parser.add_argument("--case", default="", help="only cases whose name holds this text")
    parser.add_argument("--out", type=Path, default=ROOT / "models", help="where RUNTIMES.md and runtimes.json go")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, metavar="S", help="for one file in one runtime")
    args = parser.parse_args()
    runtimes = [r for r in RUNTIMES.values() if not args.only or r.module in args.only or r.module == "onnxruntime"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepared = prepare(folder, args.case)
        results: list[Result] = []
        for result in run_all(runtimes, prepared, folder, args.timeout):
            results.append(result)
            if len(results) % len(prepared) == 0:  # all of a runtime
                save(args.out, *merged(args.out / "runtimes.json", results, []))
        proved = [] if args.only or args.case else list(proofs(folder / "proofs"))
    results, proved = merged(args.out / "runtimes.json", results, proved)
    save(args.out, results, proved)
    broken = [r for r in results if r["required"] and r["promised"] and r["status"] != "exact"]
    for r in broken:
        print(f"{r['runtime']}: {r['construction']} d = {r['d']} {r['profile']}: {r['status']}", r.get("reason", ""))
    counts = {s: sum(r["status"] == s for r in results) for s in ("exact", "inexact", "fails", "missing", "not tried")}
    print(", ".join(f"{n} {s}" for s, n in counts.items()))
    for p in (p for p in proved if not p["proved"]):
        print(f"Marabou, {p['property']} of {p['construction']}: {unproved(p)}")
    return 1 if broken or any(p.get("refuted") for p in proved) else 0


if __name__ == "__main__":
    sys.exit(main())
