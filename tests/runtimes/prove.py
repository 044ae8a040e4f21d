"""Prove a VNN-LIB property with Marabou: `python -m tests.runtimes.prove MODEL.onnx PROPERTY.vnnlib`.

Marabou does not come back from a disjunction, so every case of the violation is a query of its own; the property is proved
when all are unsat. A query is solved once, in a process of its own. The queries of a property share a limit of processor
time: those of `proofs.PROOFS` end in about a second. Prints a line of JSON: `proved`; `refuted` when a query has a solution;
neither when a query did not end.
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

SECONDS = 60  # of processor time for a property


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


def answered(command: list[str], seconds: int) -> str:
    """`sat` or `unsat` if that is the first word that a command prints, "" if it gives up or takes longer."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))

    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limited, check=False)
    words = done.stdout.split()
    return words[0] if words and words[0] in ("sat", "unsat") else ""


def spent() -> float:
    """Processor time of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def prove(model: Path, prop: Path, seconds: int = SECONDS) -> dict[str, object]:
    start, before, answers = time.perf_counter(), spent(), []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(prop.read_text()):
            query = Path(folder) / "case.vnnlib"
            query.write_text(case)
            command = [sys.executable, "-m", "tests.runtimes.prove", "--query", str(model), str(query)]
            answers.append(answered(command, max(1, seconds - int(spent() - before))))
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
        print(json.dumps(prove(Path(argv[0]), Path(argv[1]))), file=out, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
