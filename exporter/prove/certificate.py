"""Certificates: what was proved of which bytes, as JSON."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from exporter.errors import UserError
from exporter.formats.manifest import replace_file, writable
from exporter.prove.claim import Verdict
from exporter.prove.methods import prove

FORMAT = "onnx-median certificate 1"


def certify(path: Path, out: Path | None = None) -> Verdict:
    """Prove a file, and write the certificate to `out` if it is proved."""
    before = digest(path)
    verdict = prove(path)
    if verdict.status == "proved" and digest(path) != before:
        return Verdict("not proved", f"{path.name} was changed while it was read")
    if out and verdict.status == "proved":
        with writable(out.parent):
            replace_file(out, (json.dumps(certificate(path, before, verdict), indent=1) + "\n").encode())
    return verdict


def digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def certificate(path: Path, hashed: str, verdict: Verdict) -> dict[str, Any]:
    return {
        "format": FORMAT, "file": path.name, "sha256": hashed, "proved": verdict.text, "method": verdict.method,
        "arithmetic": verdict.arithmetic, "assumes": list(verdict.assumes),
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
    verdict = prove(path)
    if verdict.status == "proved":
        found = certificate(path, stated["sha256"], verdict)
        other = next((key for key in found if key != "file" and found[key] != stated.get(key)), None)
        if other:
            return Verdict(
                "not proved", f"the file is proved, but not what the certificate says under {other!r}: write a new one"
            )
    return verdict
