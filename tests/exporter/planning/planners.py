"""The planner of a construction, by its name."""

from __future__ import annotations

from exporter.constructions import lookup
from exporter.constructions.scheduled import Planned


def planner(construction: str) -> Planned:
    build = lookup(construction).build
    assert isinstance(build, Planned), f"{construction} needs no schedule"
    return build
