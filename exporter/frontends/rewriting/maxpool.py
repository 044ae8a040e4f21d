"""MaxPool as Conv, Relu and Add, for verifiers: max(a, b) = b + relu(a - b), axis by axis.

    first      = Conv(x, [1 0 0])                        the first tap of every window
    difference = Conv(x, [-1 1 0])
    two        = Add(first, Relu(difference))            the maximum of two taps
    three      = Add(two, Relu(Add(Conv(x, [0 0 1]), Conv(two, [-1]))))

A dilation is zeros in the kernels, because some verifiers ignore the attribute. A MaxPool pads with minus infinity, a Conv
with zeros, which is the same after a Relu. Elsewhere the image is first continued by numbers of the same windows.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from exporter.ir.graph import Graph

CHANNELS = 64  # beyond these the Convs are depthwise (group), which some verifiers do not know
ROUNDING = 2.0**-22  # of the largest number in a window, for each maximum: two operations in float32


@dataclass(frozen=True)
class Taps:
    """The windows of `size` taps along one axis of `length` entries."""

    axis: int
    length: int
    size: int
    stride: int
    dilation: int
    before: int  # entries of padding
    _: KW_ONLY
    count: int  # of windows

    @property
    def after(self) -> int:
        """Entries of padding at the end; less than 0 where the last entries are in no window."""
        return (self.count - 1) * self.stride + self.span - self.before - self.length

    @property
    def span(self) -> int:
        return (self.size - 1) * self.dilation + 1

    @property
    def empty(self) -> bool:
        """Whether a window has no tap inside the image."""
        starts = np.arange(self.count)[:, None] * self.stride - self.before
        taps = starts + np.arange(self.size) * self.dilation
        return bool(((taps < 0) | (taps >= self.length)).all(axis=1).any())

    def continued(self) -> list[int]:
        """For each place of the padded axis an entry that is in every window of that place, at the same distance of taps."""
        d, n = self.dilation, self.length
        inside = [at % d if at < 0 else at for at in range(-self.before, n + max(self.after, 0))]
        return [at - d * -(-(at - n + 1) // d) if at >= n else at for at in inside]


def pooled(graph: Graph, x: str, channels: int, rank: int, windows: tuple[Taps, ...], *, positive: bool) -> str:
    """The tensor of maxima. `positive`: no entry of x is below 0."""
    for window in windows:
        if window.size > 1 or window.stride > 1 or window.before or window.after > 0:
            x = _along(graph, x, channels, rank, window, positive=positive)
    return x


def _along(graph: Graph, x: str, channels: int, rank: int, window: Taps, *, positive: bool) -> str:
    before, after = (window.before, max(window.after, 0)) if positive else (0, 0)
    if not positive and (window.before or window.after > 0):
        x = graph.add("Gather", [x, graph.constant(window.continued(), np.int64)], axis=window.axis)
    at = window.axis - 2

    def conv(source: str, kernel: Any, stride: int = 1, pads: tuple[int, int] = (0, 0)) -> str:
        """Each channel by itself with a kernel along the axis."""
        spatial = rank - 2
        shape = [len(kernel) if i == at else 1 for i in range(spatial)]
        dense = channels <= CHANNELS
        weights = np.multiply.outer(np.eye(channels) if dense else np.ones((channels, 1)), np.reshape(kernel, shape))
        ends = [[pad if i == at else 0 for i in range(spatial)] for pad in pads]
        return graph.add(
            "Conv", [source, graph.constant(weights)], kernel_shape=shape, group=1 if dense else channels,
            strides=[stride if i == at else 1 for i in range(spatial)], pads=[*ends[0], *ends[1]],
        )  # fmt: skip

    def taps(weights: dict[int, float]) -> str:
        kernel = np.zeros(window.span)
        kernel[[tap * window.dilation for tap in weights]] = list(weights.values())
        return conv(x, kernel, window.stride, (before, after))

    most = taps({0: 1})
    for tap in range(1, window.size):
        off = taps({0: -1, 1: 1}) if tap == 1 else graph.add("Add", [taps({tap: 1}), conv(most, [-1.0])])
        most = graph.add("Add", [most, graph.add("Relu", [off])])
    return most
