"""The output folder: what was planned, which parts are done, and that nothing in it is ever half-written.

part-00000.parquet ...   finished parts; written beside and renamed, so that a part is there as a whole or not at all
_plan.json               the options and inputs the parts belong to; another run with others is refused
_work/                   what a run that goes on would use again; removed at the end
.NAME.ID.new             what is being written
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from exporter.errors import WriteError

PLAN = "_plan.json"
FORMAT = 1


@dataclass(frozen=True)
class Journal:
    """An output folder."""

    folder: Path

    @property
    def work(self) -> Path:
        return self.folder / "_work"

    def part(self, number: int) -> Path:
        return self.folder / f"part-{number:05}.parquet"

    def begin(self, plan: dict[str, Any]) -> bool:
        """Enter the plan, or find that it is there already: then the run goes on. True where all was done before."""
        plan = json.loads(json.dumps({"format": FORMAT, **plan}))
        path = self.folder / PLAN
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            there = json.loads(path.read_text()) if path.exists() else None
        except (OSError, ValueError) as error:
            raise WriteError(f"{path} cannot be read: {error}: choose another --out, or remove the folder") from None
        if there is None:
            begun = f".{PLAN}."  # by a process that was killed then
            names = [each.name for each in self.folder.iterdir()]
            strangers = [name for name in names if name != "_work" and not name.startswith(begun)]
            if strangers:
                raise WriteError(
                    f"{self.folder} holds {strangers[0]!r}, which is of no run of this program: choose another --out"
                )
            self.enter(PLAN, {**plan, "done": False})
            return False
        done = there.pop("done", False)
        if there != plan:
            differs = [key for key in plan if plan[key] != there.get(key)]
            raise WriteError(
                f"{self.folder} belongs to a run with other {' and '.join(differs) or 'options'}"
                f"{_difference(plan, there, differs)}: choose another --out, or remove the folder to start anew"
            )
        return bool(done)

    def end(self) -> None:
        """All parts are there."""
        plan = json.loads((self.folder / PLAN).read_text())
        self.enter(PLAN, {**plan, "done": True})
        shutil.rmtree(self.work, ignore_errors=True)
        for left in self.folder.glob(".*.new"):  # by processes that were killed
            left.unlink(missing_ok=True)

    def enter(self, name: str, content: Any) -> None:
        with whole(self.folder / name) as new:
            new.write_text(json.dumps(content, indent=1))

    def entry(self, name: str) -> Any:
        """What was entered under a name, or None."""
        path = self.folder / name
        return json.loads(path.read_text()) if path.exists() else None


def _difference(plan: dict[str, Any], there: dict[str, Any], keys: list[str]) -> str:
    if keys != ["options"]:
        return ""
    new, old = plan["options"], there.get("options", {})
    named = [f"{key} {old.get(key)!r}, now {new[key]!r}" for key in new if new[key] != old.get(key)]
    return f" ({named[0]})" if named else ""


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A file that appears under its name when it is complete; until then, and on any error, nothing is there."""
    new = path.with_name(f".{path.name}.{uuid4().hex}.new")  # not by number: processes of two nodes may have the same
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield new
        with new.open("rb") as stream:
            os.fsync(stream.fileno())
        new.replace(path)
    except OSError as error:
        raise WriteError(
            f"{path} cannot be written: {str(error).splitlines()[0]}; finished parts are kept: make room and run it again"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
