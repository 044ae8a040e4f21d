"""The table that the matrix writes, models/runtimes.json: its cells, each with the hash of the graph it was measured on."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import onnx

from exporter.formats.manifest import replace_file
from tests.runtimes.adapters import RUNTIMES
from tests.runtimes.report import Result, markdown, title

Table = dict[str, Any]
FORMAT = 2  # of runtimes.json


def graph_hash(model: Path) -> str:
    """A short hash of what a runtime computes: the graph, without the description and the version beside it."""
    return sha256(onnx.load(model).graph.SerializeToString(deterministic=True)).hexdigest()[:16]


def read(folder: Path) -> Table:
    """The table there, an empty one when there is none of this format."""
    path = folder / "runtimes.json"
    table: Table = json.loads(path.read_text()) if path.exists() else {}
    return table if table.get("format") == FORMAT else {"files": {}, "results": [], "proofs": []}


def merged(old: Table, titles: list[str], files: dict[str, str], results: list[Result], proofs: list[Result]) -> Table:
    """New cells among the old ones, in the order of runtimes and `titles`; `files`: the hashes of the files as they are."""
    cells = {(r["runtime"], title(r)): r for r in [*old["results"], *results]}
    proved = {title(p): p for p in [*old["proofs"], *proofs]}
    hashes = old["files"] | files
    return {
        "files": {name: hashes[name] for name in titles if name in hashes},
        "results": [
            cells[runtime.name, name]
            for runtime in RUNTIMES.values()
            for name in titles
            if (runtime.name, name) in cells
        ],
        "proofs": [proved[name] for name in titles if name in proved],
    }


def save(folder: Path, table: Table) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / "runtimes.json", (json.dumps({"format": FORMAT} | table, indent=1) + "\n").encode())
    replace_file(folder / "RUNTIMES.md", markdown(table["results"], table["proofs"], table["files"]).encode())
