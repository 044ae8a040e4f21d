"""The lemmas on affine forms: bounds hold for every value of the leaves."""

from __future__ import annotations

import numpy as np
import pytest

from exporter.check.forms import AffineForm, Lemmas


def value(lemmas: Lemmas, form: AffineForm, leaves: dict[int, float]) -> float:
    """The form where the leaves have these values; all numbers here are small multiples of 1/8, so nothing rounds."""
    total = form.const
    for a, c in form.terms.items():
        atom = lemmas.atoms[a]
        if atom.inner is None:
            total += c * leaves[a]
        else:
            inner = max(value(lemmas, atom.inner, leaves), 0.0)
            total += c * (min(inner, atom.height) if atom.kind == "clip" else inner)
    return total


@pytest.mark.parametrize("seed", range(120))
def test_bounds_hold_for_random_forms(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lemmas = Lemmas(10_000)
    ends = {i: sorted(rng.integers(-4, 5, 2) / 2) for i in range(int(rng.integers(1, 4)))}
    forms = [lemmas.leaf(float(lo), float(hi)) for lo, hi in ends.values()]
    for _ in range(14):
        few = rng.choice(len(forms), min(len(forms), int(rng.integers(1, 4))), replace=False)
        parts = [(float(rng.choice([-2.0, -1.0, -0.5, 1.0, 1.0, 3.0])), forms[i]) for i in few]
        made = lemmas.combined(parts, float(rng.integers(-3, 4) / 2))
        cut = [made, lemmas.relu(made), lemmas.clip(made, 0.0, 0.5), lemmas.clip(made, -0.5, 1.0)] if made else []
        forms += [found for found in cut if found][:: int(rng.integers(1, 3))]
    points = [{i: float(rng.integers(2 * lo, 2 * hi + 1)) / 2 for i, (lo, hi) in ends.items()} for _ in range(60)]
    for form in forms:
        values = [value(lemmas, form, point) for point in points]
        for lo, hi in (lemmas.bounds(form, 0), lemmas.bounds(form, 9), lemmas.by_corners(form)):
            assert lo <= min(values)
            assert max(values) <= hi


def test_a_gap_that_ends_at_one() -> None:
    """a + relu(g) - relu(g - (1 - a)) is at most max(a, 1), which neither intervals nor maxima show."""
    lemmas = Lemmas(1000)
    a, g = lemmas.leaf(0.0, 1.0), lemmas.leaf(-1.0, 1.0)
    over = lemmas.combined([(1.0, g), (1.0, a)], -1.0)
    assert over
    whole = lemmas.combined([(1.0, a), (1.0, lemmas.relu(g)), (-1.0, lemmas.relu(over))])
    assert whole
    assert lemmas.bounds(whole) == (0.0, 1.0)


def test_an_entry_before_a_threshold_is_not_beyond_it() -> None:
    """relu(w - 1/4) + 8 relu(1/8 - relu(w - 1/8)) is at most 1 on [0, 1]: at w = 1/8."""
    lemmas = Lemmas(1000)
    w = AffineForm(0.0, lemmas.leaf(0.0, 1.0).terms)
    shifted = [lemmas.combined([(1.0, w)], -end) for end in (0.25, 0.125)]
    ramp, inner = (lemmas.relu(form) for form in shifted if form)
    turned = lemmas.combined([(-1.0, inner)], 0.125)
    assert turned
    both = lemmas.combined([(1.0, ramp), (8.0, lemmas.relu(turned))])
    assert both
    assert lemmas.by_corners(both) == (0.0, 1.0)
