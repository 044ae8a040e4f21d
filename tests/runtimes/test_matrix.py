"""The matrix's own machinery: the committed result keeps the promise, crashes and errors are told apart, pages are plain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from tests.runtimes.adapters import RUNTIMES, Runtime
from tests.runtimes.cases import Case, catalogue, promised
from tests.runtimes.matrix import Prepared, run_all, tidy
from tests.runtimes.proofs import PROOFS, Proof
from tests.runtimes.prove import cases
from tests.runtimes.report import by_kind, markdown, stale, title
from tests.runtimes.table import graph_hash, merged, read, save

MODELS = Path(__file__).resolve().parents[2] / "models"


def test_the_committed_matrix_keeps_the_promise() -> None:
    table = read(MODELS)
    cells = {(r["runtime"], title(r)): r for r in table["results"] if r["promised"]}
    for runtime in (r for r in RUNTIMES.values() if r.required):
        for case in promised():
            found = cells[runtime.name, case.name]
            assert found["status"] == "exact", found
    assert any(p["proved"] for p in table["proofs"])
    assert (MODELS / "RUNTIMES.md").read_text() == markdown(table["results"], table["proofs"], table["files"])


def test_the_committed_matrix_is_of_one_state_of_the_files() -> None:
    """Every runtime, file and proof has its cell, and none is of an older file than the others: `make runtimes` was run."""
    table = read(MODELS)
    names = [case.name for case in catalogue()]
    assert [(r["runtime"], title(r)) for r in table["results"]] == [
        (r.name, n) for r in RUNTIMES.values() for n in names
    ]
    assert [title(p) for p in table["proofs"]] == [p.name for p in PROOFS]
    assert [title(r) for r in [*table["results"], *table["proofs"]] if stale(r, table["files"])] == []


def test_the_docs_say_what_the_table_says() -> None:
    docs = " ".join((MODELS.parent / "docs" / "runtimes.md").read_text().split())
    for name, where in by_kind(read(MODELS)["results"]).items():
        assert f"- {name}: {where}." in docs, f"docs/runtimes.md should say: {name}: {where}."


def test_a_cell_of_an_older_file_is_told_from_a_new_one(tmp_path: Path) -> None:
    """An interrupted run, or one with --only: the file changed, a runtime has not been run since."""
    case = Case("batcher", 5, 16, "float32", "structured")
    cell = {**case.about, "required": True, "version": "1", "options": "", "promised": False, "status": "exact"}
    before = [cell | {"runtime": name, "file": "older"} for name in ("ONNX Runtime", "tract")]
    proof = PROOFS[0].about | {"file": "p", "cases": 2, "proved": True, "refuted": False, "seconds": 1}
    titles, known = [case.name, PROOFS[0].name], {case.name: "older", PROOFS[0].name: "p"}
    save(tmp_path, merged(read(tmp_path), titles, known, before, [proof]))
    assert [stale(r, read(tmp_path)["files"]) for r in read(tmp_path)["results"]] == [False, False]
    save(tmp_path, merged(read(tmp_path), titles, {case.name: "newer"}, [before[0] | {"file": "newer"}], []))
    page = (tmp_path / "RUNTIMES.md").read_text()
    assert f"| {case.name} | exact | (exact) |" in page
    assert "| tract | 1 | yes | 0 of 0 |" in page
    assert "| proved, on all real inputs of its box |" in page
    save(tmp_path, merged(read(tmp_path), titles, {PROOFS[0].name: "q"}, [], []))
    assert "| (proved, on all real inputs of its box) |" in (tmp_path / "RUNTIMES.md").read_text()


def test_the_hash_is_of_what_is_computed(tmp_path: Path) -> None:
    """Not of the description beside it; a weight that changes changes it."""
    path = Case("batcher", 5, 16, "float32", "structured").export(tmp_path)
    proto, first = onnx.load(path), graph_hash(path)
    proto.producer_version, proto.metadata_props[0].value = "0", "another"
    onnx.save(proto, path)
    assert graph_hash(path) == first
    weight = onnx.numpy_helper.to_array(proto.graph.initializer[0])
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight + 1, proto.graph.initializer[0].name))
    onnx.save(proto, path)
    assert graph_hash(path) != first


def test_a_runtime_that_is_missing_and_one_that_fails(tmp_path: Path) -> None:
    case = Case("batcher", 5, 16, "float32", "structured")
    x = case.rows(1)
    rows = tmp_path / "rows0.npy"
    np.save(rows, x)
    good = Prepared(case, case.export(tmp_path), rows, case.answers(x), "one")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"nonsense")
    bad = Prepared(case, broken, rows, case.answers(x), "one")
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
    page = markdown(results, [], {case.name: "one"})
    assert "| ONNX Runtime |" in page
    assert str(tmp_path) not in page


def test_a_proof_that_did_not_end_is_no_proof_and_no_refutation() -> None:
    about = Proof("radix", 3, 2, "swap").about | {"cases": 1, "proved": False, "seconds": 300.0, "file": "one"}
    name = "swap of radix d = 3, 2 bits, dense"
    page = markdown([], [about | {"refuted": False}], {name: "one"})
    assert f"| {name} | 1 | a query did not end | 300.0 |" in page
    assert "| refuted |" in markdown([], [about | {"refuted": True}], {name: "one"})


def test_paths_of_the_machine_are_left_out() -> None:
    assert tidy("Error at /some/where/model.onnx:\n  line 2") == "Error at : line 2"


def test_a_disjunction_becomes_single_cases() -> None:
    text = "(declare-const Y_0 Real)\n(assert (or\n    (and (<= Y_0 -1.0) (>= Y_1 2.0))\n    (and (>= Y_0 1.0))\n))\n"
    head = "(declare-const Y_0 Real)\n"
    assert cases(text) == [
        head + "(assert (<= Y_0 -1.0))\n(assert (>= Y_1 2.0))\n",
        head + "(assert (>= Y_0 1.0))\n",
    ]
