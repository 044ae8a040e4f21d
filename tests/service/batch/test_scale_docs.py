"""Every example of docs/scale.md runs, in the order of the page: in this process, and with Ray installed in a shell.
Then that of the README, on the same table."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from service.batch import run as module
from service.batch.__main__ import main
from tests.service.batch.tables import Here, answers

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "scale.md").read_text()
README = (ROOT / "README.md").read_text().partition("\n## Tables\n")[2].partition("\n## ")[0]
BLOCKS = re.findall(r"^```(\w+)( \w+)?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
CLUSTER = find_spec("ray") is not None


def test_the_examples_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    if not CLUSTER:
        monkeypatch.setattr(module, "engine", lambda *_: Here())
    ran = 0
    for kind, note, text in BLOCKS:
        if kind == "python":
            exec(compile(text, "docs/scale.md", "exec"), {})
        elif kind == "sh" and CLUSTER:
            variables = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
            done = subprocess.run(["bash", "-euc", text], env=variables, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
        elif kind == "sh" and not note:
            for command in text.splitlines():
                assert command.startswith("python -m service.batch ")
                assert main([*shlex.split(command)[3:], "--quiet"]) == 0
        ran += kind in ("python", "sh")
    assert ran == 6
    (command,) = re.findall(r"^    python -m service\.batch (.*)$", README, re.MULTILINE)
    assert main([*shlex.split(command), "--quiet"]) == 0
    assert answers(Path("medians")).equals(answers(Path("cities")))
