"""The display of a network in a notebook: a table of its figures, and a picture of its layers (extra `plot`)."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from exporter.errors import UserError, install


def table(figures: Mapping[str, object]) -> str:
    """Names and values as an HTML table."""
    rows = "".join(
        f'<tr><th style="text-align: left">{escape(name)}</th><td style="text-align: left">{escape(str(value))}</td></tr>'
        for name, value in figures.items()
    )
    return f"<table><tbody>{rows}</tbody></table>"


def layers(widths: list[int], modules: list[str], d: int, title: str) -> Any:
    """A bar chart of the neurons of every hidden layer, coloured by the part of the network."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415
        from matplotlib.patches import Patch  # noqa: PLC0415
    except ModuleNotFoundError:
        raise UserError(f"plot() needs matplotlib: {install('plot')}") from None
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots()
    parts = [name.partition(":")[0] for name in modules] if len(modules) == len(widths) else [""] * len(widths)
    colours = {part: f"C{i % 10}" for i, part in enumerate(dict.fromkeys(parts))}
    axes.bar(range(1, len(widths) + 1), widths, color=[colours[part] for part in parts])
    axes.set_xlabel("hidden layer")
    axes.set_ylabel(f"neurons (d = {d})")
    axes.set_title(title, fontsize=10)
    if 1 < len(colours) <= 12:
        axes.legend(handles=[Patch(color=colour, label=part) for part, colour in colours.items()], fontsize=7)
    return figure
