"""The matrix as a page: one table of verdicts, one of times, and what each runtime needs."""

from __future__ import annotations

from typing import Any

Result = dict[str, Any]
HEAD = """\
# Which runtimes are exact

Written by `make runtimes`; do not edit. Every file is run on ten families of inputs, the hostile ones too (sorted, ties,
constant, neighbouring values, the ends of the range), and compared with numpy, bit for bit. `exact`: every answer is equal;
a number is the largest error; `-`: not tried, the file is too large for the runtime or of a profile that it does not load.
`(exact)`, in parentheses: measured on an older file, whose graph was another, and not counted.

Times are per vector in batches of 40 (batch 1: one by one), as multiples of ONNX Runtime's own on one thread, on a shared
machine: read them as orders of magnitude.
"""


def kind(about: Result) -> str:
    """The files that docs/runtimes.md speaks of together."""
    for start, name in (("rewritten", "rewritten models"), ("window", "image filters")):
        if about["construction"].startswith(start):
            return name
    return f"{about['dtype']} `{about['profile']}`"


def by_kind(results: list[Result]) -> dict[str, str]:
    """In which runtimes every file of a kind that was tried is exact, as docs/runtimes.md says it."""
    found = {}
    for name in dict.fromkeys(kind(r) for r in results):
        tried = [r for r in results if kind(r) == name and r["status"] != "not tried"]
        others = dict.fromkeys(r["runtime"].split(" (")[0] for r in tried if r["status"] != "exact")
        found[name] = " but ".join(["all", *[_listed(list(others))] * bool(others)])
    return found


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def title(about: Result) -> str:
    """The name of a file, or of a property that is proved of it: what a cell of the table is of."""
    if "property" in about:
        return f"{about['property']} of {about['construction']} d = {about['d']}, {about['bits']} bits, dense"
    batch = f", batch {about['batch']}" if about["batch"] else ""
    bare = ", inputs grid" * (about.get("inputs") == "grid")
    form = f"{about['bits']} bits, {about['dtype']}, {about['profile']}"
    return f"{about['construction']} d = {about['d']}, {form}{bare}{batch}"


def stale(cell: Result, hashes: dict[str, str]) -> bool:
    """Whether a cell was measured on another graph than the file has by now."""
    return cell.get("status") != "not tried" and cell.get("file") != hashes.get(title(cell))


def markdown(results: list[Result], proofs: list[Result], hashes: dict[str, str]) -> str:
    runtimes = list(dict.fromkeys(r["runtime"] for r in results))
    files = list(dict.fromkeys(title(r) for r in results))
    old = {(r["runtime"], title(r)) for r in results if stale(r, hashes)}
    verdict = {(r["runtime"], title(r)): _verdict(r) for r in results}
    verdict |= {place: f"({verdict[place]})" for place in old}
    times = {(r["runtime"], title(r)): _time(r) for r in results if (r["runtime"], title(r)) not in old}
    lines = [
        HEAD,
        "## Runtimes",
        "",
        "| runtime | version | required | exact | options it needs |",
        "|---|---|---|---|---|",
    ]
    for name in runtimes:
        mine = [r for r in results if r["runtime"] == name]
        tried = [r for r in mine if r["status"] != "not tried" and not stale(r, hashes)]
        exact = f"{sum(r['status'] == 'exact' for r in tried)} of {len(tried)}"
        required = "yes" if mine[0]["required"] else ""
        lines.append(f"| {name} | {mine[0]['version'] or '-'} | {required} | {exact} | {mine[0]['options']} |")
    lines += ["", "## Where every file of a kind is exact, of the runtimes it was tried in", ""]
    lines += ["| files | runtimes |", "|---|---|", *(f"| {k} | {where} |" for k, where in by_kind(results).items())]
    lines += ["", "## Verdicts", "", "Promised files (every required runtime must be exact) are in bold.", ""]
    lines += _grid(files, runtimes, verdict, {title(r) for r in results if r["promised"]})
    lines += ["", "## Times, in multiples of ONNX Runtime", ""]
    lines += _grid(files, runtimes, times, set())
    reasons = [r for r in results if r["status"] in ("fails", "missing")]
    if reasons:
        lines += ["", "## What fails, and how", ""]
        for name in runtimes:
            for text in dict.fromkeys(r["reason"] for r in reasons if r["runtime"] == name):
                which = [title(r) for r in reasons if r["runtime"] == name and r["reason"] == text]
                lines.append(
                    f"- {name}: {text or 'no message'} ({which[0]}{f' and {len(which) - 1} more' * (len(which) > 1)})"
                )
    if proofs:
        lines += [
            "",
            "## Proved by Marabou",
            "",
            "| property | queries | answer | seconds |",
            "|---|---|---|---|",
        ]
        for p in proofs:
            answer = "proved, on all real inputs of its box" if p["proved"] else unproved(p)
            answer = f"({answer})" if stale(p, hashes) else answer
            lines.append(f"| {title(p)} | {p['cases']} | {answer} | {p['seconds']} |")
    return "\n".join(lines) + "\n"


def unproved(proof: Result) -> str:
    """What came of a proof that is none."""
    return "refuted" if proof["refuted"] else proof.get("reason", "a query did not end")


def _grid(files: list[str], runtimes: list[str], cell: dict[tuple[str, str], str], bold: set[str]) -> list[str]:
    lines = ["| file | " + " | ".join(runtimes) + " |", "|---" * (len(runtimes) + 1) + "|"]
    for file in files:
        name = f"**{file}**" if file in bold else file
        lines.append(f"| {name} | " + " | ".join(cell.get((runtime, file), "") for runtime in runtimes) + " |")
    return lines


def _verdict(r: Result) -> str:
    match r["status"]:
        case "exact":
            return "exact"
        case "inexact":
            return "garbage" if r["max_error"] is None else f"off by {r['max_error']:.2g}"
        case "not tried":
            return "-"
        case other:
            return str(other)


def _time(r: Result) -> str:
    return f"{r['times_onnxruntime']:g}" if "times_onnxruntime" in r else ""
