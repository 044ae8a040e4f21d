"""Errors that a user can act on.

UserError            bad input or a request that cannot be met: one line for the user, exit status 2
├── ContractError    a combination of bits, dtype and construction that would be silently wrong
└── WriteError       the output directory or its manifest cannot be written
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_command_line = ContextVar("command_line", default=False)


def spelled(name: str, value: Any = None) -> str:
    """An option as the reader of a message writes it: `bits=8` in Python, `--bits 8` on the command line."""
    if _command_line.get():
        values = value if isinstance(value, tuple) else () if value is None else (value,)
        return " ".join([f"--{name.replace('_', '-')}", *map(str, values)])
    return name if value is None else f"{name}={value!r}"


@contextmanager
def command_line() -> Iterator[None]:
    """Messages in this block are for a reader at the command line."""
    token = _command_line.set(True)
    try:
        yield
    finally:
        _command_line.reset(token)


def install(*extras: str) -> str:
    """The command that installs extras of this package."""
    return f"pip install -e '.[{','.join(extras)}]' (in a checkout of onnx-median)"


class UserError(Exception):
    """A request that cannot be met. The message names the cause and the remedy."""


class ContractError(UserError):
    """The network would not be exact with this dtype at these bits."""


class WriteError(UserError):
    """The output directory, or the manifest in it, cannot be written."""
