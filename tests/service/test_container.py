"""The Dockerfile, without an engine: it is parsed, its build steps are run in a clean folder, and its entry point too."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.service.conftest import until

ROOT = Path(__file__).resolve().parents[2]
MOVED = ("/opt/median", "/models", "/src")


@dataclass
class Stage:
    """One FROM and the instructions after it."""

    image: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, name: str) -> list[str]:
        return [text for instruction, text in self.steps if instruction == name]


def parse(text: str) -> list[Stage]:
    stages: list[Stage] = []
    joined = re.sub(r"\\\n", " ", "\n".join(line for line in text.splitlines() if not line.startswith("#")))
    for line in filter(None, map(str.strip, joined.splitlines())):
        instruction, rest = line.split(None, 1)
        if instruction == "FROM":
            stages.append(Stage(rest.split()[0]))
        else:
            stages[-1].steps.append((instruction, rest))
    return stages


STAGES = parse((ROOT / "Dockerfile").read_text())


def environment(stage: Stage) -> dict[str, str]:
    return dict(pair.split("=", 1) for text in stage.all("ENV") for pair in shlex.split(text))


def test_the_image_is_small_pinned_unprivileged_and_watched() -> None:
    build, final = STAGES
    assert build.image == final.image
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", final.image)
    assert int(final.all("USER")[-1]) > 0
    assert final.all("HEALTHCHECK")
    assert final.all("ENTRYPOINT")
    assert final.all("STOPSIGNAL") == ["SIGTERM"]
    assert all("--from=build" in text for text in final.all("COPY"))
    assert all("-c constraints.txt" in text for text in build.all("RUN") if "pip install" in text)
    assert not any("pip install" in text for text in final.all("RUN"))


def test_only_what_is_copied_reaches_the_engine() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    kept = {line[1:] for line in lines if line.startswith("!")}
    copied = {name for text in STAGES[0].all("COPY") for name in text.split()[:-1]}
    assert kept == copied
    assert all((ROOT / name).exists() for name in copied)


def run_build(folder: Path) -> None:
    """The first stage, with the image's folders moved below `folder`, and packages taken from where they already are."""
    work = folder / "src"
    work.mkdir(parents=True)
    stage = STAGES[0]
    variables = {**os.environ, **environment(stage)}
    for instruction, text in stage.steps:
        if instruction == "COPY":
            *names, target = text.split()
            for name in names:
                source, place = ROOT / name, work / (name if target == "./" else target)
                if source.is_dir():
                    shutil.copytree(source, place, ignore=lambda _, found: fnmatch.filter(found, "__pycache__"))
                else:
                    shutil.copy(source, place)
        elif instruction == "RUN":
            subprocess.run(["sh", "-ec", moved(text, folder)], cwd=work, env=variables, check=True)
            for site in folder.glob("opt/median/lib/python*/site-packages"):
                (site / "already-here.pth").write_text(sysconfig.get_path("purelib"))


def moved(text: str, folder: Path) -> str:
    for name in MOVED:
        text = re.sub(rf"(?<![\w./]){name}\b", str(folder) + name, text)
    return re.sub(r"^python\b", shlex.quote(sys.executable), text)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("image")
    run_build(folder)
    return folder


def is_healthy(process: subprocess.Popen[bytes], check: list[str], variables: dict[str, str]) -> bool:
    assert process.poll() is None
    return not subprocess.run(check, env=variables, capture_output=True, check=False).returncode


def test_the_steps_build_an_image_that_serves(image: Path, tmp_path: Path) -> None:
    final = STAGES[1]
    shutil.rmtree(image / "src")  # the second stage does not have the sources
    for path in (image / "models").iterdir():
        path.chmod(0o444)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    changes = {name: moved(value, image) for name, value in environment(final).items()}
    variables = {**os.environ, **changes, "MEDIAN_PORT": str(port), "MEDIAN_DRAIN_S": "0"}
    variables.pop("PYTHONPATH", None)
    entry = [moved(part, image) for part in json.loads(final.all("ENTRYPOINT")[0])]
    check = json.loads(final.all("HEALTHCHECK")[0].split("CMD", 1)[1])
    process = subprocess.Popen(entry, cwd=tmp_path, env=variables, stderr=subprocess.PIPE)
    try:
        until(lambda: is_healthy(process, [moved(check[0], image), *check[1:]], variables))
        answer = httpx.post(f"http://127.0.0.1:{port}/median", json={"vectors": [[3, 1, 2], [0.5] * 2048]}).json()
        assert answer["medians"] == [2.0, 0.5]
    finally:
        process.send_signal(getattr(signal, final.all("STOPSIGNAL")[0]))
        _, log = process.communicate(timeout=30)
    assert b"building a model" not in log  # they are built in
