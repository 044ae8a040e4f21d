"""The command `onnx-median`: every command of `python -m exporter`, and the service.

onnx-median export --d 25 --out models/   as python -m exporter export
onnx-median describe FILE                 and the other commands below
onnx-median serve --port 8000             as python -m service
onnx-median client --url URL              as python -m service.client
onnx-median tables --input FILE           as python -m service.tables
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from exporter.errors import nearest

SERVICE = {
    "serve": "service.__main__", "client": "service.client.__main__", "tables": "service.tables.__main__",
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command of the package that the first argument names; the other package is not loaded."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    word = given[0] if given else ""
    if word not in SERVICE:
        return _export(word, given)
    try:
        command = import_module(SERVICE[word]).main
    except ModuleNotFoundError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return int(command(given[1:]))


def _export(word: str, given: list[str]) -> int:
    from exporter.cli.parser import VERBS, main

    if word in ("-h", "--help"):
        print(__doc__)
    elif not word.startswith("-") and word not in VERBS and (near := nearest(word, [*VERBS, *SERVICE])):
        print(f"error: unknown command {word!r}{near} onnx-median --help lists them", file=sys.stderr)
        return 2
    return main(given)
