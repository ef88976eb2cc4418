"""A file that gets its name when it is complete: until then it lies beside, locked by whoever writes it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

_SUFFIX = ".pending"
_WRITE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class PendingFile:
    """`fd` holds the lock, also in a process that inherits it. The path is free for others to write to."""

    def __init__(self, target: Path, fd: int) -> None:
        self._target = target
        self.path = pending_path(target)
        self.fd = fd

    def commit(self) -> None:
        """Afterwards the name has this file, also if the power fails; before, it has what it had."""
        os.fsync(self.fd)
        self.path.replace(self._target)
        directory = os.open(self._target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


@contextlib.contextmanager
def pending_file(target: Path) -> Iterator[PendingFile]:
    """Empty, and nobody else's: waits for whoever has the same in hand. Gone in the end unless committed."""
    path = pending_path(target)
    with _locked(path) as fd:
        try:
            os.ftruncate(fd, 0)
            yield PendingFile(target, fd)
        finally:
            path.unlink(missing_ok=True)


def pending_path(target: Path) -> Path:
    return target.with_name(target.name + _SUFFIX)


def remove_leftovers(directory: Path, pattern: str) -> None:
    """Pending files for targets of this pattern whose writers are gone."""
    for path in directory.glob(pattern + _SUFFIX):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _has_name(fd, path):
                    path.unlink()
            finally:
                os.close(fd)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    while True:
        fd = os.open(path, _WRITE, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if _has_name(fd, path):
                yield fd
                return
        finally:
            os.close(fd)


def _has_name(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
