"""The commands of docs/deploy.md that need Ray, run as the page has them, on ports and folders of the test's own; and the
files they read, by the schemas of those who read them."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
import yaml

from exporter.library import export_model
from service.client import Client
from tests import waiting
from tests.waiting import free_port

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
BLOCKS = re.findall(r"^```sh ray\n(.*?)^```$", (ROOT / "docs" / "deploy.md").read_text(), re.MULTILINE | re.DOTALL)
(TOKENS, TOKEN, START, *ON_CLUSTER), (FROM_FILE,) = (block.splitlines() for block in BLOCKS)
until = partial(waiting.until, seconds=600)  # nodes start slowly on a busy machine
KEY = "sesame"


def environment(home: Path, **more: str) -> dict[str, str]:
    """Of a user who has just come: what Ray keeps in a home is not there."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0", "MEDIAN_API_KEY": KEY}
    return {**{name: value for name, value in os.environ.items() if not name.startswith("RAY_")}, **own, **more}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for d in (32, 33):
        export_model(d, "batcher", folder)
    return folder


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short name, as the sockets of Ray need it."""
    folder = Path(tempfile.mkdtemp(prefix="median-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def is_ready(url: str) -> bool:
    try:
        return httpx.get(url + "/readyz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def answers(url: str) -> None:
    x = np.random.default_rng(0).normal(size=(20, 33))
    with Client(url, api_key=KEY) as client:
        assert (client.median(x).medians == np.median(x, axis=1)).all()
    assert httpx.post(url + "/median", json={"vector": [1]}).status_code == 401


def ours(text: str, port: int, models: Path) -> list[str]:
    return shlex.split(text.replace("8000", str(port)).replace("models/", str(models)))


def test_the_page_starts_what_it_says() -> None:
    assert START == "ray start --head --block"
    assert FROM_FILE == "serve deploy deploy/ray/serve.yaml"


def test_serve_run_status_and_deploy(models: Path, short: Path) -> None:
    port, gcs, dashboard = free_port(), free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    more = ["--port", str(gcs), "--dashboard-port", str(dashboard), "--temp-dir", str(short), "--num-cpus", "4"]
    more += ["--object-store-memory", str(80 * 2**20), "--ray-client-server-port", str(free_port())]
    name, _, value = TOKENS.removeprefix("export ").partition("=")
    variables = environment(short, **{name: value})
    subprocess.run(shlex.split(TOKEN), env=variables, check=True, capture_output=True)
    assert (short / ".ray" / "auth_token").exists()
    with (short / "log").open("w") as stream:
        head = subprocess.Popen([*shlex.split(START), *more], env=variables, stdout=stream, stderr=stream)
    variables |= {"RAY_ADDRESS": f"127.0.0.1:{gcs}", "RAY_DASHBOARD_ADDRESS": f"http://127.0.0.1:{dashboard}"}

    def run(text: str, *beside: str) -> str:
        command = [*ours(text, port, models), *beside]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr + (short / "log").read_text()
        return done.stdout

    try:
        until(lambda: "Ray runtime started" in (short / "log").read_text(), what=(short / "log").read_text)
        shown = ""
        for line in ON_CLUSTER:
            shown = run(line, *(["replica_cpus=0.25", "build=no"] if " run " in line else []))
        until(lambda: is_ready(url))
        answers(url)
        status = yaml.safe_load(shown)["applications"]["median"]
        assert status["status"] == "RUNNING"
        assert {name: each["status"] for name, each in status["deployments"].items()} == {
            "median": "HEALTHY", "board": "HEALTHY",
        }  # fmt: skip
        config = yaml.safe_load((ROOT / "deploy" / "ray" / "serve.yaml").read_text())
        config["http_options"].update(port=port, host="127.0.0.1")
        config["applications"][0]["args"] |= {"models": str(models), "replica_cpus": 0.25, "max_batch": 9}
        own = short / "serve.yaml"
        own.write_text(yaml.safe_dump(config))
        run(FROM_FILE.replace("deploy/ray/serve.yaml", str(own)))

        def deployed() -> bool:
            told = yaml.safe_load(run("serve status"))["applications"]["median"]
            assert told["status"] != "DEPLOY_FAILED", told
            return told["status"] == "RUNNING"

        until(deployed)
        answers(url)
        config["applications"][0]["args"] = {"model": "x"}
        own.write_text(yaml.safe_dump(config))
        run(FROM_FILE.replace("deploy/ray/serve.yaml", str(own)))
        until(lambda: "unknown option 'model': did you mean 'models'?" in run("serve status"))
    finally:
        children = psutil.Process(head.pid).children(recursive=True)
        head.terminate()
        head.wait(60)
        for left in psutil.wait_procs(children, 20)[1]:
            left.kill()


def test_the_serve_file_is_valid() -> None:
    from ray.serve.schema import ServeDeploySchema

    config = yaml.safe_load((ROOT / "deploy" / "ray" / "serve.yaml").read_text())
    ServeDeploySchema.model_validate(config)
    config["applications"][0]["import_pth"] = config["applications"][0].pop("import_path")
    with pytest.raises(ValueError, match="import_p"):
        ServeDeploySchema.model_validate(config)


def test_options_in_a_config_file_are_checked() -> None:
    from service.process import ray_app

    with pytest.raises(ValueError, match="unknown option 'replica': did you mean 'replicas'"):
        ray_app.app({"replica": 3})
    with pytest.raises(ValueError, match="environment only, as MEDIAN_API_KEY"):
        ray_app.app({"api_key": "secret"})
    with pytest.raises(ValueError, match="MEDIAN_REPLICAS='two' is not a valid int"):
        ray_app.app({"replicas": "two"})


def _kserve(name: str) -> Any:
    """A class of kserve.models by its path: the package around them imports a server."""
    package = importlib.util.find_spec("kserve")
    assert package is not None
    assert package.submodule_search_locations is not None
    path = Path(package.submodule_search_locations[0]) / "models" / f"{name}.py"
    text = path.read_text()
    found = re.search(r"    attribute_map = (\{.*?\n    \})", text, re.DOTALL)
    types = re.search(r"    openapi_types = (\{.*?\n    \})", text, re.DOTALL)
    assert found is not None
    assert types is not None
    import ast

    names, kinds = ast.literal_eval(found[1]), ast.literal_eval(types[1])
    return {names[key]: kinds[key] for key in names}


def test_the_inference_service_has_the_fields_of_kserves_own_models() -> None:
    document = yaml.safe_load((ROOT / "deploy" / "kserve" / "inference-service.yaml").read_text())
    assert document["apiVersion"] == "serving.kserve.io/v1beta1"
    assert set(document) <= set(_kserve("v1beta1_inference_service"))
    assert set(document["spec"]) <= set(_kserve("v1beta1_inference_service_spec"))
    known = _kserve("v1beta1_predictor_spec")
    plain = {"int": int, "str": str, "bool": bool}
    for key, value in document["spec"]["predictor"].items():
        assert key in known
        assert isinstance(value, plain.get(known[key], dict | list)), key
