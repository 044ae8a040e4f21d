"""The output folder: part-00000.parquet and so on, each written whole or not at all.

The metadata of every part name the question and the input files. So a finished run is recognised, an interrupted run
continues, and a different question is refused. During a run, `_work` holds a lock and the state of a search. A remote file
system has no `_work`: such a run has no lock, and a search starts over.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from exporter.errors import WriteError
from service.tables.inputs import filesystem, first_line

KEY = b"onnx-median"


class Folder:
    """An output folder, local or remote, for the answers to one plan: the question and the input."""

    def __init__(self, out: str, plan: dict[str, Any]) -> None:
        self.out, self.plan = out, json.loads(json.dumps(plan))
        self.system, self.path = filesystem(out)
        self.work = Path(out) / "_work" if "://" not in out else None

    def part(self, number: int) -> str:
        return f"{self.path}/part-{number:05}.parquet"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock a local folder for one run. The lock always ends with its process."""
        with self._writing(self.out):
            self.system.create_dir(str(self.work or self.path), recursive=True)
            self._check()
        if self.work is None:
            yield
            return
        with (self.work / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                remedy = "wait for its end, or choose another --out"
                raise WriteError(f"{self.out}: another run writes to this folder: {remedy}") from None
            yield
            shutil.rmtree(self.work, ignore_errors=True)

    def _check(self) -> None:
        """Refuse a folder with anything other than parts of this plan."""
        for info in self.system.get_file_info(pa.fs.FileSelector(self.path, allow_not_found=True)):
            name = info.base_name
            if name == "_work" or name.startswith(".part-"):
                continue
            if not (name.startswith("part-") and name.endswith(".parquet")):
                raise WriteError(f"{self.out} holds {name!r}, which no run of this program wrote: choose another --out")
            there = json.loads((pq.read_schema(info.path, filesystem=self.system).metadata or {}).get(KEY, b"{}"))
            for key, new in self.plan.items():
                if (old := there.get(key)) != new:
                    differ = [k for k in new if old[k] != new[k]] if isinstance(old, dict) else []
                    how = f" ({differ[0]} = {old[differ[0]]!r}, now {new[differ[0]]!r})" if differ else ""
                    remedy = "choose another --out, or remove the folder"
                    raise WriteError(f"{self.out} has the answers to another {key}{how}: {remedy}")

    def done(self, number: int) -> bool:
        """True if an earlier run wrote this part."""
        return bool(self.system.get_file_info(self.part(number)).type == pa.fs.FileType.File)

    def write(self, number: int, table: pa.Table) -> int:
        """Write a whole part and return its number of rows."""
        table = table.replace_schema_metadata({KEY: json.dumps(self.plan).encode()})
        with self._writing(self.part(number)):
            if self.work is None:  # a remote file appears when it is closed
                pq.write_table(table, self.part(number), filesystem=self.system, use_dictionary=False)
                return int(table.num_rows)
            new = Path(self.path) / f".part-{number:05}.new"
            try:
                pq.write_table(table, new, use_dictionary=False)  # thousands of columns take 80 MB less
                with new.open("rb") as stream:
                    os.fsync(stream.fileno())
                new.replace(self.part(number))
            finally:
                new.unlink(missing_ok=True)
        return int(table.num_rows)

    @contextlib.contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException, NotImplementedError) as error:
            remedy = "finished parts are kept: make room or choose another --out"
            raise WriteError(f"{what} cannot be written: {first_line(error)}; {remedy}") from None

    def load(self, column: str) -> Any:
        """The state of the search of a column, from an earlier run or pass, or None."""
        state = self._state(column)
        there = json.loads(state.read_text()) if state and state.exists() else {}
        return there["search"] if there.get("plan") == self.plan else None

    def save(self, column: str, search: dict[str, Any]) -> None:
        if state := self._state(column):
            new = state.with_suffix(".new")
            new.write_text(json.dumps({"plan": self.plan, "search": search}))
            new.replace(state)

    def _state(self, column: str) -> Path | None:
        return self.work / f"{quote(column, '')}.json" if self.work else None
