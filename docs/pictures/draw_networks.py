"""Diagrams of the networks of docs/frontier.md, from their planners: a bar for every hidden layer, as wide as the layer.

python docs/pictures/draw_networks.py        writes docs/pictures/network-*.svg
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import cast

from exporter.constructions import CONSTRUCTIONS
from exporter.constructions.scheduled import Planned
from exporter.planning.goal import Goal
from exporter.theory.theorem import planned

HERE = Path(__file__).parent
DRAWN = {  # name: d, failure
    "window4": (2048, 0.1),
    "window5": (2048, 1e-3),
    "window6": (2048, 1e-3),
    "linear18": (2048, 1e-3),
    "vote-max": (2048, 0.13),
}
ASYMPTOTIC = {"theorem-5": (6, 10**13), "theorem-6": (10, 10**200)}  # name: depth, d
ROW, LEFT, BAR, TOP = 26, 320, 250, 64
STYLE = 'font-family="sans-serif" font-size="13"'


def pictures() -> dict[str, str]:
    """Every SVG file by its name."""
    out = {}
    for name, (d, failure) in DRAWN.items():
        rank = d if name == "vote-max" else d // 2
        build = cast(Planned, CONSTRUCTIONS[name].build)
        plan = build.schedule(Goal(d=d, low=rank, high=rank, failure=failure))
        what = "the maximum" if name == "vote-max" else "one rank"
        layers = [(layer.name or "", layer.width) for layer in build.built(plan).layers]
        out[f"network-{name}.svg"] = drawn(f"{name}: {what} of d = {d}, failure {failure:g}", layers, d)
    for name, (depth, d) in ASYMPTOTIC.items():
        title = f"{name.replace('-', ' ').capitalize()}: one rank of d = 1e{len(str(d)) - 1}, failure 0.001"
        out[f"network-{name}.svg"] = drawn(title, list(planned(depth, d)[0].layers.items()), d)
    return out


def drawn(title: str, layers: Sequence[tuple[str, int]], d: int) -> str:
    """Input, a bar for every hidden layer with its work and its neurons over d, and the answer."""
    shares = [width * 1000 // d / 1000 for _, width in layers]
    rows = [(f"{i}  {name}", share) for i, ((name, _), share) in enumerate(zip(layers, shares, strict=True), 1)]
    height = TOP + ROW * (len(rows) + 1) + 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="680" height="{height}" {STYLE}>',
        f'<rect width="680" height="{height}" fill="white"/>',
        f'<text x="12" y="22" font-weight="bold">{escape(title)}</text>',
        f'<text x="12" y="{TOP - 18}">d numbers</text>',
    ]
    for row, (module, share) in enumerate(rows):
        y, long = TOP + ROW * row, max(1, round(BAR * share / max(shares)))
        lines += [
            f'<text x="12" y="{y + 14}">{escape(module)}</text>',
            f'<rect x="{LEFT}" y="{y}" width="{long}" height="18" fill="#4878a8"/>',
            f'<text x="{LEFT + long + 8}" y="{y + 14}">{share:.3g} d</text>',
        ]
    lines += [f'<text x="12" y="{TOP + ROW * len(rows) + 14}">answer; depth {len(layers) + 1}</text>', "</svg>", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    for name, picture in pictures().items():
        (HERE / name).write_text(picture, encoding="utf-8")
