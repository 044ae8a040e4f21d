"""Telling cases in the fast tier, all others in the slow tier (see tests/conftest.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet


def telling(
    cases: Iterable[Any], fast: Callable[[Any], bool] | Iterable[Any], ids: Callable[[Any], str] | None = None
) -> list[ParameterSet]:
    """The cases as parameters of a test. Those that `fast` names or accepts run in `make test`, the rest in `make slow`."""
    cases = list(cases)
    named = list(filter(fast, cases)) if callable(fast) else list(fast)
    assert all(case in cases for case in named), "a telling case is not among the cases"
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if case in named else pytest.mark.slow,
            id=ids(case) if ids else None,
        )
        for case in cases
    ]
