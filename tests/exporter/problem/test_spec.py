"""One `Spec` says what is asked, and which of its options change the file."""

from __future__ import annotations

from fractions import Fraction

import pytest

from exporter.errors import UserError
from exporter.problem.grid import Grid
from exporter.problem.spec import Spec
from exporter.problem.task import median


def test_naming_a_default_changes_no_file() -> None:
    named = Spec(median(5), "radix", bits=24, domain=(0.0, 1.0), inputs="any", dtype="auto", seed=0)
    assert named.given() == {}
    assert Spec(median(5), "radix", bits=8, inputs="grid", seed=3).given() == {"bits": 8, "inputs": "grid", "seed": 3}


def test_the_range_of_images_has_another_default() -> None:
    """[0, 1] is the default of vectors alone, so a filter is named after it."""
    assert Spec(median(9), window=(3, 3), domain=(0.0, 1.0)).given() == {"window": (3, 3), "domain": (0.0, 1.0)}


def test_a_spec_on_another_grid() -> None:
    moved = Spec(median(5), "radix", bits=8).on(Grid(-1, 3, 10))
    assert (moved.grid, moved.bits, moved.domain) == (Grid(-1, 3, 10), 10, (-1, 3))
    with pytest.raises(UserError, match="the domain must be"):
        Spec(median(5), "radix", domain=(1.0, 0.0)).grid  # noqa: B018


def test_the_slopes_come_from_the_grid_or_the_theorem() -> None:
    assert Spec(median(5), "depth3", bits=8).delta == 2**-8
    assert Spec(median(2), "depth3", epsilon=0.5).delta == Fraction(1, 12 * 2**4 * 2)
