"""Networks in a notebook: a table and a picture."""

from __future__ import annotations

import exporter


def test_a_table_for_notebooks() -> None:
    html = exporter.median(9)._repr_html_()
    for words in ("median of 9 numbers", "batcher", "<th", "Max"):
        assert words in html


def test_a_picture_has_a_bar_for_every_layer() -> None:
    net = exporter.median(64, construction="linear46", bits=12, failure=0.3)
    figure = net.plot()
    (axes,) = figure.axes
    assert [bar.get_height() for bar in axes.patches] == net.description["widths"]
    assert axes.get_legend() is not None
