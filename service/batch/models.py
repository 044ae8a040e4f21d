"""Networks for the lengths that occur: built where none is there yet, loaded once a process.

A model of d entries serves every shorter vector, padded below and above (service/layout.py): its columns are the ranks r and
r + 1 with r the statistic's rank among d. Rows of one length get a model of that very length, all others one of a ladder of
even d, at most a half longer than they are.

A vector is shown to a model as integers of few bits in its own order, so that few digits suffice; what falls together
there is told apart afterwards (service/batch/solve.py).
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from exporter.errors import UserError
from service.compute import registry
from service.compute.registry import LoadedModel

LADDER = [4, 6, *(k << j for j in range(1, 22) for k in (4, 6))]
SHORT = 64
LARGEST = 2048


@dataclass(frozen=True)
class Shape:
    """A model that may be needed: its length and its ranks."""

    d: int
    ranks: tuple[int, ...]

    @property
    def bits(self) -> int:
        return 12 if self.d <= SHORT else 16


def rung(n: int) -> int:
    """The length of the ladder for vectors of n entries."""
    return next(d for d in LADDER if d >= n)


@cache
def loaded(folder: Path, shape: Shape) -> LoadedModel:
    """The model of a shape, from a folder that several processes may fill at once."""
    home = folder / f"d{shape.d}-ranks{'-'.join(map(str, shape.ranks))}"
    if not home.is_dir():
        _build(home, shape)
    found = registry.load([home])
    if len(found.models) != 1:
        reason = next(iter(found.left_out.values()), "there is no model in it")
        raise UserError(f"{home} cannot be used: {reason}; remove it, and it is built again")
    return next(iter(found.models.values()))


def _build(home: Path, shape: Shape) -> None:
    from exporter.library import export_model  # noqa: PLC0415, the builder is loaded only when it is needed

    home.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=home.parent, prefix=".new-"))
    try:
        export_model(
            shape.d, out=made, rank=shape.ranks, bits=shape.bits, inputs="grid", profile="fused", dtype="float32"
        )
        made.rename(home)
    except OSError:
        if not home.is_dir():  # else another process was first, with the same bytes
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
