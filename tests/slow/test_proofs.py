"""The machine-checked proofs: Coq accepts them, and the networks in the proofs are the networks that Python builds."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from exporter.analysis.evaluate import evaluate
from exporter.constructions.batcher import shallowest
from exporter.constructions.radix import Digits, Form, even_digits, radix
from exporter.ir.network import network
from exporter.ir.trace import vector

PROOFS = Path(__file__).resolve().parents[2] / "proofs"
COQ = {"pair": "Pair", "saturating": "Saturating", "bounded": "Bounded"}


def _coq(folder: Path, file: str) -> str:
    done = subprocess.run(["coqc", "-q", "-w", "none", file], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with the compiled proofs, and what Coq printed about their assumptions."""
    if not shutil.which("coqc"):
        pytest.skip("coqc is missing: install Debian's packages coq and libcoq-mathcomp-algebra, or run `make proofs`")
    folder = tmp_path_factory.mktemp("proofs")
    for path in PROOFS.glob("*.v"):
        shutil.copy(path, folder)
    return folder, "".join(_coq(folder, f"{name}.v") for name in ("radix", "run", "zero_one"))


@dataclass(frozen=True)
class Search:
    """One search of the exporter on one input, as Fractions."""

    digits: Digits
    k: int
    x: list[Fraction]

    def by_python(self) -> Fraction:
        source = vector(len(self.x))
        net = network(source, radix(source, [self.k], self.digits))
        return Fraction(evaluate(net, np.array([self.x], dtype=object))[0, 0])

    def in_coq(self) -> str:
        """`answer` and `fits` of the proof for this search."""
        *before, last = self.digits.each
        digits = "[" + "; ".join(f"({d.bins}, {d.width})" for d in before) + "]%nat"
        x = "[" + "; ".join(f"{v.numerator} # {v.denominator}" for v in self.x) + "]"
        cells = self.digits.cells
        return (
            f"Eval vm_compute in let a := answer {COQ[self.digits.form]} {self.k} {cells} {digits} {last.bins} ({x})%Q in "
            f"(Qnum a, QDen a, fits {cells} {digits} {last.bins}).\n"
        )


def _searches(seed: int) -> list[Search]:
    rng = random.Random(seed)
    found = []
    forms: tuple[Form, ...] = ("pair", "saturating", "bounded")
    for form in forms:
        for _ in range(12):
            d, bits = rng.randint(2, 9), rng.randint(1, 8)
            each = even_digits(bits, 2 ** rng.randint(1, min(3, bits)))
            k, cells = rng.randint(1, d), 2**bits
            on_grid = [Fraction(rng.randint(0, cells), cells) for _ in range(d)]
            between = [Fraction(rng.randint(0, 16 * cells), 16 * cells) for _ in range(d)]
            found += [Search(Digits(cells, each, form), k, x) for x in (on_grid, between)]
    return found


def test_no_theorem_rests_on_an_axiom(compiled: tuple[Path, str]) -> None:
    lines = compiled[1].splitlines()
    assert len(lines) == sum(path.read_text().count("Print Assumptions") for path in PROOFS.glob("*.v"))
    assert set(lines) == {"Closed under the global context"}


def test_the_network_of_the_proof_is_the_network_of_the_exporter(compiled: tuple[Path, str]) -> None:
    """Equal fractions on random inputs, on the grid and between its points; every digit list of the exporter fits."""
    folder, searches = compiled[0], _searches(0)
    header = "From Coq Require Import QArith List.\nRequire Import radix run.\nImport ListNotations.\n"
    (folder / "query.v").write_text(header + "".join(s.in_coq() for s in searches))
    answers = re.findall(r"= \((-?\d+)%?Z?, (\d+)%?Z?, (true|false)\)", _coq(folder, "query.v"))
    assert len(answers) == len(searches)
    for search, (top, bottom, fits) in zip(searches, answers, strict=True):
        assert fits == "true", search
        assert Fraction(int(top), int(bottom)) == search.by_python(), search
        if all((v * search.digits.cells).denominator == 1 for v in search.x):
            assert search.by_python() == sorted(search.x)[search.k - 1]


@pytest.mark.parametrize("d", [3, 5, 8, 9])
def test_the_comparators_of_the_exporter_satisfy_the_0_1_principle(compiled: tuple[Path, str], d: int) -> None:
    """Coq runs the pruned network of the lower median on all 2^d inputs of zeros and ones; one comparator less fails."""
    k = (d + 1) // 2
    pairs = [(int(i), int(j)) for stage in shallowest(d, [k])[0] for i, j in stage]
    query = "From mathcomp Require Import ssreflect ssrnat seq.\nRequire Import zero_one.\n"
    for net in (pairs, pairs[:-1]):
        listed = "[:: " + "; ".join(map(str, net)) + "]"
        query += f"Eval vm_compute in selects {listed} {d} {k - 1} {k}.\n"
    (compiled[0] / f"sorter{d}.v").write_text(query)
    assert re.findall(r"= (true|false)", _coq(compiled[0], f"sorter{d}.v")) == ["true", "false"]
