"""The pictures of the atlas: depth against width with the lower bounds, growth with d, error by input family.

Without matplotlib there are none, and the table says the same.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import cycle
from math import log2
from typing import Any

import numpy as np

Row = dict[str, Any]
ZERO = 1e-18  # drawn where an error is exactly 0


def plots(rows: Sequence[Row]) -> dict[str, bytes]:
    """PNG files by name."""
    built = [r for r in rows if r.get("width")]
    try:
        import matplotlib as mpl  # noqa: PLC0415 - the plots are optional

        mpl.use("Agg")
        from matplotlib import pyplot as plt  # noqa: PLC0415
    except ImportError:
        return {}
    if not built:
        return {}
    names = list(dict.fromkeys(r["construction"] for r in built))
    colours = dict(zip(names, cycle(plt.get_cmap("tab10").colors), strict=False))  # type: ignore[attr-defined]
    return {
        "depth-width.png": _depth_width(plt, built, colours),
        "size.png": _growth(plt, built, colours),
        "error.png": _errors(plt, built),
    }


def forbidden(d: int) -> list[tuple[int, float, str]]:
    """(depth, width, theorem): medians of that depth and less than that width are not accurate, or not exact."""
    found = [(2, float("inf"), "cor:depth2_lower_bounds"), (3, d * d / 20, "cor:depth3_lower_bounds")]
    for depth in range(3, int(log2(max(2.0, log2(d)))) + 1):
        found.append((depth, d ** (1 + 1 / (2 ** (depth - 2) - 1)) / 40, "theorem:exact_median"))
    return found


LEGEND = (
    "dots: networks as built, with width / d; rings: the order that their theorem claims, constant 1.\n"
    "grey: no median is accurate there: first layer below d at any depth (theorem:all_depth_lower_width_bounds), up to "
    "d²/20 at depth 3 (cor:depth3_lower_bounds), at depth 2 (cor:depth2_lower_bounds).\n"
    "hatched: none is exact: up to d^(1 + 1/(2^(k - 2) - 1))/40 at depth k <= log2 log2 d (theorem:exact_median)."
)


def _depth_width(plt: Any, rows: Sequence[Row], colours: dict[str, Any]) -> bytes:
    """A panel for a middle d and one for the largest: points are networks, shaded is what the paper rules out."""
    ds = sorted({r["d"] for r in rows})
    shown = list(dict.fromkeys([ds[(len(ds) - 1) // 2], ds[-1]]))
    figure, panels = plt.subplots(1, len(shown), figsize=(7 * len(shown), 7), squeeze=False)
    for axes, d in zip(panels[0], shown, strict=True):
        here = [r for r in rows if r["d"] == d]
        left, right = d / 8, 60 * max(r["width"] for r in here)
        top = 2.2 * max(r["depth"] for r in here)
        axes.axvspan(left, d, color="0.85", zorder=0)
        axes.text(
            d * 0.93, top / 1.15, "theorem:all_depth_lower_width_bounds\nnot accurate, first layer below d", rotation=90,
            ha="right", va="top", fontsize=8,
        )  # fmt: skip
        for depth, width, label in forbidden(d):
            exact = label == "theorem:exact_median"
            thick = 1.09 if exact else 1.2
            axes.fill_between(
                [d, min(width, right)], depth / thick, depth * thick, facecolor="none" if exact else "0.85",
                hatch="////" if exact else None, edgecolor="0.5" if exact else "0.85", linewidth=0.5, zorder=1 + exact,
            )  # fmt: skip
            # inside its bar where there is room, else above it
            place = depth * 1.3 if label == "cor:depth3_lower_bounds" else depth * 1.15 if depth > 3 else depth
            behind = {"facecolor": "w", "edgecolor": "none", "alpha": 0.8, "pad": 1} if exact and depth == 3 else None
            axes.text(d * 1.15, place, label, fontsize=8, va="center", zorder=4, color="0.15", bbox=behind)
        for r in here:
            name = r["construction"]
            axes.plot(r["width"], r["depth"], "o", color=colours[name], markersize=8, zorder=5)
            near = any(1 <= o["depth"] / r["depth"] < 1.2 and r["width"] < o["width"] < 8 * r["width"] for o in here)
            axes.annotate(
                f"{name}  {_times(r['width'] / d)}", (r["width"], r["depth"]), textcoords="offset points",
                xytext=(8, -12 if near else 3), fontsize=9, color=colours[name], zorder=6,
            )  # fmt: skip
            if r.get("claimed_exponent"):
                claimed, depth = d ** r["claimed_exponent"], r["claimed_depth"] or r["depth"]
                axes.plot(claimed, depth, "o", mfc="none", color=colours[name], markersize=8, zorder=5)
                axes.plot([claimed, r["width"]], [depth, r["depth"]], ":", color=colours[name], zorder=5)
        axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(1.6, top), xlabel="width", ylabel="depth")
        ticks = [2, 3, 5, 9, 14, 22, 46, 100]
        axes.set_yticks(ticks, [str(t) for t in ticks])
        axes.minorticks_off()
        axes.set_title(f"depth against width, d = {d}")
    figure.tight_layout(rect=(0, 0.12, 1, 1))
    figure.text(0.02, 0.015, LEGEND, fontsize=9, va="bottom")
    return _png(plt, figure)


def _growth(plt: Any, rows: Sequence[Row], colours: dict[str, Any]) -> bytes:
    """Width and size against d; dashed, the growth that a theorem claims, from the first network on."""
    figure, panels = plt.subplots(1, 2, figsize=(15, 6))
    for axes, column in zip(panels, ("width", "size"), strict=True):
        for name, colour in colours.items():
            mine = [r for r in rows if r["construction"] == name]
            d, value = np.array([r["d"] for r in mine], float), np.array([r[column] for r in mine], float)
            label = name
            if len(mine) > 1:
                label += f"  d^{np.polyfit(np.log(d), np.log(value), 1)[0]:.2f}"
            claimed = mine[0].get("claimed_exponent")
            if column == "width" and claimed:
                axes.plot(d, value[0] * (d / d[0]) ** claimed, "--", color=colour, linewidth=1)
                label += f", claimed d^{claimed:.3g}"
            axes.plot(d, value, "o-", color=colour, label=label, markersize=4)
        axes.set(xscale="log", yscale="log", xlabel="d", ylabel=f"{column}, neurons", title=f"{column} against d")
        ticks = sorted({r["d"] for r in rows})
        axes.set_xticks(ticks, [str(t) for t in ticks], rotation=30)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    return _png(plt, figure)


def _errors(plt: Any, rows: Sequence[Row]) -> bytes:
    """Mean squared error of every construction on every family, at the largest d that was run; its bound on the right."""
    run = [r for r in rows if r["families"]]
    last = {r["construction"]: r for r in sorted(run, key=lambda r: int(r["d"]))}
    families = list(next(iter(last.values()))["families"]) if last else []
    table = np.array([[r["families"][f] for f in families] + [r["mse_bound"]] for r in last.values()])
    figure, axes = plt.subplots(figsize=(12, 1.6 + 0.45 * len(last)))
    if last:
        shade = np.log10(np.maximum(table, ZERO))
        picture = axes.imshow(shade, cmap="YlOrRd", vmin=np.log10(ZERO), vmax=0, aspect="auto")
        figure.colorbar(picture, label="log10 of the mean squared error", pad=0.01)
        for (i, j), value in np.ndenumerate(table):
            dark = np.log10(max(value, ZERO)) > -4
            axes.text(
                j, i, f"{value:.0e}" if value else "0", ha="center", va="center", color="w" if dark else "k", fontsize=8
            )
        axes.axvline(len(families) - 0.5, color="k", linewidth=1)
        axes.set_xticks(range(len(families) + 1), [*families, "bound\n(uniform)"], rotation=30, ha="right")
        axes.set_yticks(range(len(last)), [f"{name}, d = {r['d']}" for name, r in last.items()])
    axes.set_title("mean squared error by input family")
    figure.tight_layout()
    return _png(plt, figure)


def _times(ratio: float) -> str:
    return f"{ratio:.3g} d" if ratio < 1000 else f"{ratio:.0f} d"


def _png(plt: Any, figure: Any) -> bytes:
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=100)
    plt.close(figure)
    return picture.getvalue()
