"""Errors that a user can act on.

UserError            bad input or a request that cannot be met: one line for the user, exit status 2
├── ContractError    a combination of bits, dtype and construction that would be silently wrong
└── WriteError       the output directory or its manifest cannot be written
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
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


def nearest(word: Any, known: Iterable[str]) -> str:
    """`: did you mean 'fused'?` if a known word is similar, else nothing."""
    found = get_close_matches(word, list(known), 1) if isinstance(word, str) else []
    return f": did you mean {found[0]!r}?" if found else ""


def spoken(words: Sequence[str]) -> str:
    """`a, b and c`"""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


class UserError(Exception):
    """A request that cannot be met. The message names the cause and the remedy."""


class ContractError(UserError):
    """The network would not be exact with this dtype at these bits."""


class WriteError(UserError):
    """The output directory, or the manifest in it, cannot be written."""
