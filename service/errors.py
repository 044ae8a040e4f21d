"""Errors of the service. Each error is an answer to the caller.

ProblemError         anything the service answers with a 4xx or 5xx on purpose, as RFC 9457 problem details
├── BadInputError    the body can be read but not answered (422); names the vector and the index at fault
├── BusyError        the queue is full (429); says when to come back
├── MissingModelError  the model that a request needs is being built (503); says when to come back
└── ShortageError    memory, threads or files ran out (503); it may pass

A problem carries what a caller needs to repair the request: `vector` and `index` point at the number at fault.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping


class ProblemError(Exception):
    """A request that cannot be answered: status, a sentence for the caller, and machine-readable members beside it."""

    def __init__(
        self, status: int, detail: str, *, headers: Mapping[str, str] | None = None, **members: int | str | list[str]
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})
        self.members: Mapping[str, int | str | list[str]] = members


class BadInputError(ProblemError):
    """The caller's numbers or options are wrong; `vector` and `index` say where."""

    def __init__(self, detail: str, *, vector: int | None = None, index: int | None = None, status: int = 422) -> None:
        super().__init__(status, detail)
        self.members = {name: at for name, at in (("vector", vector), ("index", index)) if at is not None}


class BusyError(ProblemError):
    """The queue is full. Nothing was started; the caller may repeat the request."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(
            429, f"The queue is full; repeat the request in {retry_after} s.", headers={"Retry-After": str(retry_after)}
        )


class MissingModelError(ProblemError):
    """No model can answer a request for n values. A model of d entries could, and can be built."""

    def __init__(self, n: int, d: int) -> None:
        said = f"A model of {d} entries is needed for {n} values, and is not there yet; repeat the request."
        super().__init__(503, said, headers={"Retry-After": "1"})
        self.d = d


class ShortageError(ProblemError):
    """The machine ran out of a resource. The request is valid and may be repeated."""

    def __init__(self) -> None:
        said = "The service ran out of memory, threads or files; repeat the request in a moment."
        super().__init__(503, said, headers={"Retry-After": "1"})


_SHORTAGES = ("bad_alloc", "allocate memory", "start new thread")  # messages of onnxruntime and the standard library
_ERRNOS = (errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC)


def or_shortage(error: Exception) -> Exception:
    """The error itself, or a 503 where the machine ran out of memory, threads, files or room on a disk."""
    short = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _ERRNOS)
    if short or any(said in str(error) for said in _SHORTAGES):
        return ShortageError()
    return error
