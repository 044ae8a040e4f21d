"""Errors that a user can act on.

UserError            bad input or a request that cannot be met: one line for the user, exit status 2
├── ContractError    a combination of bits, dtype and construction that would be silently wrong
└── WriteError       the directory cannot take the files: nothing else can be written there either
"""

from __future__ import annotations


def install(*extras: str) -> str:
    """The command that installs extras of this package."""
    return f"pip install -e '.[{','.join(extras)}]' (in a checkout of onnx-median)"


class UserError(Exception):
    """The user asked for something that cannot be done; the message names the cause and the remedy."""


class ContractError(UserError):
    """The network would not be exact with this dtype at these bits."""


class WriteError(UserError):
    """The output directory, or the manifest in it, cannot be written."""
