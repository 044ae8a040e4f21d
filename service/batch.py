"""The former name of `service.tables`, kept as a command: `python -m service.batch`.

Several columns without --by are answered row by row, as before. Options that no longer exist are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from service import require

require("service.batch", ("pyarrow", "duckdb"), "tables")
from service.tables.__main__ import main as tables  # noqa: E402, a missing extra is named first
from service.tables.__main__ import parser  # noqa: E402

RETIRED = ("--empty", "--largest", "--digit-bits")


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    for option in RETIRED:
        if option in given:
            at = given.index(option)
            del given[at : at + 2]
            print(
                f"service.batch: {option} has no effect any more; see python -m service.tables --help", file=sys.stderr
            )
    args = parser().parse_args(given)
    if len(args.column) > 1 and not args.by and not args.per:
        given += ["--per", "row"]
    return tables(given)


if __name__ == "__main__":
    sys.exit(main())
