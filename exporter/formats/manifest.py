"""The manifest of a folder, and the writing of files. A file is replaced completely or not at all."""

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

from exporter.analysis.promise import summary
from exporter.errors import WriteError
from exporter.problem.description import Description
from exporter.version import __version__

try:
    import fcntl
except ImportError:  # Windows has no fcntl: two simultaneous exports into one folder may lose a manifest entry there
    fcntl = None  # type: ignore[assignment]

MANIFEST = "manifest.json"
FORMAT = 1


def write(proto: onnx.ModelProto, path: Path, description: Description) -> dict[str, Any]:
    """Write the file, add it to the manifest of its directory, and return the manifest's entry."""
    data = proto.SerializeToString(deterministic=True)
    entry = entry_of(path.name, data, description)
    with writable(path.parent), _locked(path.parent):
        manifest = read_manifest(path.parent)
        kept = [m for m in manifest["models"] if m["file"] != path.name]
        manifest["models"] = sorted([*kept, entry], key=lambda m: str(m["file"]))
        replace_files({path: data, path.parent / MANIFEST: (json.dumps(manifest, indent=1) + "\n").encode()})
    return entry


def write_files(files: Mapping[Path, bytes]) -> None:
    """Write the files of a layout that has no manifest. A failure leaves no empty folder behind."""
    folders = dict.fromkeys(path.parent for path in files)
    try:
        for folder in folders:
            with writable(folder):
                pass
        with writable(next(iter(files)).parent):
            replace_files(files)
    except BaseException:
        for folder in sorted(folders, key=lambda folder: -len(folder.parts)):
            with contextlib.suppress(OSError):
                folder.rmdir()  # if nothing is in the folder
        raise


def entry_of(file: str, data: bytes, description: Description) -> dict[str, Any]:
    """The manifest's entry for a file: name, checksum, size, a line for people, and the description.

    `rounding` is the result of `exporter.check` for the bytes of an .onnx file: "proven", or the place and the reason.
    """
    rounding = {}
    if file.endswith(".onnx"):
        from exporter.check import check  # noqa: PLC0415, readers of manifests need no checker

        rounding["rounding"] = str(check(data))
    return {
        "file": file,
        "sha256": hashlib.sha256(data).hexdigest(),
        "bytes": len(data),
        "summary": summary(description),
        **rounding,
        "description": description,
    }


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a directory, or an empty manifest if the directory has no manifest file."""
    path = directory / MANIFEST
    producer = f"onnx-median {__version__}"
    if not path.exists():
        return {"format": FORMAT, "producer": producer, "models": []}
    try:
        models = models_in(path.read_bytes())
    except (ValueError, KeyError, TypeError):
        raise WriteError(f"{path} is not a manifest of onnx-median: move it away, then export again") from None
    return {"format": FORMAT, "producer": producer, "models": models}


def models_in(text: bytes, **numbers: Any) -> list[Any]:
    """The entries of a manifest, unchecked. Other JSON raises ValueError, KeyError or TypeError.

    `numbers` are arguments of json.loads for reading numbers.
    """
    manifest = json.loads(text, **numbers)
    if manifest["format"] != FORMAT:
        raise ValueError(f"format {str(manifest['format'])[:40]!r} is unknown, {FORMAT} is expected")
    if not isinstance(manifest["models"], list):
        raise ValueError("the models are not a list")
    return list(manifest["models"])


def replace_file(path: Path, data: bytes) -> None:
    """Write one file completely or not at all."""
    replace_files({path: data})


def replace_files(files: Mapping[Path, bytes | Path]) -> None:
    """Write temporary files beside all targets, then rename them. A reader sees the old or the new file, never a part.

    `files` maps each target to its bytes, or to a file to copy. A target that is a device or a pipe is refused, because the
    rename would remove it.
    """
    staged: dict[str, Path] = {}
    try:
        for path, data in files.items():
            if path.exists() and not path.is_file():
                raise OSError(errno.EINVAL, f"{path.name} exists and is not a regular file")
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
    """Create the directory if needed, and turn errors of the file system into WriteError."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield
    except FileExistsError:
        raise WriteError(f"cannot write to {directory}: it is a file, not a directory") from None
    except OSError as error:
        raise WriteError(f"cannot write to {directory}: {error.strerror or error}") from None


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lock a directory, so that simultaneous exports do not lose each other's manifest entries."""
    if fcntl is None:
        yield
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
