"""The pictures of the atlas: depth against width with the lower bounds, growth with d, error by input family.

Medians and maxima have separate panels. matplotlib is optional, because the table has the same figures.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import cycle
from math import log2
from typing import Any

import numpy as np

from exporter.constructions import CONSTRUCTIONS

Row = dict[str, Any]
ZERO = 1e-18  # drawn where an error is exactly 0
ASKED = {"median": "medians", "max": "maxima"}
GREY, HATCH = {"facecolor": "0.85"}, {"facecolor": "none", "edgecolor": "0.5", "hatch": "////", "linewidth": 0.5}


CURVES = (("any input order", "tab:blue", False), ("uniform inputs", "tab:red", True))
Network = tuple[str, int, int, bool]  # construction, depth, width, uniform inputs only


def can_plot() -> bool:
    return find_spec("matplotlib") is not None


def plots(rows: Sequence[Row]) -> dict[str, bytes]:
    """PNG files by name, for the rows of the table. The field `families` of a row has the errors by family."""
    import matplotlib as mpl  # noqa: PLC0415 - the plots are optional

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    built = [r for r in rows if r.get("width")]
    if not built:
        return {}
    names = list(dict.fromkeys(r["construction"] for r in built))
    colours = dict(zip(names, cycle(plt.get_cmap("tab10").colors), strict=False))  # type: ignore[attr-defined]
    pictures = {"depth-width.png": _depth_width(plt, built, colours), "size.png": _growth(plt, built, colours)}
    if run := [r for r in built if r["families"]]:
        pictures["error.png"] = _errors(plt, run)
    return pictures


def forbidden(d: int) -> list[tuple[int, float, str, bool]]:
    """(depth, width, theorem, exact): no median of this depth below this width is exact (or, if not `exact`, accurate)."""
    found = [(2, float("inf"), "Corollary 4.6", False), (3, d * d / 20, "Corollary 4.8", False)]
    for depth in range(3, int(log2(max(2.0, log2(d)))) + 1):
        found.append((depth, d ** (1 + 1 / (2 ** (depth - 2) - 1)) / 40, "Theorem 4.2", True))
    return [bound for bound in found if bound[1] > 1.1 * d]  # below d, Theorem 4.9 is stronger than the others


def _by_question(rows: Sequence[Row]) -> dict[str, list[Row]]:
    return {op: mine for op in ASKED if (mine := [r for r in rows if r["op"] == op])}


def _depth_width(plt: Any, rows: Sequence[Row], colours: dict[str, Any]) -> bytes:
    """Medians at a middle d and at the largest d, with the lower bounds of the paper; maxima at the largest d."""
    shown: list[tuple[str, int, list[Row]]] = []
    for op, mine in _by_question(rows).items():
        ds = sorted({r["d"] for r in mine})
        picked = dict.fromkeys([ds[(len(ds) - 1) // 2], ds[-1]]) if op == "median" else [ds[-1]]
        shown += [(op, d, [r for r in mine if r["d"] == d]) for d in picked]
    figure, panels = plt.subplots(1, len(shown), figsize=(6.5 * len(shown), 7.4), squeeze=False)
    curves: dict[str, Any] = {}
    for axes, (op, d, here) in zip(panels[0], shown, strict=True):
        left, right = d / 8, 60 * max(r["width"] for r in here)
        top = 2.2 * max(r["depth"] for r in here)
        if op == "median":
            _lower_bounds(axes, d, left, right, top)
            curves |= _narrowest_known(axes, here)
        for r in here:
            _network(axes, r, here, colours[r["construction"]])
        axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(1.6, top), xlabel="width", ylabel="depth")
        ticks = [t for t in (2, 3, 5, 9, 14, 22, 46, 100) if t < top]
        axes.set_yticks(ticks, [str(t) for t in ticks])
        axes.minorticks_off()
        axes.set_title(f"{ASKED[op]}: depth against width, d = {d}")
    line = plt.Line2D
    keys = {
        "a network as built, with its width / d": line([], [], marker="o", linestyle="", color="0.3"),
        "the order that its theorem claims, constant 1": line(
            [], [], marker="o", mfc="none", linestyle=":", color="0.3"
        ),
    }
    if any(op == "median" for op, _, _ in shown):
        keys |= curves | _bound_keys(plt)
    figure.tight_layout(rect=(0, 0.2, 1, 1))
    figure.legend(keys.values(), keys.keys(), loc="lower left", bbox_to_anchor=(0.02, 0.0), fontsize=9, frameon=False)
    return _png(plt, figure)


def _narrowest_known(axes: Any, rows: Sequence[Row]) -> dict[str, Any]:
    """Draw the frontier of the networks of a panel, and return the entries of its legend."""
    networks = [
        (
            r["construction"],
            r["depth"],
            r["width"],
            r["construction"] in CONSTRUCTIONS and CONSTRUCTIONS[r["construction"]].uniform,
        )
        for r in rows
    ]
    keys = {}
    for label, colour, uniform in reversed(_curves(networks)):
        best = _staircase(networks, uniform)
        (keys[f"the narrowest of these, {label}"],) = axes.step(
            [width for _, _, width in best], [depth for _, depth, _ in best], "-", where="pre", color=colour, alpha=0.45,
            linewidth=1.5, zorder=3,
        )  # fmt: skip
    return keys


def _curves(networks: Sequence[Network]) -> list[tuple[str, str, bool]]:
    return [curve for curve in CURVES if not curve[2] or any(uniform for *_, uniform in networks)]


def _staircase(networks: Sequence[Network], uniform: bool) -> list[tuple[str, int, int]]:
    """(construction, depth, width) of each network that is narrower than all networks of the same or a smaller depth.

    For `uniform` inputs all networks count, otherwise only those for inputs in any order.
    """
    best: list[tuple[str, int, int]] = []
    for name, depth, width, only in sorted(networks, key=lambda n: (n[1], n[2])):
        if (uniform or not only) and (not best or width < best[-1][2]):
            best.append((name, depth, width))
    return best


def frontier_picture(d: int, failure: float, networks: Sequence[Network]) -> bytes:
    """A picture of depth against the narrowest known width, with the lower bounds.

    There is one curve for inputs in any order, and one for uniform inputs, for which all networks work. A network is named
    if it is narrower than all networks of the same or a smaller depth.
    """
    import matplotlib as mpl  # noqa: PLC0415 - the plots are optional

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    left, right = d / 8, 60 * max(width for _, _, width, _ in networks)
    top = 2.2 * max(depth for _, depth, _, _ in networks)
    figure, axes = plt.subplots(figsize=(10, 8.5))
    _lower_bounds(axes, d, left, right, top)
    keys, named = {}, set()
    for label, colour, uniform in reversed(_curves(networks)):
        best = _staircase(networks, uniform)
        widths, depths = [width for _, _, width in best], [depth for _, depth, _ in best]
        (keys[f"the narrowest known, {label}"],) = axes.step(
            widths, depths, "o-", where="pre", color=colour, markersize=6, zorder=5
        )
        for name, depth, width in best:
            if (depth, width) not in named:
                named.add((depth, width))
                axes.annotate(
                    f"{name}, depth {depth}  {_times(width / d)}", (width, depth), textcoords="offset points",
                    xytext=(9, 1), fontsize=9, color=colour, zorder=6,
                )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(1.6, top), xlabel="width", ylabel="depth")
    ticks = [t for t in (2, 3, 4, 5, 6, 7, 9, 12, 15, 18, 25, 46, 100) if t < top]
    axes.set_yticks(ticks, [str(t) for t in ticks])
    axes.minorticks_off()
    axes.set_title(f"the frontier at d = {d}: medians wrong with probability {failure:g} at most")
    keys |= _bound_keys(plt)
    figure.tight_layout(rect=(0, 0.14, 1, 1))
    figure.legend(keys.values(), keys.keys(), loc="lower left", bbox_to_anchor=(0.02, 0.0), fontsize=9, frameon=False)
    return _png(plt, figure)


def _bound_keys(plt: Any) -> dict[str, Any]:
    """The legend for the shades of `_lower_bounds`."""
    return {
        "no median is accurate: first layer below d at any depth (Theorem 4.9), any width at depth 2 (Corollary 4.6),\n"
        "width up to d²/20 at depth 3 (Corollary 4.8)": plt.Rectangle((0, 0), 1, 1, **GREY),
        "no median is exact: width up to d^(1 + 1/(2^(k-2) - 1))/40 at depth k ≤ log2 log2 d (Theorem 4.2)": plt.Rectangle(
            (0, 0), 1, 1, **HATCH
        ),
    }


def _lower_bounds(axes: Any, d: int, left: float, right: float, top: float) -> None:
    """Shade the depths and widths that the paper rules out for medians."""
    axes.axvspan(left, d, zorder=0, **GREY)
    axes.text(d * 0.93, top / 1.15, "Theorem 4.9", rotation=90, ha="right", va="top", fontsize=8)
    for depth, width, label, exact in forbidden(d):
        thick = 1.09 if exact else 1.2
        style = HATCH if exact else GREY
        axes.fill_between(
            [d, max(d, min(width, right))], depth / thick, depth * thick, zorder=1 + exact, **style
        )  # fmt: skip
        # write the label inside the bar if it fits, else above the bar
        place = depth * 1.3 if label == "Corollary 4.8" else depth * 1.15 if depth > 3 else depth
        behind = {"facecolor": "w", "edgecolor": "none", "alpha": 0.8, "pad": 1} if exact and depth == 3 else None
        axes.text(d * 1.15, place, label, fontsize=8, va="center", zorder=4, color="0.15", bbox=behind)


def _network(axes: Any, r: Row, others: Sequence[Row], colour: Any) -> None:
    """Draw a point for the network, and a ring for the order that its theorem claims."""
    name, d = r["construction"], r["d"]
    axes.plot(r["width"], r["depth"], "o", color=colour, markersize=8, zorder=5)
    near = any(1 <= o["depth"] / r["depth"] < 1.2 and r["width"] < o["width"] < 8 * r["width"] for o in others)
    axes.annotate(
        f"{name}  {_times(r['width'] / d)}", (r["width"], r["depth"]), textcoords="offset points",
        xytext=(8, -12 if near else 5), fontsize=9, color=colour, zorder=6,
    )  # fmt: skip
    if r.get("claimed_exponent"):
        claimed, depth = d ** r["claimed_exponent"], r["claimed_depth"] or r["depth"]
        axes.plot(claimed, depth, "o", mfc="none", color=colour, markersize=8, zorder=5)
        axes.plot([claimed, r["width"]], [depth, r["depth"]], ":", color=colour, zorder=5)


def _growth(plt: Any, rows: Sequence[Row], colours: dict[str, Any]) -> bytes:
    """Width and size against d, with one row of panels for medians and one for maxima."""
    asked = _by_question(rows)
    figure, panels = plt.subplots(len(asked), 2, figsize=(16, 5.5 * len(asked)), squeeze=False)
    for row, (op, mine) in zip(panels, asked.items(), strict=True):
        for axes, column in zip(row, ("width", "size"), strict=True):
            _growth_panel(plt, axes, column, op, mine, colours)
    figure.tight_layout()
    return _png(plt, figure)


def _growth_panel(plt: Any, axes: Any, column: str, op: str, rows: Sequence[Row], colours: dict[str, Any]) -> None:
    dashed = False
    for name in dict.fromkeys(r["construction"] for r in rows):
        mine = [r for r in rows if r["construction"] == name]
        d, value = np.array([r["d"] for r in mine], float), np.array([r[column] for r in mine], float)
        label = name
        if len(mine) > 1:
            label += f": as d^{np.polyfit(np.log(d), np.log(value), 1)[0]:.2f}"
            claimed = mine[0].get("claimed_exponent")
            if column == "width" and claimed:
                axes.plot(d, value[0] * (d / d[0]) ** claimed, "--", color=colours[name], linewidth=1)
                label += f", claimed d^{claimed:.3g}"
                dashed = True
        axes.plot(d, value, "o-", color=colours[name], label=label, markersize=4)
    handles, labels = axes.get_legend_handles_labels()
    if dashed:
        handles.append(plt.Line2D([], [], linestyle="--", color="0.3", linewidth=1))
        labels.append("dashed: the growth that\nits theorem claims")
    axes.legend(handles, labels, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    title = f"{ASKED[op]}: {'widest layer' if column == 'width' else 'all neurons'} against d"
    axes.set(xscale="log", yscale="log", xlabel="d", ylabel=f"{column}, neurons", title=title)
    ticks = sorted({r["d"] for r in rows})
    axes.set_xticks(ticks, [str(t) for t in ticks], rotation=30)
    axes.minorticks_off()
    axes.grid(alpha=0.3)


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


def _times(ratio: float) -> str:
    return f"{ratio:.3g} d" if ratio < 1000 else f"{ratio:.0f} d"


def _png(plt: Any, figure: Any) -> bytes:
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=100)
    plt.close(figure)
    return picture.getvalue()
