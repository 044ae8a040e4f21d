"""docs/stability.md names the library, routes and objects that there are."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any

import onnx_median

PAGE = (Path(__file__).parents[2] / "docs" / "stability.md").read_text()


def row(part: str) -> list[str]:
    """The code words of one row."""
    (line,) = re.findall(rf"^\| {part} \| (.*) \|$", PAGE, re.M)
    return re.findall(r"`([^`]+)`", line)


def test_the_public_names_of_the_library() -> None:
    names = row("Library")
    public = names[: names.index("onnx_median")]
    assert public == [name for name in onnx_median.__all__ if name != "__version__"]
    assert all(importlib.util.find_spec(name) for name in names if name.startswith("exporter."))


def test_the_client_and_the_tables() -> None:
    for name in row("Client, tables"):
        module, _, item = name.rpartition(".")
        spec = importlib.util.find_spec(module)
        assert spec is not None, name
        if module != "service.tables.ray":  # which imports Ray
            assert hasattr(importlib.import_module(module), item), name


def test_the_routes_of_the_service(client: Any) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    routes = [name for name in row("Service") if name.startswith("/")]
    assert len(routes) == 8
    assert [route for route in routes if route not in paths] == []
