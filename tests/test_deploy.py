"""The files of deploy/: valid by the schemas of Kubernetes, and the same as the Dockerfile and the service's settings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import fields
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from service.process import metrics
from service.process.settings import PREFIX, Settings
from service.serving.exchange import OPEN_PATHS
from tests.service.test_container import STAGES, environment

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "deploy.md").read_text()
BLOCKS = re.findall(r"^```(\w+)(?: (\w+))?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
DEPLOY = ROOT / "deploy"
VERSIONS = ("1.31", "1.37")  # of Kubernetes, the oldest and the newest that is checked
IMAGES = {name: how for how, name in re.findall(r"docker build (.*)-t (\S+) \.", (ROOT / "Dockerfile").read_text())}
PORT = int(STAGES[-1].all("EXPOSE")[0])
USER = int(STAGES[-1].all("USER")[-1])
KINDS = {"Deployment", "Service", "HorizontalPodAutoscaler", "PodDisruptionBudget", "NetworkPolicy"}


def read(path: str) -> Any:
    return yaml.safe_load((DEPLOY / path).read_text())


KUBERNETES = {path.name: read(f"kubernetes/{path.name}") for path in sorted((DEPLOY / "kubernetes").iterdir())}
OBJECTS = {document["kind"]: document for document in KUBERNETES.values()}
PREDICTOR = read("kserve/inference-service.yaml")["spec"]["predictor"]
SCALING = {"minReplicas", "maxReplicas", "scaleMetric", "scaleTarget", "timeout"}  # of KServe, beside those of a pod
PODS: dict[str, Any] = {
    "kubernetes": OBJECTS["Deployment"]["spec"]["template"]["spec"],
    "kserve": {name: value for name, value in PREDICTOR.items() if name not in SCALING},
}


def container(name: str) -> Any:
    (only,) = PODS[name]["containers"]
    return only


def problem(document: Any) -> str | None:
    """What the strict schemas say of a document."""
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            return str(error.message)
    return None


def as_pod(spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}


def test_there_is_one_of_each_kind() -> None:
    assert set(OBJECTS) == KINDS
    assert len(KUBERNETES) == len(KINDS)


@pytest.mark.parametrize("name", KUBERNETES)
def test_the_manifests_are_valid(name: str) -> None:
    assert problem(KUBERNETES[name]) is None


@pytest.mark.parametrize("name", PODS)
def test_the_pods_of_all_manifests_are_valid(name: str) -> None:
    assert problem(as_pod(PODS[name])) is None


def places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every container and key of a document."""
    for key, value in document.items() if isinstance(document, dict) else enumerate(document):
        yield document, key
        if isinstance(value, dict | list):
            yield from places(value)


@pytest.mark.parametrize("name", PODS)
def test_a_misspelt_field_would_be_noticed(name: str) -> None:
    """Any of those that Kubernetes names: labels, quantities and node names are the user's own."""
    own = {"limits", "requests", "matchLabels"}
    count = sum(1 for _ in places(PODS[name]))
    for i in range(count):
        spec = deepcopy(PODS[name])
        holder, key = list(places(spec))[i]
        if isinstance(key, int) or any(holder is spec_part for spec_part in _own(spec, own)):
            continue
        holder[key + "x"] = holder.pop(key)
        assert problem(as_pod(spec)), key


def _own(document: Any, names: set[str]) -> list[Any]:
    return [holder[key] for holder, key in places(document) if key in names]


def test_a_wrong_type_would_be_noticed() -> None:
    spec = deepcopy(PODS["kubernetes"])
    spec["containers"][0]["ports"][0]["containerPort"] = "http"
    assert problem(as_pod(spec))


@pytest.mark.parametrize("name", PODS)
def test_images_and_users_are_those_of_the_dockerfile(name: str) -> None:
    image = container(name)["image"]
    assert image in IMAGES
    context = PODS[name]["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] == USER
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    locked = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert container(name)["securityContext"] == locked
    mounts = {mount["name"]: mount["mountPath"] for mount in container(name)["volumeMounts"]}
    assert mounts["tmp"] == "/tmp"
    assert {volume["name"] for volume in PODS[name]["volumes"] if "emptyDir" in volume} == set(mounts)
    assert container(name)["resources"].keys() == {"requests", "limits"}


@pytest.mark.parametrize("name", PODS)
def test_ports_and_probes_are_those_of_the_service(name: str) -> None:
    one = container(name)
    (port,) = one["ports"]
    assert port["containerPort"] == PORT == int(environment(STAGES[-1])["MEDIAN_PORT"])
    paths = {probe: one[probe]["httpGet"]["path"] for probe in one if probe.endswith("Probe")}
    assert paths["livenessProbe"] == "/healthz"
    check = STAGES[-1].all("HEALTHCHECK")[0]
    for probe, path in paths.items():
        assert path in OPEN_PATHS  # also with an API key
        assert probe == "livenessProbe" or f"'{path}'" in check
        assert one[probe]["httpGet"]["port"] in (PORT, port.get("name"))


@pytest.mark.parametrize("name", PODS)
def test_settings_are_those_of_the_service(name: str) -> None:
    variables = {each["name"]: each.get("value") for each in container(name)["env"]}
    ours = {key: value for key, value in variables.items() if key.startswith(PREFIX)}
    known = {PREFIX + option.name.upper() for option in fields(Settings)}
    assert set(ours) <= known
    assert "MEDIAN_API_KEY" in ours
    assert ours["MEDIAN_API_KEY"] is None  # which is in a Secret
    settings = Settings.from_env({key: value for key, value in ours.items() if value is not None})
    assert settings.threads == int(container(name)["resources"]["limits"]["cpu"])
    grace = PODS[name].get("terminationGracePeriodSeconds", 10**9)
    assert grace > settings.drain_s + settings.timeout_s + 1


def test_the_parts_fit_together() -> None:
    labels = OBJECTS["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert OBJECTS["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert OBJECTS["Service"]["spec"]["selector"] == labels
    assert OBJECTS["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert OBJECTS["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    (port,) = container("kubernetes")["ports"]
    assert OBJECTS["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]
    assert OBJECTS["NetworkPolicy"]["spec"]["ingress"][0]["ports"][0]["port"] == port["name"]
    scaler = OBJECTS["HorizontalPodAutoscaler"]["spec"]
    target = scaler["scaleTargetRef"]
    deployment = OBJECTS["Deployment"]
    assert (target["apiVersion"], target["kind"], target["name"]) == (
        deployment["apiVersion"], deployment["kind"], deployment["metadata"]["name"],
    )  # fmt: skip
    assert "replicas" not in deployment["spec"]  # two would set it
    (metric,) = scaler["metrics"]
    assert metric["pods"]["metric"]["name"].encode() in metrics.exposition()[0]
    assert int(metric["pods"]["target"]["averageValue"]) * 32 == Settings().queue
    assert OBJECTS["PodDisruptionBudget"]["spec"]["maxUnavailable"] < scaler["minReplicas"]


def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    """Those that need nothing but this package; no test runs those of a cluster."""
    assert {(language, note) for language, note, _ in BLOCKS} == {("sh", ""), ("sh", "cluster")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    for _, note, text in BLOCKS:
        if not note:
            subprocess.run(["bash", "-euc", text], cwd=tmp_path, env=variables, check=True)
    assert (tmp_path / "repository" / "median-radix-d2048-fused" / "config.pbtxt").exists()


def test_the_commands_for_a_cluster_name_what_is_there() -> None:
    commands = [line for _, note, text in BLOCKS if note == "cluster" for line in text.splitlines()]
    built = {name: how for line in commands for how, name in re.findall(r"^docker build (.*)-t (\S+) \.$", line)}
    assert built == IMAGES
    applied = {found for line in commands for found in re.findall(r"apply -f (\S+)", line)}
    assert applied == {"deploy/kubernetes/", "deploy/kserve/"}
    assert all((ROOT / each).exists() for each in applied)
    secret = next(each for each in container("kubernetes")["env"] if each["name"] == "MEDIAN_API_KEY")
    wanted = secret["valueFrom"]["secretKeyRef"]
    (created,) = [line for line in commands if "create secret" in line]
    assert created == f"kubectl create secret generic {wanted['name']} --from-literal={wanted['key']}=KEY"


def test_the_page_names_what_is_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
    for path in re.findall(r"`((?:tests|deploy)/[\w./-]+)`", PAGE):
        assert (ROOT / path).exists(), path
    assert f"Kubernetes {VERSIONS[0]} and {VERSIONS[1]}" in " ".join(PAGE.split())
