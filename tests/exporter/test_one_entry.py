"""A construction and a profile are one entry each: everything else finds them without another edit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# what a contributor writes, and then the command line
MODULE = """
import sys
from dataclasses import replace

from exporter.passes import profiles

plain = profiles.PROFILES["structured"]
profiles.PROFILES["plain"] = replace(plain, name="plain", operators="as structured, by another name", purpose="a test")

from exporter import constructions
from exporter.constructions import CONSTRUCTIONS, Claims, Construction, Statistics
from exporter.ir.primitives import maximum
from exporter.ir.trace import relu, stack


def minimum(a, b):
    return a - relu(a - b)


def bubble(x, ranks, options, form, offsets):
    wires = [x.take([i]) for i in range(x.size)]
    for end in range(x.size - 1, 0, -1):
        for i in range(end):
            wires[i], wires[i + 1] = minimum(wires[i], wires[i + 1]), maximum(wires[i], wires[i + 1])
    return Statistics(stack([wires[r - 1] for r in ranks]))


CONSTRUCTIONS["bubble"] = Construction(
    "bubble", "a first exercise", "bubble sort, one comparator a layer", bubble,
    lambda d, ranks: None if d <= 9 else "it is slow", takes=("seed",), claims=Claims(depth=7),
)
from exporter.cli.parser import main
sys.exit(main(sys.argv[1:]))
"""


def run(tmp_path: Path, *arguments: str) -> str:
    script = tmp_path / "mine.py"
    script.write_text(MODULE)
    done = subprocess.run(
        [sys.executable, str(script), *arguments], check=False, capture_output=True, text=True, cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_everything_finds_them(tmp_path: Path) -> None:
    text = " ".join(run(tmp_path, "--help-all").split())
    assert "bubble sort, one comparator a layer" in text
    assert "plain as structured, by another name, for a test" in text
    assert "[bubble, " in text or ", bubble]" in text, "who takes --seed"
    run(tmp_path, "--d", "5", "--construction", "bubble", "--seed", "3", "--profile", "plain", "--out", "out")
    file = "out/median-bubble-d5-plain-seed3.onnx"
    about = json.loads(run(tmp_path, "describe", file, "--json"))["description"]
    assert (about["construction"], about["theorem"], about["profile"]) == ("bubble", "a first exercise", "plain")
    assert "the contract is kept" in run(tmp_path, "verify", file, "--trials", "20")
    run(tmp_path, "--d", "5", "--out", "all", "--profile", "plain")
    assert (tmp_path / "all" / "median-bubble-d5-plain.onnx").exists()
    run(tmp_path, "atlas", "--d", "5", "--out", "atlas", "--trials", "10", "--construction", "bubble")
    table = (tmp_path / "atlas" / "atlas.md").read_text()
    assert "bubble" in table
