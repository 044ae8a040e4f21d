"""The page on tables: every example runs, those for a cluster where Ray is installed. Then the example of the README."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from service.tables.__main__ import run

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "scale.md").read_text()
README = (ROOT / "README.md").read_text().partition("\n## Tables\n")[2].partition("\n## ")[0]
BLOCKS = re.findall(r"^```(\w+)( \w+)?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
CLUSTER = find_spec("ray") is not None


def test_the_examples_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = 0
    for kind, note, text in BLOCKS:
        if kind == "python" and (CLUSTER or not note):
            exec(compile(text, "docs/scale.md", "exec"), {})
        elif kind == "sh" and CLUSTER:
            variables = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
            done = subprocess.run(["bash", "-euc", text], env=variables, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
        elif kind == "sh" and not note:
            for command in text.splitlines():
                assert command.startswith("python -m service.tables ")
                assert run([*shlex.split(command)[3:], "--quiet"]) == 0
        ran += kind in ("python", "sh")
    assert ran == 4
    (command,) = re.findall(r"^    python -m service\.tables (.*)$", README, re.MULTILINE)
    assert run([*shlex.split(command), "--quiet"]) == 0
    assert pq.read_table("medians").equals(pq.read_table("cities"))
    (code,) = re.findall(r"^    (from service.tables.*\n(?:    .*\n)*)", README, re.MULTILINE)
    exec(compile(code.replace("\n    ", "\n"), "README.md", "exec"), {})
