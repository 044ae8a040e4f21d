"""What is known of one tensor: the real numbers that it stands for, and how far the computed floats are from them.

`lo`, `hi` and `q` bound the real numbers, entry by entry or for all entries at once; along an axis that
lists k numbers of vector after vector they are those of one vector. The floats equal them within the
window [first, last]; beyond an end of the window both lie beyond it. Everywhere they differ by `slack` at most. A slack of
0 means that nothing has rounded; `where` names the node that rounded first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import numpy as np

from exporter.check.forms import AffineForm, Lemmas
from exporter.check.numbers import (
    ANY,
    CELLS,
    FORMATS,
    ZERO,
    Array,
    compressed,
    half_ulp,
    power,
    quantum,
    snapped,
)

BATCH = 1_000_003  # a prime: the size of an axis that holds vectors of a batch is a multiple of it
Shape = tuple[int, ...]
Cells = tuple[int, list[AffineForm]]
NOWHERE = np.asarray(np.inf), np.asarray(-np.inf)  # the window of what rounds everywhere


class NotProven(Exception):
    """A node, and why it may round."""

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(f"{node}: {reason}")
        self.node, self.reason = node, reason


@dataclass(frozen=True, eq=False, kw_only=True)
class Guarding:
    """The first layers, which round data to the grid and clamp it, up to a tensor of theirs.

    For data within the domain the floats are scale x + shift up to `moved`, and they never fall where scale x rises.
    `once`: `moved` is the error of one rounding.
    """

    scale: Array
    shift: Array
    moved: float
    once: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Tensor:
    shape: Shape | None  # None: an image
    dtype: str
    lo: Array
    hi: Array
    q: Array
    form: AffineForm
    cells: Cells | None = None  # an axis, and a form for each place on it
    first: Array = field(default_factory=lambda: np.asarray(-np.inf))
    last: Array = field(default_factory=lambda: np.asarray(np.inf))
    slack: float = 0.0
    where: tuple[str, str] | None = None
    guard: Guarding | None = None
    const: Array | None = None
    name: str = ""

    @property
    def exact(self) -> bool:
        """Whether the floats are the real numbers."""
        return self.slack == 0 or (
            self.windowed and bool((self.lo >= self.first).all() and (self.hi <= self.last).all())
        )

    @property
    def windowed(self) -> bool:
        return bool((self.first <= self.last).all())

    @property
    def magnitude(self) -> float:
        return float(max(np.abs(self.lo).max(initial=0), np.abs(self.hi).max(initial=0)))


@dataclass
class Context:
    """The file at hand: its atoms, its domain, and the furthest that the guard moves an entry."""

    forms: Lemmas
    low: float
    high: float
    step: int  # its exponent
    _: KW_ONLY
    frames: bool = False  # whether the pixels of a place lie on the first axis of images
    moved: float = 0.0
    settled: bool = False  # whether data has been rounded and clamped
    entry_first: dict[int, bool] = field(default_factory=dict)  # see views.reshape

    def tensor(
        self,
        node: str,
        shape: Shape | None,
        dtype: str,
        bounds: Sequence[Array],
        form: AffineForm | None = None,
        **more: Any,
    ) -> Tensor:
        """A tensor with the best bounds that intervals and its form give; the numbers must be normal floats.

        `bounds` are lo, hi and q.
        """
        lo, hi, q = bounds
        if form is not None:
            for found in (self.forms.bounds(form), self.forms.by_corners(form)):
                lo, hi = np.asarray(np.maximum(lo, found[0])), np.asarray(np.minimum(hi, found[1]))
        lo, hi = snapped(lo, hi, q)
        lo, hi, q = (
            compressed(*np.broadcast_arrays(lo, hi, q)) if lo.size > 1 or hi.size > 1 or q.size > 1 else (lo, hi, q)
        )
        if lo.size > CELLS:
            lo, hi, q = (np.asarray(v).reshape((1,) * lo.ndim) for v in (lo.min(), hi.max(), q.min()))
        if dtype in FORMATS:
            _, smallest, largest = FORMATS[dtype]
            if max(np.abs(lo).max(initial=0), np.abs(hi).max(initial=0)) >= 2.0**largest:
                raise NotProven(node, f"numbers may reach the largest {dtype}")
            if q.min(initial=ZERO) < smallest:
                raise NotProven(node, f"numbers may be too small for a normal {dtype}")
        if form is None:
            form = self.forms.leaf(lo, hi)
        self.forms.note(form, lo, hi)
        return Tensor(shape=shape, dtype=dtype, lo=lo, hi=hi, q=q, form=form, **more)

    def constant(self, values: Array) -> Tensor:
        """A tensor whose numbers are stored in the file, or follow from such numbers alone."""
        (kept,) = compressed(values) if values.size else (values,)
        if kept.size > CELLS:
            least = min(int(quantum(row).min()) for row in kept.reshape(-1, kept.shape[-1]))
            lo, hi, q = (np.full((1,) * kept.ndim, v) for v in (float(kept.min()), float(kept.max()), least))
        else:
            lo = hi = kept.astype(np.float64)
            q = quantum(lo)
        form = (
            AffineForm(float(lo.reshape(-1)[0]), {})
            if lo.size == 1 and lo.max() == hi.max()
            else self.forms.leaf(lo, hi)
        )
        return Tensor(shape=values.shape, dtype=str(values.dtype), lo=lo, hi=hi, q=q, form=form, const=values)

    def rounded(
        self,
        node: str,
        made: Tensor,
        partial: Array,
        terms: int,
        slack: float,
        window: tuple[Array, Array] | None,
        *,
        products: bool = False,
    ) -> Tensor:
        """The result of one operation: exact, exact within a window, or off by its slack.

        `partial` bounds every partial sum, `terms` counts what is added up, `slack` is what the operands bring along,
        `window` is where the result would be exact for operands that are not, and `products` says that what is added up may
        have rounded before.
        """
        m, _, largest = FORMATS[made.dtype]
        if float(partial.max(initial=0)) + slack >= 2.0**largest:
            raise NotProven(*(made.where or (node, f"sums may reach the largest {made.dtype}")))
        limit = power(m + made.q)
        unbroken = bool((partial + slack <= limit).all())  # operands that are off may reach further
        first, last = window or (np.asarray(-np.inf), np.asarray(np.inf))
        if unbroken and slack == 0:
            return made
        size, few = float(partial.max(initial=0)), terms <= 2 and not products
        more = 0.0
        if not unbroken:
            each = terms * half_ulp(size, m) if products else 0.0
            more = each + half_ulp(made.magnitude + slack + each if terms <= 2 else 2 * size, m) * max(terms - 1, 1)
        where = made.where
        if not unbroken:
            bits = int(np.ceil(np.log2(np.max(partial / power(made.q)))))
            sum_of = f"{terms} numbers add up to {size:.6g} in steps of 2^{int(made.q.min())}"
            where = where or (node, f"{sum_of}: {bits} bits, and {made.dtype} has {m}")
            if not few:
                first, last = NOWHERE
        first, last = np.maximum(first, -limit), np.minimum(last, limit)
        return replace(made, slack=(slack + more) * (1 + 2.0**-40), first=first, last=last, where=where)


def carried(made: Tensor, *parts: Tensor) -> Tensor:
    """A tensor of numbers of the parts, which may be off as far as these are."""
    slack = max(0.0 if p.exact else p.slack for p in parts)
    if not slack:
        return made
    first, last = max(float(p.first.max()) for p in parts), min(float(p.last.min()) for p in parts)
    return replace(made, slack=slack, first=np.asarray(first), last=np.asarray(last))


def on_cells(t: Tensor, change: Callable[[AffineForm], AffineForm | None]) -> Cells | None:
    """The cells of a tensor with every form changed."""
    if not t.cells:
        return None
    forms = [found for form in t.cells[1] if (found := change(form)) is not None]
    return (t.cells[0], forms) if len(forms) == len(t.cells[1]) else None


def anything(shape: Shape | None, dtype: str) -> dict[str, Any]:
    """The bounds of arbitrary finite floats."""
    largest = float(np.finfo(dtype).max)
    return {"shape": shape, "dtype": dtype, "lo": np.asarray(-largest), "hi": np.asarray(largest), "q": np.asarray(ANY)}
