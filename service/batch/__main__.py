"""`python -m service.batch`: medians and quantiles of tables, from files to files."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from service.batch import engines

if __name__ == "__main__" and "ray" not in sys.argv:
    engines.prepare()  # first of all: another process imports the same meanwhile

from exporter.errors import UserError
from service.batch.options import parsed
from service.batch.run import Tally, run


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    started = time.perf_counter()
    try:
        report = run(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: finished parts are kept; run the same command to go on", file=sys.stderr)
        return 130
    print(_told(report, str(options.out), time.perf_counter() - started))
    return 0


def _told(report: Tally, out: str, seconds: float) -> str:
    if not report.parts and report.skipped:
        return f"{out}: all parts are there already"
    lines = [f"{out}: {report.rows} answers in {report.parts} parts, {report.skipped} were there, {seconds:.1f} s"]
    for i, each in enumerate(report.passes or (), 1):
        lines.append(
            f"pass {i}: {each['seconds']:.2f} s, {each['work']:.2f} s of work, {each['intervals']} interval(s), "
            f"{each['bytes']} bytes of counts sent"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
