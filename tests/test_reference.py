"""The committed reference models are what the exporter writes, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

from exporter.formats.manifest import read_manifest
from tests.reference import write_reference

MODELS = Path(__file__).resolve().parents[1] / "models"


def test_rebuilt_models_have_the_same_bytes(tmp_path: Path) -> None:
    write_reference(tmp_path)
    committed = {p.name: p.read_bytes() for p in (MODELS / "reference").iterdir()}
    rebuilt = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    changed = sorted(n for n in committed.keys() | rebuilt.keys() if committed.get(n) != rebuilt.get(n))
    assert not changed, f"run `make models`: {', '.join(changed)}"
    assert sum(map(len, committed.values())) < 950_000


def test_exact_models_have_a_certificate() -> None:
    """Rebuilding proves them again; here is which of them are proved, and in which arithmetic."""
    exact = [m for m in read_manifest(MODELS / "reference")["models"] if not m["description"]["failure_bound"]]
    proofs = {p.name: json.loads(p.read_text()) for p in (MODELS / "reference").glob("*.proof.json")}
    left = [m["file"] for m in exact if m["file"].replace(".onnx", ".proof.json") not in proofs]
    assert left == [
        "median-compact-d25-b16-structured.onnx",
        "median-depth5-d25-b16-structured.onnx",
        "median-radix-d3-b8-grid-only-float32-dense.onnx",
    ]
    hashes = {m["file"]: m["sha256"] for m in exact}
    assert all(hashes[proof["file"]] == proof["sha256"] for proof in proofs.values())
    assert all(proof["arithmetic"].startswith("float32: ") for proof in proofs.values())


def test_the_readme_names_every_construction_that_is_there() -> None:
    text = (MODELS / "README.md").read_text()
    listed = read_manifest(MODELS / "reference")["models"]
    for name in {m["description"]["construction"] for m in listed}:
        assert f"`{name}`" in text
