"""The search for changes that no test notices: what it changes, what it leaves alone, and which tests it asks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests import mutants

SOURCE = '''
@decorated(True)
def f(a: Literal[1], b=2) -> Literal[3]:
    """Text."""
    if not a < b:
        return -a + 1
    return a and "text"
'''


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of one module in a tree of its own."""
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    path = tmp_path / "toy" / "part.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    return path


def test_changes_are_single_and_leave_types_and_words_alone(toy: Path) -> None:
    (path,) = mutants.modules([toy.parent])
    found = list(mutants.mutants(path))
    assert [(m.line, m.before, m.after) for m in found] == [
        (3, "2", "3"),
        (5, "not a < b", "a < b"),
        (5, "a < b", "a <= b"),
        (6, "return -a + 1", "return None"),
        (6, "-a + 1", "-a - 1"),
        (6, "-a", "a"),
        (6, "1", "2"),
        (7, "return a and 'text'", "return None"),
        (7, "a and 'text'", "a or 'text'"),
    ]
    same = ast.unparse(ast.parse(SOURCE))
    for mutant in found:
        changed = mutant.source()
        assert changed == same.replace(mutant.before, mutant.after, 1) or mutant.before in ("1", "2")
        compile(changed, "toy", "exec")
    assert len({mutant.source() for mutant in found}) == len(found)


@pytest.mark.slow
def test_survivors_are_named_and_noticed_changes_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    tests = tmp_path / "tests" / "toy"
    for folder in (tmp_path / "toy", tests):
        folder.mkdir(parents=True)
    (tmp_path / "toy" / "part.py").write_text("def small(n):\n    return n < 3\n")
    (tests / "test_part.py").write_text("from toy.part import small\n\ndef test(): assert small(1) and not small(9)\n")
    monkeypatch.setattr("resource.setrlimit", lambda *limit: None)  # of this very process
    assert mutants.main(["--jobs", "1", "--seconds", "60", str(tmp_path / "toy")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "3 changes, 3 tried, 1 noticed, 2 not"
    assert sorted(said[:-1]) == ["toy/part.py:2: 3  ->  4", "toy/part.py:2: n < 3  ->  n <= 3"]


@pytest.mark.parametrize("package", ["exporter", "service"])
def test_every_module_has_tests_beside_it(package: str) -> None:
    for path in mutants.modules([mutants.ROOT / package]):
        assert mutants.tests_of(path), path
