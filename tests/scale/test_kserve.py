"""The files of deploy/kserve by the schemas of KServe's own package."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]


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
