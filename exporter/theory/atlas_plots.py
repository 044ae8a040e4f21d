"""The pictures of the atlas and of the frontier. matplotlib is optional, because the tables have the same figures."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from exporter.constructions import CONSTRUCTIONS
from exporter.theory.lower_bounds import forbidden

Row = dict[str, Any]
ZERO = 1e-18  # drawn where an error is exactly 0
ASKED = {"median": "medians", "max": "maxima"}
CURVES = {True: ("uniform inputs", "tab:red"), False: ("any input order", "tab:blue")}
GREY, HATCH = {"facecolor": "0.85"}, {"facecolor": "none", "edgecolor": "0.5", "hatch": "////", "linewidth": 0.5}
INACCURATE = (
    "no median is accurate: first layer below d at any depth (Theorem 4.9), any width at depth 2 (Corollary 4.6),\n"
    "width up to d²/20 at depth 3 (Corollary 4.8)"
)
INEXACT = "no median is exact: width up to d^(1 + 1/(2^(k-2) - 1))/40 at depth k ≤ log2 log2 d (Theorem 4.2)"


class PlottedNetwork(NamedTuple):
    """A point of a picture; `uniform`: the network works for uniform inputs only."""

    construction: str
    depth: int
    width: int
    uniform: bool


def can_plot() -> bool:
    return find_spec("matplotlib") is not None


def _pyplot() -> Any:
    import matplotlib as mpl  # noqa: PLC0415 - the plots are optional

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    return plt


def _png(plt: Any, figure: Any) -> bytes:
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=100)
    plt.close(figure)
    return picture.getvalue()


def plots(rows: Sequence[Row]) -> dict[str, bytes]:
    """PNG files by name, for the rows of the table. The field `families` of a row has the errors by family."""
    built = [r for r in rows if r.get("width")]
    if not built:
        return {}
    plt = _pyplot()
    pictures = {"depth-width.png": _depth_width(plt, built), "size.png": _growth(plt, built)}
    if run := [r for r in built if r["families"]]:
        pictures["error.png"] = _errors(plt, run)
    return pictures


def frontier_picture(d: int, failure: float, networks: Sequence[PlottedNetwork]) -> bytes:
    """Depth against the narrowest known width, with the lower bounds."""
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(10, 8.5), layout="constrained")
    _panel(axes, d, sorted({n for uniform in CURVES for n in narrowest(networks, uniform)}), bounds=True)
    axes.set_title(f"the frontier at d = {d}: medians wrong with probability {failure:g} at most")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", fontsize=9, frameon=False)
    return _png(plt, figure)


def narrowest(networks: Iterable[PlottedNetwork], uniform: bool) -> list[PlottedNetwork]:
    """Each network that is narrower than all networks of the same or a smaller depth.

    For `uniform` inputs all networks count, otherwise only those for inputs in any order.
    """
    best: list[PlottedNetwork] = []
    for network in sorted(networks, key=lambda n: (n.depth, n.width)):
        if (uniform or not network.uniform) and (not best or network.width < best[-1].width):
            best.append(network)
    return best


def exponent(rows: Sequence[Row], column: str) -> float | None:
    """The slope of the logarithm of a column over log d, for rows of at least two d."""
    if len(rows) < 2:
        return None
    return float(np.polyfit(np.log([r["d"] for r in rows]), np.log([r[column] for r in rows]), 1)[0])


def _by_question(rows: Sequence[Row]) -> dict[str, list[Row]]:
    return {op: mine for op in ASKED if (mine := [r for r in rows if r["op"] == op])}


def _depth_width(plt: Any, rows: Sequence[Row]) -> bytes:
    """Medians at a middle d and at the largest d, with the lower bounds of the paper; maxima at the largest d."""
    shown: list[tuple[str, int]] = []
    for op, mine in _by_question(rows).items():
        ds = sorted({r["d"] for r in mine})
        shown += [(op, d) for d in dict.fromkeys([ds[(len(ds) - 1) // 2], ds[-1]] if op == "median" else ds[-1:])]
    figure, panels = plt.subplots(1, len(shown), figsize=(6.5 * len(shown), 7.4), squeeze=False, layout="constrained")
    for axes, (op, d) in zip(panels[0], shown, strict=True):
        names = {r["construction"]: r for r in rows if (r["op"], r["d"]) == (op, d)}
        uniform = {name for name in names if name in CONSTRUCTIONS and CONSTRUCTIONS[name].uniform}
        networks = [PlottedNetwork(name, r["depth"], r["width"], name in uniform) for name, r in names.items()]
        _panel(axes, d, networks, bounds=op == "median")
        axes.set_title(f"{ASKED[op]}: depth against width, d = {d}")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower left", fontsize=9, frameon=False)
    return _png(plt, figure)


def _panel(axes: Any, d: int, networks: Sequence[PlottedNetwork], *, bounds: bool) -> None:
    """Draw the networks with their width / d, a curve through the narrowest ones, and the lower bounds for medians."""
    left, right = d / 8, 60 * max(n.width for n in networks)
    top = 2.2 * max(n.depth for n in networks)
    for uniform, (label, colour) in CURVES.items():
        mine, best = [n for n in networks if n.uniform == uniform], narrowest(networks, uniform)
        if mine or not uniform:
            curve = {"where": "pre", "alpha": 0.45, "zorder": 3, "label": f"the narrowest networks, {label}"}
            axes.step([n.width for n in best], [n.depth for n in best], color=colour, **curve)
        for n in mine:
            ratio = n.width / d
            text = f"{n.construction}  {ratio:.3g} d" if ratio < 1000 else f"{n.construction}  {ratio:.0f} d"
            place = {"textcoords": "offset points", "xytext": (8, 4 if n in best else 12), "fontsize": 9}
            axes.plot(n.width, n.depth, "o", color=colour, markersize=7, zorder=5)
            axes.annotate(text, (n.width, n.depth), color=colour, zorder=6, **place)
    if bounds:
        _lower_bounds(axes, d, left, right, top)
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(1.6, top), xlabel="width", ylabel="depth")
    ticks = [t for t in (2, 3, 4, 5, 6, 7, 9, 12, 15, 18, 25, 46, 100) if t < top]
    axes.set_yticks(ticks, [str(t) for t in ticks])
    axes.minorticks_off()


def _lower_bounds(axes: Any, d: int, left: float, right: float, top: float) -> None:
    """Shade the depths and widths that the paper rules out for medians."""
    axes.axvspan(left, d, zorder=0, label=INACCURATE, **GREY)
    axes.text(d * 0.93, top / 1.15, "Theorem 4.9", rotation=90, ha="right", va="top", fontsize=8)
    for depth, width, theorem, exact in forbidden(d):
        thick, style = (1.09, HATCH) if exact else (1.2, GREY)
        label = INEXACT if exact and depth == 3 else None
        ends = [d, max(d, min(width, right))]
        axes.fill_between(ends, depth / thick, depth * thick, zorder=1 + exact, label=label, **style)
        behind = {"facecolor": "w", "edgecolor": "none", "alpha": 0.8, "pad": 1} if exact else None
        place = depth * 1.3 if theorem == "Corollary 4.8" else depth  # above the bar, which Theorem 4.2 shares
        axes.text(d * 1.15, place, theorem, fontsize=8, va="center", zorder=4, color="0.15", bbox=behind)


def _growth(plt: Any, rows: Sequence[Row]) -> bytes:
    """Width and size against d, with one row of panels for medians and one for maxima."""
    asked = _by_question(rows)
    figure, panels = plt.subplots(len(asked), 2, figsize=(16, 5.5 * len(asked)), squeeze=False, layout="constrained")
    titles = {"width": "widest layer", "size": "all neurons"}
    for (op, mine), line in zip(asked.items(), panels, strict=True):
        ticks = sorted({r["d"] for r in mine})
        for axes, (column, title) in zip(line, titles.items(), strict=True):
            for name in dict.fromkeys(r["construction"] for r in mine):
                points = [r for r in mine if r["construction"] == name]
                slope = exponent(points, column)
                label = name if slope is None else f"{name}: as d^{slope:.2f}"
                axes.plot([r["d"] for r in points], [r[column] for r in points], "o-", label=label, markersize=4)
            axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
            axes.set(xscale="log", yscale="log", xlabel="d", ylabel=f"{column}, neurons")
            axes.set_title(f"{ASKED[op]}: {title} against d")
            axes.set_xticks(ticks, [str(t) for t in ticks], rotation=30)
            axes.minorticks_off()
            axes.grid(alpha=0.3)
    return _png(plt, figure)


def _errors(plt: Any, rows: Sequence[Row]) -> bytes:
    """The mean squared error of every construction on every family at the largest d that was run, and its bound."""
    tables = {
        op: {r["construction"]: r for r in sorted(mine, key=lambda r: int(r["d"]))}
        for op, mine in _by_question(rows).items()
    }
    heights = [len(table) + 0.7 for table in tables.values()]
    figure, panels = plt.subplots(
        len(tables), 1, figsize=(12, 1.8 + 0.5 * sum(heights)), squeeze=False, sharex=True, layout="constrained",
        height_ratios=heights,
    )  # fmt: skip
    families = list(dict.fromkeys(f for r in rows for f in r["families"]))
    for axes, (op, last) in zip(panels[:, 0], tables.items(), strict=True):
        table = np.array([[r["families"].get(f, np.nan) for f in families] + [r["mse_bound"]] for r in last.values()])
        shade = np.log10(np.maximum(table, ZERO))
        picture = axes.imshow(shade, cmap="YlOrRd", vmin=np.log10(ZERO), vmax=0, aspect="auto")
        for (i, j), value in np.ndenumerate(table):
            text = "" if np.isnan(value) else f"{value:.0e}" if value else "0"
            axes.text(j, i, text, ha="center", va="center", color="w" if shade[i, j] > -4 else "k", fontsize=8)
        axes.axvline(len(families) - 0.5, color="k", linewidth=1)
        axes.set_xticks(range(len(families) + 1), [*families, "bound\n(uniform)"], rotation=30, ha="right")
        axes.set_yticks(range(len(last)), [f"{name}, d = {r['d']}" for name, r in last.items()])
        axes.set_title(f"{ASKED[op]}: mean squared error by input family")
    figure.colorbar(picture, ax=panels[:, 0], label="log10 of the mean squared error", pad=0.01)
    return _png(plt, figure)
