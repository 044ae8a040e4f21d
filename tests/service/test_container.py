"""The Dockerfile, without an engine: it is parsed, its build steps are run in a clean folder, and its entry point too."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distribution
from pathlib import Path

import httpx
import numpy as np
import pytest
from packaging.requirements import Requirement

from exporter.library import export_model
from tests.waiting import free_port, until

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


def distributions() -> dict[str, Distribution]:
    """What pip would fetch for the service: the packages it declares and all that they need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [
        Requirement(each) for each in ["setuptools", *project["dependencies"], *extras["service"], *extras["fast"]]
    ]
    found: dict[str, Distribution] = {}
    for each in wanted:  # which grows
        if each.name not in found:
            found[each.name] = distribution(each.name)
            needs = map(Requirement, found[each.name].requires or ())
            extra = [{"extra": name} for name in each.extras or {""}]
            wanted += [r for r in needs if r.marker is None or any(r.marker.evaluate(e) for e in extra)]
    return found


def fetch(site: Path) -> None:
    """Packages come from where they already are, so that pip finds all of them in place."""
    shutil.rmtree(site / "setuptools", ignore_errors=True)  # older Pythons have one of their own
    for old in site.glob("setuptools-*"):
        shutil.rmtree(old)
    for each in distributions().values():
        for file in each.files or ():
            source = Path(str(file.locate()))
            if file.parts[0] != ".." and source.exists():
                (site / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, site / file)


def run_build(folder: Path) -> None:
    """The first stage, with the image's folders moved below `folder`."""
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
            if "-m venv" in text:
                (site,) = folder.glob("opt/median/lib/python*/site-packages")
                fetch(site)


def moved(text: str, folder: Path) -> str:
    for name in MOVED:
        text = re.sub(rf"(?<![\w./]){name}\b", str(folder) + name, text)
    return re.sub(r"^python\b", shlex.quote(sys.executable), text)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the second stage copies: it does not have the sources."""
    folder = tmp_path_factory.mktemp("image")
    run_build(folder)
    shutil.rmtree(folder / "src")
    for path in (folder / "models").iterdir():
        path.chmod(0o444)
    return folder


@pytest.mark.slow
def test_it_holds_only_what_serving_needs(image: Path) -> None:
    copied = [text.split()[-1] for text in STAGES[1].all("COPY")]
    files = [path for name in copied for path in (image / name[1:]).rglob("*") if not path.is_dir()]
    blocks = sum(-(-path.lstat().st_size // 4096) * 4096 for path in files)
    assert blocks <= 230e6, f"{blocks / 1e6:.0f} MB"
    assert not [path for path in files if path.name.startswith(("scipy_openblas", "libscipy_openblas-", "pip-"))]


def start(image: Path, folder: Path, **settings: str) -> tuple[subprocess.Popen[bytes], dict[str, str]]:
    """The entry point of the second stage in its environment, and that environment."""
    final = STAGES[1]
    changes = {name: moved(value, image) for name, value in environment(final).items()}
    variables = {**os.environ, **changes, "MEDIAN_DRAIN_S": "0", **settings}
    variables.pop("PYTHONPATH", None)
    entry = [moved(part, image) for part in json.loads(final.all("ENTRYPOINT")[0])]
    return subprocess.Popen(entry, cwd=folder, env=variables, stderr=subprocess.PIPE), variables


def is_healthy(process: subprocess.Popen[bytes], check: list[str], variables: dict[str, str]) -> bool:
    assert process.poll() is None
    return not subprocess.run(check, env=variables, capture_output=True, check=False).returncode


@contextlib.contextmanager
def started(image: Path, folder: Path, **settings: str) -> Iterator[tuple[httpx.Client, list[bytes]]]:
    """A client of the image once it is healthy, and its log once it has ended."""
    final = STAGES[1]
    port = free_port()
    process, variables = start(image, folder, MEDIAN_PORT=str(port), **settings)
    check = json.loads(final.all("HEALTHCHECK")[0].split("CMD", 1)[1])
    check[0] = moved(check[0], image)
    log: list[bytes] = []
    try:
        until(lambda: is_healthy(process, check, variables))
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield client, log
    finally:
        process.send_signal(getattr(signal, final.all("STOPSIGNAL")[0]))
        log.append(process.communicate(timeout=30)[1])


@pytest.mark.slow
def test_the_steps_build_an_image_that_serves(image: Path, tmp_path: Path) -> None:
    with started(image, tmp_path) as (client, log):
        answer = client.post("/median", json={"vectors": [[3, 1, 2], [0.5] * 2048]}).json()
        assert answer["medians"] == [2.0, 0.5]
        filters = [each["name"] for each in client.get("/models").json()["filters"]]
        assert filters == ["median-window3x3-uint8", "median-window5x5-uint8"]
    assert b"building a model" not in log[0]  # they are built in


@pytest.mark.slow
def test_it_builds_models_for_longer_vectors_where_it_can_write(image: Path, tmp_path: Path) -> None:
    """A models folder that is read-only: what is built lies in the scratch folder, and is what is built elsewhere."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    x = np.random.default_rng(0).normal(size=5000)
    with started(image, tmp_path, MEDIAN_MODELS="/proc/onnx-median", TMPDIR=str(scratch)) as (client, log):
        answer = client.post("/quantile", json={"vector": x.tolist(), "quantiles": [0.01, 0.5], "exact": True})
        assert answer.json()["quantiles"] == [np.quantile(x, [0.01, 0.5]).tolist()]
        (built,) = scratch.glob("onnx-median-*/models/median-radix-d16384-b16-latency-fused.onnx")
        own = export_model(16384, "radix", tmp_path / "own", profile="fused", optimize_for="latency", bits=16)
        same = built.read_bytes() == own.read_bytes()  # a difference of two large files would take minutes to print
        assert same
    assert log[0].count(b'"model built"') >= 2
    assert b"Traceback" not in log[0]
    assert not list(scratch.glob("onnx-median-*"))
