"""Prove a VNN-LIB property with Marabou: `python -m tests.runtimes.prove MODEL.onnx PROPERTY.vnnlib`.

Marabou does not come back from a disjunction, so every case of the violation is a query of its own; the property is proved
when all are unsat. A query is solved once, in a process of its own with a limit of processor time: the queries of
`proofs.PROOFS` end in about a second. Prints a line of JSON: `proved`; `refuted` when a query has a solution; neither when a
query did not end.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SECONDS = 60  # of processor time for a query


def cases(text: str) -> list[str]:
    """A property as conjunctive ones, one for each line of its disjunction."""
    head, disjunction = text.split("(assert (or\n")
    lines = [line.strip() for line in disjunction.splitlines() if line.strip().startswith("(and ")]
    found = []
    for line in lines:
        atoms = line.removeprefix("(and ").removesuffix(")")
        found.append(head + "".join(f"(assert {atom.strip()})\n" for atom in atoms.replace(") (", ")\n(").splitlines()))
    return found


def solved(model: str, query: str) -> str:
    """What Marabou says of one query, in this process."""
    from maraboupy import Marabou

    options = Marabou.createOptions(verbosity=0, splittingStrategy="auto", tighteningStrategy="sbt")
    return str(Marabou.read_onnx(model).solve(propertyFilename=query, verbose=False, options=options)[0])


def searched(model: Path, query: Path) -> str:
    """The answer to a query, "" when the search did not end."""
    command = [sys.executable, "-m", "tests.runtimes.prove", "--query", str(model), str(query)]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=_limited, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))


def prove(model: Path, prop: Path) -> dict[str, object]:
    start, answers = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(prop.read_text()):
            query = Path(folder) / "case.vnnlib"
            query.write_text(case)
            answers.append(searched(model, query))
            if answers[-1] != "unsat":
                break
    return {
        "cases": len(answers), "proved": bool(answers) and all(a == "unsat" for a in answers),
        "refuted": "sat" in answers, "seconds": round(time.perf_counter() - start, 1),
    }  # fmt: skip


def main(argv: list[str]) -> None:
    sys.stdout.flush()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the runtime talks on stdout
    if argv[0] == "--query":
        print(solved(*argv[1:]), file=out, flush=True)
    else:
        print(json.dumps(prove(*map(Path, argv))), file=out, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
