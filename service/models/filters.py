"""Image filters: a picture is filtered tile by tile, by a file of windows or frames.

A picture is cut into tiles, each with the neighbourhood that its windows need. So the memory depends on the tile, not on
the picture; between two tiles other requests are served and a request can be cancelled. In the tiles at the border of the
picture, the file itself supplies the pixels beyond.

    outputs   [ a .. b )
    tile      [ a - before .. b + after ), cut off at the ends of the picture; of its outputs those of [a, b) are kept

An axis is at least as long as a tile or longer than half a window, because before <= after + 1. So a reflected border reads
only pixels of the tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import isqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx

from exporter.formats.session import open_session
from exporter.frontends.images.running import windows
from exporter.problem.description import Description
from service.errors import BadInputError
from service.models.entries import PIXELS, LoadedFile, UnusableModelError, blamed, column
from service.statistics.layout import Target

Pixels = npt.NDArray[Any]
ROOM = 1 << 26  # bytes of all planes of a tile together
SHORTEST = 32  # side of a tile, at least
CHANNELS = 4  # channels that go together at least, if the file does not say
LARGEST_WINDOW = 441  # pixels, as many as the exporter writes


class FilterTerms(NamedTuple):
    """The input and the promise of an image filter. A filter of frames has a window of one pixel."""

    window: tuple[int, int]
    valid: bool
    border: str
    frames: int | None
    dtype: np.dtype[Any]
    domain: tuple[float, float] | None  # None: every finite number is compared without rounding
    step: float
    error: float
    target: Target
    operations: int


def filter_terms(about: Description) -> FilterTerms:
    """The terms of a filter that can be served, from a description that can be trusted."""
    if about["d"] > LARGEST_WINDOW:
        raise UnusableModelError(f"its window has {about['d']} pixels, and at most {LARGEST_WINDOW} are served")
    if about["batch"] not in (None, 1):
        raise UnusableModelError(f"it takes batches of {about['batch']}, and pictures come one by one")
    if about["dtype"] not in PIXELS:
        raise UnusableModelError(f"it takes {about['dtype']}, not one of {', '.join(PIXELS)}")
    if about["inputs"] == "grid":
        raise UnusableModelError("it is right on its grid only (--inputs grid), and pictures may have other values")
    (output,) = about["outputs"]
    rows, columns = about["window"] or (1, 1)
    low, high = about["domain"]
    return FilterTerms(
        window=(rows, columns), valid=about["border"] == "valid", border=about["border"] or "edge",
        frames=about["frames"], dtype=PIXELS[about["dtype"]], domain=None if about["inputs"] == "floats" else (low, high),
        step=about["step"], error=about["off_grid_error"] or 0.0, target=column(output), operations=about["operations"],
    )  # fmt: skip


class Cut(NamedTuple):
    """A tile along one axis: its input, the outputs that are kept, and their place."""

    taken: slice
    kept: slice
    place: slice


@dataclass(frozen=True, eq=False)
class LoadedFilter(LoadedFile):
    """One loaded filter with its contract."""

    terms: FilterTerms
    session: Any
    input_name: str

    @property
    def size(self) -> tuple[int, str]:
        """For choosing between filters: pixels of the window, then the name."""
        return int(self.description["d"]), self.name

    def takes(self, dtype: np.dtype[Any]) -> bool:
        """True for the filter's own type, and for uint8, which every type holds."""
        return dtype in (self.terms.dtype, np.uint8)

    def stacked(self, picture: Pixels) -> Pixels:
        """A picture as [frames, h, w, channels]; a window filter takes one frame. An error says what does not fit."""
        terms = self.terms
        if not self.takes(picture.dtype):
            raise BadInputError(f"{self.name} takes pixels of {terms.dtype.name}, not of {picture.dtype.name}.")
        axes = 2 if terms.frames is None else 3
        wanted = "[h, w] or [h, w, c]" if terms.frames is None else "[frames, h, w] or [frames, h, w, c]"
        shape = list(picture.shape)
        if len(shape) not in (axes, axes + 1) or not picture.size:
            raise BadInputError(f"{self.name} takes pictures {wanted}, not {shape}.")
        whole = picture if len(shape) > axes else picture[..., None]
        whole = whole[None] if terms.frames is None else whole
        if terms.frames is not None and len(whole) != terms.frames:
            raise BadInputError(f"{self.name} takes {terms.frames} frames, not {len(whole)}.")
        if terms.valid and not all(n >= k for n, k in zip(whole.shape[1:3], terms.window, strict=True)):
            raise BadInputError(f"{self.name} has no border: pictures must be at least {terms.window} pixels.")
        return whole

    def answer_shape(self, picture: Pixels) -> tuple[int, ...]:
        """The shape of the answer for a picture that `stacked` accepted."""
        _, h, w, c = self.stacked(picture).shape
        rows, columns = (n - k + 1 if self.terms.valid else n for n, k in zip((h, w), self.terms.window, strict=True))
        return (rows, columns, c) if picture.ndim == (3 if self.terms.frames is None else 4) else (rows, columns)

    def tiles(self, stack: Pixels) -> Iterator[tuple[Cut, Cut, Cut]]:
        """Rows, columns and channels of the tiles of a stack, as large as ROOM allows. The number of tiles depends only on
        the bytes of the picture, not on its shape."""
        terms, (n, h, w, c) = self.terms, stack.shape
        planes = terms.operations + 4 * n  # input and results; a tile is held in two types and two orders
        room = ROOM // (4 * planes)  # pixels of a tile, in all channels
        k, m = terms.window
        together = min(c, max(CHANNELS, room // ((h + k) * (w + m))))
        side = max(SHORTEST, isqrt(room // together) - max(k, m))
        high = max(side, room // (together * (min(w, side) + m)) - k)
        wide = max(side, room // (together * (min(h, high) + k)) - m)
        channels = [Cut(slice(a, a + together), slice(None), slice(a, a + together)) for a in range(0, c, together)]
        return product(_cuts(h, k, high, terms.valid), _cuts(w, m, wide, terms.valid), channels)

    def fill(self, tile: tuple[Cut, Cut, Cut], stack: Pixels, answer: Pixels) -> None:
        """Filter one tile to its place in [rows, columns, channels]."""
        rows, columns, channels = tile
        part = stack[:, rows.taken, columns.taken, channels.taken]
        self._check(part, tile)
        found = self.run(np.ascontiguousarray(np.moveaxis(part, -1, 1), self.terms.dtype))
        answer[rows.place, columns.place, channels.place] = np.moveaxis(found[0], 0, -1)[rows.kept, columns.kept]

    def run(self, images: Pixels) -> Pixels:
        """Run the file on [n, c, h, w]."""
        return np.asarray(self.session.run(None, {self.input_name: images})[0])

    def _check(self, part: Pixels, tile: tuple[Cut, Cut, Cut]) -> None:
        domain = self.terms.domain
        if part.dtype == np.uint8 and (domain is None or (domain[0] <= 0 and domain[1] >= 255)):
            return
        if domain is None:
            good, why = np.isfinite(part), "is not a finite number"
        else:
            good, why = (part >= domain[0]) & (part <= domain[1]), f"is not in [{domain[0]:g}, {domain[1]:g}]"
        if not good.all():
            _, row, column, _ = np.argwhere(~good)[0]
            at = f"row {tile[0].taken.start + row}, column {tile[1].taken.start + column}"
            raise BadInputError(f"The pixel in {at} {why}.")


def _cuts(length: int, k: int, side: int, valid: bool) -> list[Cut]:
    before, after = (0, k - 1) if valid else (k // 2, k - 1 - k // 2)
    cuts = []
    outputs = length - k + 1 if valid else length
    for a in range(0, outputs, side):
        b = min(a + side, outputs)
        start = max(0, a - before)
        cuts.append(Cut(slice(start, min(length, b + after)), slice(a - start, b - start), slice(a, b)))
    return cuts


def open_filter(file: LoadedFile, proto: onnx.ModelProto) -> LoadedFilter:
    """Open a session and try small pictures: every pixel must equal numpy's."""
    terms, name = filter_terms(file.description), proto.graph.input[0].name
    loaded = LoadedFilter(file.path, file.sha256, file.description, terms, open_session(proto), name)
    (rows, columns), least = terms.window, terms.window if terms.valid else (1, 1)
    for size in (least, (rows + 2, columns + 3)):
        with blamed("its trial run fails"):
            right = _is_right(loaded, size)
        if not right:
            raise UnusableModelError("its trial run fails: a pixel is not what numpy makes of its window")
    return loaded


def _is_right(loaded: LoadedFilter, size: Sequence[int]) -> bool:
    terms = loaded.terms
    low, high = terms.domain or (0.0, 255.0)
    step = terms.step if terms.domain else 1.0
    shape = (terms.frames or 1, 2, *size)
    steps = np.random.default_rng(0).integers(0, int(min((high - low) / step, 2.0**52)), shape, endpoint=True)
    images = (low + step * steps).astype(terms.dtype)
    framed = terms.frames is not None
    seen = np.moveaxis(images, 0, -1)[None] if framed else windows(images, terms.window, terms.border)
    ordered, target = np.sort(seen.astype(np.float64), axis=-1), terms.target
    wanted = (1 - target.weight) * ordered[..., target.low - 1] + target.weight * ordered[..., target.high - 1]
    found = loaded.run(images)
    return found.shape == wanted.shape and bool((np.abs(found - wanted) <= terms.error).all())
