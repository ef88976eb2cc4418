"""The servers that use the same storage (`--shared-storage`): each has a file, which it locks while it lives.

The kernel frees the lock when a process ends, however it ends, and a server that is stopped or slow keeps it.
So nothing depends on clocks. The file system must have locks and atomic renames. All methods block.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec

from corral.core.errors import CorralError

_PREFIX = "front-"
_OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class FrontInfo(msgspec.Struct, frozen=True):
    """What a server says of itself. `url`: where the others reach it."""

    id: str
    url: str
    pid: int
    host: str


class FrontRegistry:
    def __init__(self, path: Path) -> None:
        """`path` must be a writable directory. Raises CorralError if it has no locks."""
        self.id = secrets.token_hex(8)
        self._path = path
        self._file = path / (_PREFIX + self.id)
        try:
            hidden = path / f".{self._file.name}"
            self._fd = os.open(hidden, _OPEN | os.O_EXCL, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(hidden, self._file)
        except OSError as error:
            raise CorralError(f"--shared-storage '{path}' cannot be used: {error.strerror}") from None
        if not _is_locked(self._file):
            raise CorralError(f"--shared-storage '{path}' is on a file system without locks")

    def publish(self, url: str) -> None:
        """Say where the others reach this server."""
        info = FrontInfo(self.id, url, os.getpid(), socket.gethostname())
        os.pwrite(self._fd, msgspec.json.encode(info), 0)

    def others(self) -> list[FrontInfo]:
        """Return the other servers that live and can be reached."""
        found = []
        for file in self._files():
            with contextlib.suppress(OSError, msgspec.MsgspecError):  # it has just ended, or just begun
                if file != self._file and _is_locked(file):
                    found.append(msgspec.json.decode(file.read_bytes(), type=FrontInfo))
        return found

    def is_alive(self, id: str) -> bool:
        return id == self.id or _is_locked(self._path / (_PREFIX + id))

    def forget_dead(self) -> None:
        """Remove the files of servers that were killed."""
        for file in self._files():
            if file != self._file and not _is_locked(file):
                file.unlink(missing_ok=True)

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """Keep others out of the block; False: one of them is in it."""
        fd = _try_lock(self._path / "takeover.lock")
        try:
            yield fd is not None
        finally:
            if fd is not None:
                os.close(fd)

    def close(self) -> None:
        self._file.unlink(missing_ok=True)
        os.close(self._fd)

    def _files(self) -> list[Path]:
        return sorted(self._path.glob(_PREFIX + "*"))


def _try_lock(path: Path) -> int | None:
    fd = os.open(path, _OPEN, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def _is_locked(path: Path) -> bool:
    """Whether the process that made the file lives."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: several may look at once
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
