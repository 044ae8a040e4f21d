"""Commands name the extra that they need; the exporter and `service.tables` do without the extra `service`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from exporter.cli.console import main
from exporter.errors import install
from service import NEEDED

ROOT = Path(__file__).resolve().parents[2]
# Python runs a module of this name before anything else: these packages are then nowhere to be found.
HIDING = """
import sys
from importlib.machinery import PathFinder

class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in {hidden} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding
"""


def without(hidden: set[str], folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    (folder / "sitecustomize.py").write_text(HIDING.format(hidden=hidden))
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize("hidden", ["fastapi", "httpx"])
@pytest.mark.parametrize(
    "command",
    [
        ["-m", "service", "--models", "nowhere"],
        ["-m", "service.client", "--help"],
        ["-c", "from exporter.cli.console import main; raise SystemExit(main(['serve']))"],
        ["-c", "from exporter.cli.console import main; raise SystemExit(main(['client', '--help']))"],
    ],
)
def test_commands_name_the_extra(hidden: str, command: list[str], tmp_path: Path) -> None:
    done = without({hidden}, tmp_path, *command)
    assert done.returncode == 2
    assert done.stderr == f"error: the service needs {hidden}: {install('service')}\n"
    assert not done.stdout


@pytest.mark.parametrize(
    ("command", "option"), [("serve", "--max-batch"), ("client", "--concurrency"), ("tables", "--per")]
)
def test_with_it_one_command_has_both_packages(command: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert option in capsys.readouterr().out


def test_it_says_so_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    told = capsys.readouterr().out
    assert all(f"onnx-median {word} " in told for word in ("serve", "client", "tables", "describe"))
    assert main(["sevre"]) == 2
    assert "did you mean 'serve'?" in capsys.readouterr().err


def test_serving_does_not_load_the_builder(tmp_path: Path) -> None:
    done = without({"scipy"}, tmp_path, "-c", "from exporter.cli.console import main; main(['serve', '--help'])")
    assert done.returncode == 0, done.stderr


def test_so_does_the_library(tmp_path: Path) -> None:
    done = without({"uvicorn", "orjson"}, tmp_path, "-c", "import service.client")
    last = f"ModuleNotFoundError: the service needs orjson, uvicorn: {install('service')}"
    assert done.stderr.splitlines()[-1] == last


@pytest.mark.parametrize(
    ("shape", "answers"),
    [(["--per", "row"], [2.0, 5.0]), (["--per", "column", "--memory", "1B"], None), (["--by", "k"], None)],
)
def test_tables_need_the_extra_tables_alone(shape: list[str], answers: list[float] | None, tmp_path: Path) -> None:
    """Rows, columns and groups: each has modules of its own."""
    (tmp_path / "t.csv").write_text("a,b,c,k\n1,2,3,x\n4,5,6,y\n")
    asked = ["--input", "t.csv", "--column", *("abc" if answers else "a"), "--out", "m", *shape]
    done = without({*NEEDED, "starlette", "pydantic"}, tmp_path, "-m", "service.tables", *asked)
    assert done.returncode == 0, done.stderr
    found = pq.read_table(tmp_path / "m")
    assert sorted(found["median"].to_pylist()) == (answers or ([1.0, 4.0] if "--by" in shape else [2.5]))


def test_the_extra_tables_is_named(tmp_path: Path) -> None:
    done = without({"pyarrow"}, tmp_path, "-m", "service.tables", "--help")
    assert (done.returncode, done.stderr) == (2, f"error: service.tables needs pyarrow: {install('tables')}\n")


def test_the_exporter_needs_none_of_it(tmp_path: Path) -> None:
    export = ["-m", "exporter", "--d", "3", "--construction", "radix", "--out", "."]
    assert without(set(NEEDED), tmp_path, *export).returncode == 0
    assert (tmp_path / "median-radix-d3.onnx").exists()
