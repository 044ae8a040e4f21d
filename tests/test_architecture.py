"""Imports point one way: a stage of the pipeline knows the stages before it, never those after it."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from service import NEEDED

ROOT = Path(__file__).resolve().parents[1]
# from the ground up; a name is a module or a folder of the package
EXPORTER = [
    "version", "errors", "sparse", "progress", "check", "problem", "ir", "planning", "analysis", "passes", "formats",
    "options", "constructions", "specs", "fhe", "formula", "build", "frontends.images", "display", "net", "library",
    "frontends.rewriting", "torch", "prove", "tools", "theory", "cli",
]  # fmt: skip
SERVICE = [
    "json_text", "errors", "process.settings", "process.logs", "process.metrics",
    "statistics", "models.entries", "models.filters", "models.registry", "watch", "serving",
    "process.lifecycle", "models.building", "app", "process.signals", "process.workers", "client",
    "tables", "batch",
]  # fmt: skip


def modules(package: str) -> Iterator[tuple[str, Path]]:
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(path: Path) -> Iterator[str]:
    """Modules imported when the file is: what stands inside a function is loaded later, on purpose."""
    for node in ast.parse(path.read_text()).body:
        yield from imported(node)


def imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)


def place(name: str, order: list[str]) -> int | None:
    """Where a module stands in the order: its own entry or that of its folder; None for what has no entry."""
    parts = name.split(".")[1:]
    return next((order.index(p) for p in (".".join(parts[:2]), parts[0]) if p in order), None) if parts else None


@pytest.mark.parametrize(("package", "order"), [("exporter", EXPORTER), ("service", SERVICE)])
def test_imports_point_down(package: str, order: list[str]) -> None:
    upward = []
    for name, path in modules(package):
        if path.name in ("__init__.py", "__main__.py") and place(name, order) is None:
            continue
        stage = place(name, order)
        assert stage is not None, f"{name} has no place in the order"
        for target in imports(path):
            below = place(target, order) if target.startswith(f"{package}.") else None
            if below is not None and below > stage:
                upward.append(f"{name} imports {target}")
    assert not upward


def test_the_checker_trusts_nothing_of_the_builder() -> None:
    outside = {"numpy", "onnx"} | sys.stdlib_module_names
    for path in (ROOT / "exporter" / "check").glob("*.py"):
        targets = {target for node in ast.walk(ast.parse(path.read_text())) for target in imported(node)}
        assert {t for t in targets if t.split(".")[0] not in outside and not t.startswith("exporter.check")} == set()


@pytest.mark.parametrize("package", ["exporter", "service"])
def test_no_module_imports_itself_in_a_circle(package: str) -> None:
    names = dict(modules(package))
    reads = {name: {t for t in imports(path) if t in names and t != name} for name, path in names.items()}
    done: set[str] = set()

    def walk(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail, name))
        if name not in done:
            for target in sorted(reads[name]):
                walk(target, (*trail, name))
            done.add(name)

    for name in names:
        walk(name, ())


def loaded(code: str) -> set[str]:
    run = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(run.stdout.split())


def test_reading_a_file_loads_no_builder() -> None:
    there = loaded("import exporter.formats.gemm_chain, exporter.tools.describe")
    assert not [m for m in there if m.startswith(("exporter.constructions", "exporter.planning", "exporter.build"))]
    assert "scipy" not in there | loaded("import exporter.formats.model_file, exporter.formats.manifest")


def test_comparators_load_no_scipy() -> None:
    there = loaded("import exporter; assert exporter.median(5)([3, 1, 4, 1, 5]) == 3")
    assert not {"scipy", "numpy.ma", "tqdm"} & there


def test_a_worker_loads_no_scipy() -> None:
    there = loaded("import service.app, service.process.workers")
    assert "scipy" not in there
    assert not [m for m in there if m.startswith(("exporter.ir.trace", "exporter.constructions"))]


@pytest.mark.parametrize("name", ["exporter.formats.session", "service.models.registry"])
def test_onnxruntime_reports_to_nobody(tmp_path: Path, name: str) -> None:
    """Its telemetry, on by default since 1.29, leaves an identifier and a database, has threads, and sends what it knows."""
    silent = {"ORT_DISABLE_TELEMETRY", "ORT_RUNNING_UNIT_TESTS", "CI"}
    folders = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_DATA_HOME"), str(tmp_path))
    environment = {key: value for key, value in os.environ.items() if key not in silent} | folders
    code = f"import {name}, onnxruntime, os; print(len(os.listdir('/proc/self/task')))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment | {"OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == "1\n"
    assert not list(tmp_path.rglob("*"))


def test_packages_import_what_they_declare() -> None:
    """The base install runs the exporter, the extra `service` the service; fastapi and onnx bring what they need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    base, service = project["dependencies"], extras["service"]
    optional = {
        module(each) for name in ("plot", "ray", "tables", "rewrite", "tflite", "torch") for each in extras[name]
    }
    optional.add("concrete")  # needs numpy below 2, so it has an environment of its own (docs/encryption.md)
    for package, declared in (("exporter", base), ("service", base + service)):
        used = {
            name.partition(".")[0]
            for _, path in modules(package)
            for node in ast.walk(ast.parse(path.read_text()))
            for name in imported(node)
        } - {"exporter", "service", *sys.stdlib_module_names}
        known = {module(each) for each in declared}
        assert used - optional - {"starlette", "pydantic", "google"} <= known, package
    assert {module(each) for each in service} == set(NEEDED)


def module(requirement: str) -> str:
    """What the package that a requirement names is imported as."""
    name = re.split(r"[>=;\[]", requirement)[0].replace("-", "_")
    return {"pysimdjson": "simdjson"}.get(name, name)


def test_only_the_catalogue_names_a_construction() -> None:
    """What is said of a construction stands on its entry: no other module has its name in a text that is no docstring."""
    from exporter.constructions import CONSTRUCTIONS

    names = re.compile(rf"(?<!\w)({'|'.join(CONSTRUCTIONS)})(?!\w)")
    found = set()
    for package in ("exporter", "service"):
        for module, path in modules(package):
            if module != "exporter.constructions":
                found |= {(module, said) for text in texts(path) for said in names.findall(text)}
    assert found == {("exporter.specs", "radix")}  # how the option of that name shows in names of files
    for path in [*(ROOT / "service" / "page" / "js").glob("*.js"), ROOT / "service" / "page" / "index.html"]:
        assert not names.findall(path.read_text()), path.name


def texts(path: Path) -> Iterator[str]:
    """The strings of a module; docstrings and examples of commands, which may be about anything, are left out."""
    tree = ast.parse(path.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, documented)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in docstrings:
            yield "\n".join(line for line in node.value.splitlines() if not line.startswith("  "))


def test_a_class_name_means_one_thing() -> None:
    where = defaultdict(list)
    for package in ("exporter", "service"):
        for name, path in modules(package):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    where[node.name].append(name)
    assert not {name: places for name, places in where.items() if len(places) > 1}


def test_no_dataclass_takes_more_than_six_positional_arguments() -> None:
    """Its constructor is written nowhere, so that the linter, which counts those of functions, does not see it."""
    found = set()
    for name, _ in modules("exporter"):
        if name not in ("exporter.__main__", "exporter.torch"):  # the one runs, the other needs torch
            for one in vars(importlib.import_module(name)).values():
                if inspect.isclass(one) and is_dataclass(one) and sum(not f.kw_only for f in fields(one)) > 6:
                    found.add(f"{one.__module__}.{one.__name__}")
    assert not found
