"""Certificates: what was proved of which bytes, as JSON, and the work that an interrupted proof has done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any

from exporter.errors import UserError
from exporter.formats.manifest import replace_file, writable
from exporter.progress import Progress
from exporter.prove.methods import Verdict, digest, prove

FORMAT = "onnx-median certificate 1"
EVERY = 2.0  # seconds between two notes of what is done


def certify(path: Path, out: Path | None = None) -> Verdict:
    """Prove a file, and write the certificate to `out` if it is proved. OUT.part notes the work of an interrupted proof."""
    state = out.with_name(out.name + ".part") if out else None
    work = _Resumable(path, state)
    verdict = prove(path, work.parts)
    if verdict.status == "proved" and digest(path) != work.file:
        return Verdict("not proved", f"{path.name} was changed while it was read")
    if out and verdict.status == "proved":
        with writable(out.parent):
            replace_file(out, (json.dumps(certificate(path, verdict), indent=1) + "\n").encode())
    if state:
        state.unlink(missing_ok=True)
    return verdict


def certificate(path: Path, verdict: Verdict) -> dict[str, Any]:
    about = asdict(verdict)
    return {
        "format": FORMAT, "file": path.name, "sha256": digest(path), "proved": about["text"], "method": about["method"],
        "arithmetic": about["arithmetic"], "assumes": list(about["assumes"]),
    }  # fmt: skip


def check(cert: Path, path: Path | None = None) -> Verdict:
    """Prove the file of a certificate again, the one beside the certificate unless `path` is given."""
    try:
        stated = json.loads(cert.read_text())
        path = path or cert.parent / str(stated["file"])
        if stated["format"] != FORMAT or not isinstance(stated["sha256"], str):
            raise ValueError("not of this format")
    except (OSError, ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise UserError(f"{cert} is no certificate ({error}): `prove FILE --out {cert}` writes one") from None
    if not path.is_file():
        raise UserError(f"{path} does not exist: name the file of the certificate, as in prove FILE --check {cert}")
    if digest(path) != stated["sha256"]:
        return Verdict("not proved", f"{path.name} is not the file of the certificate: its sha256 is another one")
    verdict = prove(path, _Resumable(path, None).parts)
    if verdict.status == "proved":
        found = certificate(path, verdict)
        other = next((key for key in found if key != "file" and found[key] != stated.get(key)), None)
        if other:
            return Verdict(
                "not proved", f"the file is proved, but not what the certificate says under {other!r}: write a new one"
            )
    return verdict


class _Resumable:
    """Parts of the work, with progress; those that a note says are done are left out."""

    def __init__(self, path: Path, state: Path | None) -> None:
        self._state, self.file = state, digest(path) if path.is_file() else ""

    def parts(self, method: str, n: int) -> Iterator[int]:
        todo = range(min(self._done(method, n), n), n)
        noted = monotonic()
        for part in Progress(todo, f"proving ({method})", "part"):
            if self._state and monotonic() - noted > EVERY:
                noted = monotonic()
                note = {"sha256": self.file, "method": method, "parts": n, "done": part}
                with writable(self._state.parent):
                    replace_file(self._state, json.dumps(note).encode())
            yield part

    def _done(self, method: str, n: int) -> int:
        if not self._state:
            return 0
        try:
            note = json.loads(self._state.read_text())
            same = (note["sha256"], note["method"], note["parts"]) == (self.file, method, n)
            return int(note["done"]) if same and 0 <= note["done"] < n else 0
        except (OSError, ValueError, KeyError, TypeError):
            return 0
