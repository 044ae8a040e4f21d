"""HTTP service around the exported models: the extra `service` of the package."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import exporter  # noqa: F401, before onnxruntime, which it silences

NEEDED = ("fastapi", "httptools", "httpx", "orjson", "prometheus_client", "simdjson", "uvicorn")

if missing := [name for name in NEEDED if find_spec(name) is None]:
    message = f"the service needs {', '.join(missing)}: pip install 'onnx-median[service]'"
    if sys.argv[0] == "-m":  # as long as Python looks for the module of `python -m service...`
        print(f"error: {message}", file=sys.stderr)
        sys.exit(2)
    raise ModuleNotFoundError(message, name=missing[0])
