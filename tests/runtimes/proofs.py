"""The properties that Marabou is to prove, on models as small as it can take."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from exporter.build import build, to_onnx
from exporter.formats.manifest import write
from exporter.problem.spec import Spec
from exporter.problem.task import median
from exporter.tools.properties import write_properties
from tests.runtimes.report import Result, title
from tests.runtimes.table import graph_hash

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Proof:
    construction: str
    d: int
    bits: int
    kind: str  # of exporter.tools.properties

    @property
    def about(self) -> dict[str, Any]:
        return {"construction": self.construction, "d": self.d, "bits": self.bits, "property": self.kind}

    @property
    def name(self) -> str:
        return title(self.about)

    def export(self, out: Path) -> tuple[Path, Path]:
        """A network and its property."""
        spec = Spec(median(self.d), self.construction, bits=self.bits, dtype="float32", profile="dense", inputs="grid")
        model = build(spec)
        path = out / f"{self.construction}-d{self.d}-b{self.bits}.onnx"
        write(to_onnx(model), path, model.description())
        write_properties(path, out)
        net = path if self.kind in ("range", "local") else path.with_name(f"{path.stem}-{self.kind}.onnx")
        return net, path.with_name(f"{path.stem}-{self.kind}.vnnlib")

    def hash(self, out: Path) -> str:
        """Of the network and what is asked of it."""
        net, prop = self.export(out)
        return sha256((graph_hash(net) + prop.read_text()).encode()).hexdigest()[:16]

    def run(self, out: Path) -> Result:
        files = [str(path) for path in self.export(out)]
        command = [str(ROOT / ".venv-runtimes/bin/python"), "-m", "tests.runtimes.prove", *files]
        result = self.about | {"file": self.hash(out)}
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
            return result | json.loads(done.stdout)
        except (OSError, subprocess.SubprocessError, json.JSONDecodeError) as error:
            failed = {"cases": 0, "proved": False, "refuted": False, "seconds": 0}
            return result | failed | {"reason": f"fails: {type(error).__name__}"}


# queries that Marabou decides with few splits or none: `swap` ends in two seconds or never
PROOFS = (
    Proof("radix", 3, 2, "range"),
    Proof("batcher", 3, 16, "range"),
    Proof("radix", 3, 4, "local"),
    Proof("depth3", 3, 4, "local"),
)
