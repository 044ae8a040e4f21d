"""Prove a VNN-LIB property with Marabou: `python -m tests.runtimes.prove MODEL.onnx PROPERTY.vnnlib ...`.

Marabou does not come back from a disjunction, so every case of the violation is a query of its own; the property is proved
when all are unsat. Prints one line of JSON per property.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path


def cases(text: str) -> list[str]:
    """A property as conjunctive ones, one for each line of its disjunction."""
    head, disjunction = text.split("(assert (or\n")
    lines = [line.strip() for line in disjunction.splitlines() if line.strip().startswith("(and ")]
    found = []
    for line in lines:
        atoms = line.removeprefix("(and ").removesuffix(")")
        found.append(head + "".join(f"(assert {atom.strip()})\n" for atom in atoms.replace(") (", ")\n(").splitlines()))
    return found


def prove(model: Path, prop: Path) -> dict[str, object]:
    from maraboupy import Marabou

    start, answers = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(prop.read_text()):
            query = Path(folder) / "case.vnnlib"
            query.write_text(case)
            options = Marabou.createOptions(verbosity=0)
            network = Marabou.read_onnx(str(model))
            answers.append(network.solve(propertyFilename=str(query), verbose=False, options=options)[0])
    seconds = round(time.perf_counter() - start, 3)
    proved = bool(answers) and all(a == "unsat" for a in answers)
    return {"model": model.name, "property": prop.name, "cases": len(answers), "proved": proved, "seconds": seconds}


def main(argv: list[str]) -> None:
    sys.stdout.flush()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the runtime talks on stdout
    for model, prop in zip(argv[::2], argv[1::2], strict=True):
        print(json.dumps(prove(Path(model), Path(prop))), file=out, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
