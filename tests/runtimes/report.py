"""The matrix as a page: one table of verdicts, one of times, and what each runtime needs."""

from __future__ import annotations

from typing import Any

Result = dict[str, Any]
HEAD = """\
# Which runtimes are exact

Written by `make runtimes`; do not edit. Every file is run on ten families of inputs, the hostile ones too (sorted, ties,
constant, neighbouring values, the ends of the range), and compared with numpy, bit for bit. `exact`: every answer is equal;
a number is the largest error. Times are per vector in batches of 40 (batch 1: one by one), as multiples of ONNX Runtime's
own on one thread, on a shared machine: read them as orders of magnitude.
"""


def markdown(results: list[Result], proofs: list[Result]) -> str:
    runtimes = list(dict.fromkeys(r["runtime"] for r in results))
    files = list(dict.fromkeys(_file(r) for r in results))
    verdict = {(r["runtime"], _file(r)): _verdict(r) for r in results}
    times = {(r["runtime"], _file(r)): _time(r) for r in results}
    lines = [
        HEAD,
        "## Runtimes",
        "",
        "| runtime | version | required | exact | options it needs |",
        "|---|---|---|---|---|",
    ]
    for name in runtimes:
        mine = [r for r in results if r["runtime"] == name]
        tried = [r for r in mine if r["status"] != "not tried"]
        exact = f"{sum(r['status'] == 'exact' for r in tried)} of {len(tried)}"
        required = "yes" if mine[0]["required"] else ""
        lines.append(f"| {name} | {mine[0]['version'] or '-'} | {required} | {exact} | {mine[0]['options']} |")
    lines += ["", "## Verdicts", "", "Promised files (every required runtime must be exact) are in bold.", ""]
    lines += _grid(files, runtimes, verdict, {_file(r) for r in results if r["promised"]})
    lines += ["", "## Times, in multiples of ONNX Runtime", ""]
    lines += _grid(files, runtimes, times, set())
    reasons = [r for r in results if r["status"] in ("fails", "missing")]
    if reasons:
        lines += ["", "## What fails, and how", ""]
        for name in runtimes:
            for text in dict.fromkeys(r["reason"] for r in reasons if r["runtime"] == name):
                which = [_file(r) for r in reasons if r["runtime"] == name and r["reason"] == text]
                lines.append(
                    f"- {name}: {text or 'no message'} ({which[0]}{f' and {len(which) - 1} more' * (len(which) > 1)})"
                )
    if proofs:
        lines += [
            "",
            "## Proved by Marabou",
            "",
            "| property | model | queries | searches | answer | seconds |",
            "|---|---|---|---|---|---|",
        ]
        for p in proofs:
            answer = "proved, on all real inputs" if p["proved"] else unproved(p)
            model = f"{p['construction']}, d = {p['d']}, {p['bits']} bits, dense"
            searches = p.get("searches", p["cases"])
            lines.append(
                f"| {p['property']} | {model} | {p['cases']} | {searches} | {answer} | {p.get('seconds', '-')} |"
            )
    return "\n".join(lines) + "\n"


def unproved(proof: Result) -> str:
    """What came of a proof that is none."""
    return f"refuted {proof.get('reason', '')}".strip() if proof.get("refuted") else "no search ended"


def _grid(files: list[str], runtimes: list[str], cell: dict[tuple[str, str], str], bold: set[str]) -> list[str]:
    lines = ["| file | " + " | ".join(runtimes) + " |", "|---" * (len(runtimes) + 1) + "|"]
    for file in files:
        name = f"**{file}**" if file in bold else file
        lines.append(f"| {name} | " + " | ".join(cell.get((runtime, file), "") for runtime in runtimes) + " |")
    return lines


def _file(r: Result) -> str:
    batch = f", batch {r['batch']}" if r["batch"] else ""
    return f"{r['construction']} d = {r['d']}, {r['bits']} bits, {r['dtype']}, {r['profile']}{batch}"


def _verdict(r: Result) -> str:
    match r["status"]:
        case "exact":
            return "exact"
        case "inexact":
            return "garbage" if r["max_error"] is None else f"off by {r['max_error']:.2g}"
        case "not tried":
            return ""
        case other:
            return str(other)


def _time(r: Result) -> str:
    return f"{r['times_onnxruntime']:g}" if "times_onnxruntime" in r else ""
