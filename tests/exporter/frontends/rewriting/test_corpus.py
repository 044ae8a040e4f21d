"""The heads of real exports (tests/corpus/make.py): no TopK is left, every output is equal, and files stay small."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from exporter.frontends.rewriting.rewrite import rewrite
from tests.exporter.frontends.rewriting.patterns import operators

HEADS = sorted((Path(__file__).parents[3] / "models").glob("*.onnx"))


@pytest.mark.parametrize("path", HEADS, ids=lambda path: path.stem)
def test_the_head_of_an_export_is_rewritten_and_equal(path: Path, tmp_path: Path) -> None:
    found = rewrite(path, tmp_path / "new.onnx")
    assert found.ok, found.lines()
    assert found.checked >= 6
    assert all(each.equal for each in found.outputs)
    new = onnx.load(tmp_path / "new.onnx")
    assert "TopK" not in operators(new)
    assert new.ByteSize() - path.stat().st_size < 3e6


def test_the_corpus_is_there() -> None:
    assert len(HEADS) == 10
