"""The HTTP service around exported models, its client, and order statistics of tables (`service.tables`).

The service and the client need the extra `service`; `service.tables` needs the extra `tables` alone.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

import exporter  # noqa: F401, before onnxruntime, which it silences
from exporter.errors import install

NEEDED = ("fastapi", "httptools", "httpx", "orjson", "prometheus_client", "simdjson", "uvicorn")


def require(what: str, modules: tuple[str, ...], extra: str, command: bool | None = None) -> None:
    """Stop with a message that names the extra if one of the modules is not installed.

    A command prints the message and ends with status 2; an import raises ModuleNotFoundError. `python -m` is recognised by
    sys.argv[0], which Python sets to "-m" while it imports the package of the module to run.
    """
    missing = [name for name in modules if find_spec(name) is None]
    if not missing:
        return
    message = f"{what} needs {', '.join(missing)}: {install(extra)}"
    if sys.argv[0] == "-m" if command is None else command:
        print(f"error: {message}", file=sys.stderr)
        sys.exit(2)
    raise ModuleNotFoundError(message, name=missing[0])


def require_service(command: bool | None = None) -> None:
    """Stop if the extra `service` is not installed."""
    require("the service", NEEDED, "service", command)
