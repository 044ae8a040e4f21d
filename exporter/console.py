"""The command `onnx-median`: everything of `python -m exporter`, and the service beside it.

onnx-median --d 25 --out models/     as python -m exporter
onnx-median describe FILE            and verify, audit, reduce, atlas
onnx-median serve --port 8000        as python -m service
onnx-median client --url URL         as python -m service.client
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

SERVICE = {"serve": "service.__main__", "client": "service.client.__main__"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Hand the arguments to the package that the first of them names."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    module = SERVICE.get(given[0]) if given else None
    if module is None:
        return int(import_module("exporter.cli").main(given))
    try:
        command = import_module(module).main
    except ModuleNotFoundError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return int(command(given[1:]))
