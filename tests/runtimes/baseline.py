"""How far two verifiers get up the benchmark: `python -m tests.runtimes.baseline DIR [--largest 4] [--seconds 60]`.

DIR is a folder that `python -m exporter benchmark` wrote. For every kind of network, property and expected answer a verifier
starts at the smallest network, and goes on to the next one while it gives an answer within its seconds of processor time.
Prints a table: the largest d (or number of members) that was answered, its seconds, and how the next one ended. A wrong
answer ends the run with status 1. Runs in the environment of `make verifiers`.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.runtimes.prove import answered, prove, spent

KIND = re.compile(r"(?:median-(\w+)-d|(ensemble)-of-)(\d+)(?:.*-dense)?-(.*)\.vnnlib")
Run = Callable[[Path, Path, int], str]


def marabou(net: Path, prop: Path, seconds: int) -> str:
    found = prove(net, prop, seconds)
    return "unsat" if found["proved"] else "sat" if found["refuted"] else ""


def vibecheck(net: Path, prop: Path, seconds: int) -> str:
    command = [sys.executable, "-m", "vibecheck", "verify", str(prop), "--network", f"f={net}", "--device", "cpu"]
    return answered([*command, "--timeout", str(20 * seconds)], seconds)  # its own limit is of wall time


VERIFIERS: dict[str, Run] = {"Marabou": marabou, "vibecheck": vibecheck}


def ladders(folder: Path, sizes: range) -> dict[tuple[str, str, str], list[tuple[int, Path, Path]]]:
    """(network, property, expected answer) -> (size, network, property) from the smallest."""
    answers = dict(csv.reader((folder / "expected.csv").open()))
    found: dict[tuple[str, str, str], list[tuple[int, Path, Path]]] = {}
    for net, prop, _ in csv.reader((folder / "instances.csv").open()):
        name = Path(prop).name
        match = KIND.fullmatch(name)
        assert match, name
        size = int(match[3])
        if size in sizes:
            key = match[1] or match[2], match[4].removesuffix("-violated"), answers[name]
            found.setdefault(key, []).append((size, folder / net, folder / prop))
    return found


def rows(folder: Path, sizes: range, seconds: int, verifiers: dict[str, Run]) -> Iterator[str]:
    yield "| network | property | answer | " + " | ".join(verifiers) + " |"
    yield "|---" * (3 + len(verifiers)) + "|"
    for (network, kind, answer), steps in ladders(folder, sizes).items():
        cells = []
        for run in verifiers.values():
            cell = ""
            for size, net, prop in sorted(steps):
                before = spent()
                got = run(net.resolve(), prop.resolve(), seconds)
                took = spent() - before
                if got not in ("", answer):
                    raise SystemExit(f"{prop}: {got}, and {answer} is right")
                if got != answer:
                    cell = f"{cell}, not {size} ({took:.0f} s)" if cell else f"not {size} ({took:.0f} s)"
                    break
                cell = f"{size} ({took:.1f} s)"
            cells.append(cell)
        yield f"| {network} | {kind} | {answer} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.runtimes.baseline", description="A baseline of verifiers.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--verifier", action="append", choices=VERIFIERS, help="repeatable (default: all)")
    parser.add_argument("--smallest", type=int, default=2, help="the smallest networks to try (default: 2)")
    parser.add_argument("--largest", type=int, default=4, help="the largest networks to try (default: 4)")
    parser.add_argument("--seconds", type=int, default=60, help="of processor time for an instance (default: 60)")
    parsed = parser.parse_args()
    start = time.perf_counter()
    verifiers = {name: VERIFIERS[name] for name in parsed.verifier or VERIFIERS}
    for line in rows(parsed.folder, range(parsed.smallest, parsed.largest + 1), parsed.seconds, verifiers):
        print(line, flush=True)
    print(f"\n{spent():.0f} s of processor time, {time.perf_counter() - start:.0f} s in all")


if __name__ == "__main__":
    main()
