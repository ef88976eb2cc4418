"""A file on its way: the bytes that are here so far, and of which version of it they are.

Both stay when the process ends, however it ends. Knows nothing of where the bytes come from.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from corral.core.file import write_all

_BLOCK = 1 << 20


class Stamp(msgspec.Struct, frozen=True):
    """What a server says of a version of a file, as far as it does."""

    etag: str = ""
    last_modified: str = ""
    n_bytes: int | None = None
    sha256: str = ""
    url: str = ""  # without what may be secret in it

    @property
    def validator(self) -> str:
        """What makes a server go on only with the same version; weak tags are not good enough."""
        return self.last_modified if not self.etag or self.etag.startswith("W/") else self.etag

    @property
    def is_telling(self) -> bool:
        """Another version would have another one of these."""
        return bool(self.etag or self.last_modified or self.sha256)

    def is_same(self, other: Stamp) -> bool:
        """Both are of one version for sure."""
        pairs = [
            (self.sha256, other.sha256),
            (self.etag, other.etag),
            (self.last_modified, other.last_modified),
        ]
        known = [mine == theirs for mine, theirs in pairs if mine and theirs]
        if self.n_bytes is not None and other.n_bytes is not None and self.n_bytes != other.n_bytes:
            return False
        return known[0] if self.sha256 and other.sha256 else bool(known) and all(known)


StampT = TypeVar("StampT", bound=Stamp)


class Part:
    """Mutable: owns a file `NAME.part` and its stamp `NAME.part.json`; one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp_path = stamp_path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        self.n_bytes = os.fstat(self._fd).st_size
        self.stamp = read_stamp_file(self._stamp_path, Stamp) or Stamp()
        self._hash, self._n_hashed = hashlib.sha256(), 0
        os.lseek(self._fd, self.n_bytes, os.SEEK_SET)

    def restart(self, stamp: Stamp) -> None:
        """Begin again, with what is to come."""
        self.cut(0)
        self.stamp = stamp
        write_stamp_file(self._stamp_path, stamp)

    def cut(self, n_bytes: int) -> None:
        """Keep no more than so many bytes."""
        if n_bytes < self.n_bytes:
            os.ftruncate(self._fd, n_bytes)
            os.lseek(self._fd, n_bytes, os.SEEK_SET)
            self.n_bytes = n_bytes
        if n_bytes < self._n_hashed:
            self._hash, self._n_hashed = hashlib.sha256(), 0

    def append(self, data: bytes) -> None:
        if self._n_hashed == self.n_bytes:
            self._hash.update(data)
            self._n_hashed += len(data)
        try:
            write_all(self._fd, data)
        except OSError:
            self.n_bytes = os.fstat(self._fd).st_size
            self._hash, self._n_hashed = hashlib.sha256(), 0
            raise
        self.n_bytes += len(data)

    def sha256(self, on_progress: Callable[[int], None]) -> str:
        """Of everything that is here; what came in another process has to be read for that."""
        while self._n_hashed < self.n_bytes:
            block = os.pread(self._fd, _BLOCK, self._n_hashed)
            if not block:
                break
            self._hash.update(block)
            self._n_hashed += len(block)
            on_progress(self._n_hashed)
        return self._hash.hexdigest()

    @property
    def n_unread(self) -> int:
        """Bytes that `sha256` would have to read."""
        return self.n_bytes - self._n_hashed

    def land(self, path: Path) -> None:
        """Give the file its name, once it is safely on the disk."""
        os.fsync(self._fd)
        os.replace(self.path, path)
        self._stamp_path.unlink(missing_ok=True)
        _sync_directory(path.parent)

    def close(self) -> None:
        """Keeps what is here, if anything is."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        if not self.n_bytes:
            self.path.unlink(missing_ok=True)
            self._stamp_path.unlink(missing_ok=True)


def stamp_path(path: Path) -> Path:
    """Where it is written of which version a file is."""
    return path.with_name(f"{path.name}.json")


def part_path(path: Path) -> Path:
    """Where a file is while it is not all there."""
    return path.with_name(f"{path.name}.part")


def read_stamp_file(path: Path, kind: type[StampT]) -> StampT | None:
    """What was written about a file; nothing if that is not there, or makes no sense."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):
        return None


def write_stamp_file(path: Path, stamp: Stamp) -> None:
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_bytes(msgspec.json.encode(stamp))
    beside.replace(path)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
