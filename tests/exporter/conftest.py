"""What holds for all tests of the exporter."""

from __future__ import annotations

import pytest

from exporter import progress


@pytest.fixture(autouse=True)
def no_progress_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes longer than `EVERY` for work that prints nothing elsewhere."""
    monkeypatch.setattr(progress, "EVERY", 3600)
