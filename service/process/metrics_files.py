"""The files through which prometheus_client adds up the figures of several workers, made safe.

The library maps files into memory. Writing to such a file kills the process (SIGBUS) when the disk is full, for room is
only looked for then. So a worker reserves the room of its files before the library opens them; where there is none it
counts for itself alone, and goes on serving. And a worker that is gone left its files behind: what it had counted stays
counted, but nothing waits in its queue any more. A lock on a file, which ends with its process, tells who is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import struct
from pathlib import Path

log = logging.getLogger("service")
VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
# by the library's names; a histogram of ours takes about 3 KiB for each model
SIZES = {"counter": 1 << 18, "histogram": 1 << 21, "gauge_livesum": 1 << 16}
LIVE = re.compile(r"gauge_live[a-z]*_(\d+)\.db")
_held: list[int] = []  # descriptors of our locks


def folder() -> Path | None:
    """Where the workers share their figures, if they do."""
    name = os.environ.get(VARIABLE)
    return Path(name) if name else None


def reserve() -> None:
    """Room for this process's figures, before prometheus_client is imported; without it they are not shared."""
    shared = folder()
    if shared is None:
        return
    made: list[Path] = []
    try:
        for kind, size in SIZES.items():
            new = shared / f"{kind}_{os.getpid()}.new"  # the others read only what is whole
            descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            made += [new, new.with_suffix(".db")]
            _held.append(descriptor)
            os.posix_fallocate(descriptor, 0, size)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(descriptor, struct.pack("i", 8), 0)  # as the library marks a file with nothing in it
            new.rename(new.with_suffix(".db"))
    except OSError as error:
        del os.environ[VARIABLE]
        for path in made:
            with contextlib.suppress(OSError):
                path.unlink()
        fields = {"folder": str(shared), "error": error.strerror, "remedy": "make room there or set TMPDIR"}
        log.error("no room to share metrics: this worker counts for itself", extra={"fields": fields})


def forget_the_dead(shared: Path) -> None:
    """Remove the gauges of processes that are gone, and the room they had reserved and not used."""
    for path in shared.iterdir():
        match = LIVE.fullmatch(path.name)
        if match is None or int(match[1]) == os.getpid() or not _is_free(path):
            continue
        for kind in ("counter", "histogram"):
            with contextlib.suppress(OSError):
                _trim(shared / f"{kind}_{match[1]}.db")
        path.unlink(missing_ok=True)


def _is_free(path: Path) -> bool:
    """Whether nobody holds the lock of a file any more."""
    try:
        with path.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True
    except OSError:
        return False


def _trim(path: Path) -> None:
    """Cut a file behind what its first four bytes say is used."""
    with path.open("r+b") as stream:
        (used,) = struct.unpack("i", stream.read(4))
        if used > 0:
            stream.truncate(used)
