"""What the page carries with it, written once and committed: `python -m tests.service.watch.page_data` writes it again.

    specimens.zip   small networks of every construction for Watch, which need no model to be loaded, and their manifest
    atlas.json      docs/atlas/atlas.csv for Compare, with the lower bounds at every d

The service itself never loads this module: it builds networks.
"""

from __future__ import annotations

import argparse
import io
import json
import zipfile
from pathlib import Path
from typing import Any

from tqdm import tqdm

from exporter.build import build, to_onnx
from exporter.constructions import CONSTRUCTIONS
from exporter.errors import UserError
from exporter.formats.manifest import replace_file
from exporter.library import catalogue
from exporter.problem.spec import Spec
from exporter.problem.task import median
from exporter.theory.atlas import read_table
from exporter.theory.lower_bounds import exact_width, forbidden, maximum_within
from service.watch.specimens import MANIFEST, PAGE, SPECIMENS, carried
from tests.service.watch.stories import ReadNetwork, layers, story

ATLAS = PAGE / "atlas.json"
TABLE = Path(__file__).resolve().parents[3] / "docs" / "atlas" / "atlas.csv"
BITS = 16
COLUMNS = (
    "construction", "op", "d", "depth", "width", "size", "nnz", "max_weight", "claimed_depth", "claimed_exponent",
    "exponent", "failure_bound", "failure_rate", "trials", "mse", "reason",
)  # fmt: skip
EPOCH = (1980, 1, 1, 0, 0, 0)  # the same bytes whenever they are written


def specimen(construction: str, d: int) -> tuple[bytes, dict[str, Any]]:
    """A network as the structured file that any runtime loads, and its entry in the manifest."""
    model = build(Spec(median(d), construction, bits=BITS, profile="structured"))
    content, about = to_onnx(model).SerializeToString(), model.description()
    network = ReadNetwork(content, about["modules"])
    entry = {"file": f"{construction}-{d}.onnx", "description": about}
    return content, entry | {"layers": layers(network), "story": story(network)}


def specimens() -> bytes:
    """All of them as one archive, where they can be planned for so few; the manifest stands first."""
    wanted = [(c.name, d) for c in CONSTRUCTIONS.values() if c.op == "median" for d in c.shown]
    files, entries = {}, []
    for name, d in tqdm(wanted, desc="specimens", unit="network", disable=None):
        try:
            content, entry = specimen(name, d)
        except UserError as error:
            tqdm.write(f"no {name}-{d}: {error}")
            continue
        files[entry["file"]] = content
        entries.append(entry)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in {MANIFEST: json.dumps(entries).encode(), **files}.items():
            archive.writestr(zipfile.ZipInfo(name, EPOCH), content, zipfile.ZIP_DEFLATED, 9)
    return packed.getvalue()


def atlas() -> bytes:
    """The rows of the table, what each construction is, and what the paper rules out for medians at every d."""
    rows = read_table(TABLE)
    bounds = {}
    for d in sorted({row["d"] for row in rows if row["op"] == "median"}):
        m = maximum_within(median(d).outputs[0], d)
        bounds[d] = [
            {"depth": depth, "width": None if width == float("inf") else width, "theorem": theorem, "exact": exact,
             "proven": exact_width(m, depth) if exact else None}
            for depth, width, theorem, exact in forbidden(d)
        ]  # fmt: skip
    about = {c.name: {"summary": catalogue()[c.name], "theorem": c.theorem} for c in CONSTRUCTIONS.values()}
    for each in sorted(carried().values(), key=lambda specimen: -specimen.d):  # the smallest counts
        about[each.construction]["story"] = each.story["kind"]
    table = [{column: row[column] for column in COLUMNS} for row in rows]
    return (json.dumps({"constructions": about, "bounds": bounds, "rows": table}, indent=1) + "\n").encode()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.service.watch.page_data", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--atlas-only", action="store_true", help="leave the specimens as they are")
    if not parser.parse_args().atlas_only:
        replace_file(SPECIMENS, specimens())
    replace_file(ATLAS, atlas())


if __name__ == "__main__":
    main()
