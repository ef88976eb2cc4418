"""Write files that replace their target atomically. All functions block."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

T = TypeVar("T")

_TEMPORARY = re.compile(r"\.pending-[0-9]+-[0-9a-f]{16}")
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


@contextlib.contextmanager
def atomic_write(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a new file that replaces `path` when the block ends; after an error `path` is unchanged."""
    with open_directory(path.parent) as dir_fd, AtomicFile(dir_fd, path.name, mode) as pending:
        with open(pending.fd, "wb", closefd=False) as file:
            yield file
        pending.commit()


class AtomicFile:
    """A file with a temporary name until it is committed; otherwise it is removed at the end of the block.

    It is locked while any process has it open, so that others can distinguish it from a leftover.
    """

    def __init__(self, dir_fd: int, name: str, mode: int = 0o600) -> None:
        self._dir_fd = dir_fd
        self._name = name
        self.fd = -1
        while self.fd < 0:
            self.temporary = f".pending-{os.getpid()}-{secrets.token_hex(8)}"
            self.fd = os.open(self.temporary, _CREATE, mode, dir_fd=dir_fd)
            _lock(self.fd)
            if not os.fstat(self.fd).st_nlink:  # removed as a leftover before it was locked
                self._close()

    def commit(self) -> None:
        """Give the file its name durably. Even after a power failure the name has the old or the new file."""
        os.fsync(self.fd)
        os.replace(self.temporary, self._name, src_dir_fd=self._dir_fd, dst_dir_fd=self._dir_fd)
        os.fsync(self._dir_fd)

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # after the commit it has another name
            os.unlink(self.temporary, dir_fd=self._dir_fd)
        self._close()

    def _close(self) -> None:
        fd, self.fd = self.fd, -1  # so that a thread of a cancelled request cannot write into another file
        os.close(fd)


def remove_leftovers(dir_fd: int) -> None:
    """Remove temporary files whose writers are gone."""
    for name in filter(_TEMPORARY.fullmatch, list_directory(dir_fd)):
        with contextlib.suppress(OSError), _opened(name, _READ, dir_fd) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(name, dir_fd=dir_fd)


@contextlib.contextmanager
def lock_directory(path: Path) -> Iterator[int]:
    """Lock the directory, remove leftovers, and yield a descriptor."""
    with open_directory(path) as dir_fd:
        _lock(dir_fd)
        remove_leftovers(dir_fd)
        yield dir_fd


def list_directory(dir_fd: int) -> list[str]:
    with _opened(".", _DIRECTORY, dir_fd) as fd:  # threads would share the position of `dir_fd`
        return os.listdir(fd)


def open_directory(path: Path) -> contextlib.AbstractContextManager[int]:
    return _opened(path, _DIRECTORY)


@contextlib.contextmanager
def _opened(path: Path | str, flags: int, dir_fd: int | None = None) -> Iterator[int]:
    fd = os.open(path, flags, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def _lock(fd: int) -> None:
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(fd, fcntl.LOCK_EX)
