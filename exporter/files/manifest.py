"""The manifest beside the files, and how files are written: replaced whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx

from exporter.errors import WriteError
from exporter.version import __version__

try:
    import fcntl
except ImportError:  # not on Windows: there two exports into one folder at the same time may lose a manifest entry
    fcntl = None  # type: ignore[assignment]

MANIFEST = "manifest.json"
FORMAT = 1


def write(proto: onnx.ModelProto, path: Path, description: dict[str, Any]) -> dict[str, Any]:
    """Write the file and enter it into the manifest of its directory; returns the manifest's entry."""
    data = proto.SerializeToString(deterministic=True)
    entry = entry_of(path.name, data, description)
    with writable(path.parent), _locked(path.parent):
        manifest = read_manifest(path.parent)
        kept = [m for m in manifest["models"] if m["file"] != path.name]
        manifest["models"] = sorted([*kept, entry], key=lambda m: str(m["file"]))
        replace_files({path: data, path.parent / MANIFEST: (json.dumps(manifest, indent=1) + "\n").encode()})
    return entry


def entry_of(file: str, data: bytes, description: dict[str, Any]) -> dict[str, Any]:
    """What is said of a file: its name, which bytes it has, and its description."""
    return {
        "file": file,
        "sha256": hashlib.sha256(data).hexdigest(),
        "bytes": len(data),
        "description": description,
    }


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a directory; a new one when there is none."""
    path = directory / MANIFEST
    producer = f"onnx-median {__version__}"
    if not path.exists():
        return {"format": FORMAT, "producer": producer, "models": []}
    try:
        models = models_in(path.read_bytes())
    except (ValueError, KeyError, TypeError):
        raise WriteError(f"{path} is not a manifest of ours: move it away, then export again") from None
    return {"format": FORMAT, "producer": producer, "models": models}


def models_in(text: bytes, **numbers: Any) -> list[Any]:
    """The entries of a manifest as they stand there; ValueError, KeyError or TypeError where it is none of ours.

    `numbers` tells json.loads how to read them.
    """
    manifest = json.loads(text, **numbers)
    if manifest["format"] != FORMAT:
        raise ValueError(f"format {str(manifest['format'])[:40]!r} is unknown, {FORMAT} is expected")
    if not isinstance(manifest["models"], list):
        raise ValueError("its models are not a list")
    return list(manifest["models"])


def replace_file(path: Path, data: bytes) -> None:
    """Write one file whole or not at all."""
    replace_files({path: data})


def replace_files(files: Mapping[Path, bytes | Path]) -> None:
    """Write temporary files beside all targets, then rename them over: readers see an old file or a new one, whole.

    What is to be written is bytes, or the file to copy. A device or a pipe would be gone after a rename, and is refused.
    """
    staged: dict[str, Path] = {}
    try:
        for path, data in files.items():
            if path.exists() and not path.is_file():
                raise OSError(errno.EINVAL, f"{path.name} is there and is no file")
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            staged[temporary] = path
            with os.fdopen(handle, "wb") as file:
                if isinstance(data, Path):
                    with data.open("rb") as source:
                        shutil.copyfileobj(source, file, 1 << 20)
                else:
                    file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
        for temporary, path in staged.items():
            os.replace(temporary, path)
    except BaseException:
        for temporary in staged:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        raise


@contextlib.contextmanager
def writable(directory: Path) -> Iterator[None]:
    """Make the directory if need be, and turn what the file system says into a message."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield
    except FileExistsError:
        raise WriteError(f"cannot write to {directory}: it is a file, not a directory") from None
    except OSError as error:
        raise WriteError(f"cannot write to {directory}: {error.strerror or error}") from None


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """One writer at a time, so that two exports at once do not lose each other's manifest entry."""
    if fcntl is None:
        yield
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
