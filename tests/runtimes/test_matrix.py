"""The matrix's own machinery: the committed result keeps the promise, crashes and errors are told apart, pages are plain."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.runtimes.adapters import RUNTIMES, Runtime
from tests.runtimes.cases import Case, promised
from tests.runtimes.matrix import Prepared, run_all, tidy
from tests.runtimes.prove import cases
from tests.runtimes.report import markdown

MODELS = Path(__file__).resolve().parents[2] / "models"


def test_the_committed_matrix_keeps_the_promise() -> None:
    table = json.loads((MODELS / "runtimes.json").read_text())
    cells = {
        (r["runtime"], r["construction"], r["d"], r["bits"], r["profile"]): r for r in table["results"] if r["promised"]
    }
    for runtime in (r for r in RUNTIMES.values() if r.required):
        for case in promised():
            found = cells[runtime.name, case.construction, case.d, case.bits, case.profile]
            assert found["status"] == "exact", found
    assert any(p["proved"] for p in table["proofs"])
    assert (MODELS / "RUNTIMES.md").read_text() == markdown(table["results"], table["proofs"])


def test_a_runtime_that_is_missing_and_one_that_fails(tmp_path: Path) -> None:
    case = Case("batcher", 5, 16, "float32", "structured")
    x = case.rows(1)
    rows = tmp_path / "rows0.npy"
    np.save(rows, x)
    good = Prepared(case, case.export(tmp_path), rows, case.answers(x))
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"nonsense")
    bad = Prepared(case, broken, rows, case.answers(x))
    light = RUNTIMES["onnxruntime"]
    missing = Runtime("none", "no_such_module", "", False)
    RUNTIMES[missing.module] = missing
    try:
        results = list(run_all([light, missing], [bad, good], tmp_path))
    finally:
        del RUNTIMES[missing.module]
    assert [r["status"] for r in results] == ["fails", "exact", "missing", "missing"]
    assert results[1]["max_error"] == 0
    assert results[1]["times_onnxruntime"] == 1
    page = markdown(results, [])
    assert "| ONNX Runtime |" in page
    assert str(tmp_path) not in page


def test_a_proof_that_did_not_end_is_no_proof_and_no_refutation() -> None:
    about = {
        "construction": "radix",
        "d": 3,
        "bits": 2,
        "property": "swap",
        "cases": 1,
        "searches": 15,
        "proved": False,
    }
    assert "| swap | radix, d = 3, 2 bits, dense | 1 | 15 | no search ended | 300.0 |" in markdown(
        [], [about | {"refuted": False, "seconds": 300.0}]
    )
    assert "| refuted |" in markdown([], [about | {"refuted": True}])


def test_paths_of_the_machine_are_left_out() -> None:
    assert tidy("Error at /some/where/model.onnx:\n  line 2") == "Error at : line 2"


def test_a_disjunction_becomes_single_cases() -> None:
    text = "(declare-const Y_0 Real)\n(assert (or\n    (and (<= Y_0 -1.0) (>= Y_1 2.0))\n    (and (>= Y_0 1.0))\n))\n"
    head = "(declare-const Y_0 Real)\n"
    assert cases(text) == [
        head + "(assert (<= Y_0 -1.0))\n(assert (>= Y_1 2.0))\n",
        head + "(assert (>= Y_0 1.0))\n",
    ]
