"""The journal of durable requests (`--journal`): a file for each, in a directory for each API key.

A request's file only grows; it is removed some time after its end. Everything but the constructor runs in one
thread, so that nothing else waits for the disk. What cannot be written continues, but is not durable.

Servers with the same storage each have a folder in `.fronts`. The files of one that is gone are moved to the
folders of others; a rename succeeds for only one of them.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable, Container
from pathlib import Path
from typing import TypeVar

from corral.core.client import Client
from corral.core.errors import CorralError
from corral.core.file import write_all
from corral.storage.chat_store import folder_name
from corral.storage.journal_record import History, JournalHeader, encode_opening, read_history
from corral.storage.save_directory import SaveDirectory

T = TypeVar("T")

SUFFIX = ".journal"
_FRONTS = ".fronts"
KEPT_S = 300  # after the end of a request
_SYNC_S = 1.0
_CREATE = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC

_log = logging.getLogger("corral")


class JournalFile:
    """Mutable: the file of one request; belongs into the thread of the journal."""

    def __init__(self, shelf: _Shelf, name: str, fd: int, n_bytes: int, fsync: str) -> None:
        self._shelf = shelf
        self._name = name
        self._fd = fd
        self._fsync = fsync
        self._synced_at = 0.0
        self.n_bytes = n_bytes

    def append(self, data: bytes) -> bool:
        """Returns whether it could be written; if not, the file is removed."""
        if self._fd < 0:
            return False
        try:
            self._shelf.make_room(len(data), self._name)
            write_all(self._fd, data)
            self.n_bytes += len(data)
            self._sync()
            return True
        except OSError as error:
            why = error.strerror
            _log.warning("--journal: a request continues, but would not survive a restart: %s", why)
            self.close()
            self._shelf.remove(self._name, self)
            return False

    def end(self, data: bytes) -> None:
        """Write the last record; the file is kept for a while."""
        if self.append(data):
            self.close()
            self._shelf.note_end(self._name, self)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _sync(self) -> None:
        now = time.monotonic()
        if self._fsync == "always" or (self._fsync == "second" and now >= self._synced_at + _SYNC_S):
            os.fsync(self._fd)
            self._synced_at = now


class Journal:
    def __init__(self, path: Path, max_bytes: int, max_age_s: float, fsync: str, front: str = "") -> None:
        """`path` must be a writable directory; only servers that have a name, `front`, may share it.
        `max_bytes`: of one key."""
        self._root = self._directory = SaveDirectory(path, option="--journal")
        self._root_path = self._path = path
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._fsync = fsync
        self._shelves: dict[str, _Shelf] = {}
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "journal")
        try:
            kind = fcntl.LOCK_SH if front else fcntl.LOCK_EX
            fcntl.flock(self._root.fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CorralError("--journal: another server uses this directory") from None
        except OSError:
            pass  # a file system without locks
        self._is_stopping = False
        if front:
            self._directory = self._root.subdirectory(_FRONTS).subdirectory(front)
            self._path = path / _FRONTS / front
        else:
            self._move_all(lambda _: False)
        self.found = self._scan()

    async def create(self, opening: JournalHeader) -> JournalFile | None:
        """Begin the file of a request, in the place of one with the same id; None: it cannot be written."""
        return await self.run(self._create, opening)

    async def reopen(self, history: History) -> JournalFile | None:
        """Continue the file of a request after its last whole record."""
        return await self.run(self._reopen, history)

    async def run(self, work: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    def post(self, work: Callable[..., object], *args: object) -> None:
        """Run it without waiting for it, unless the server stops."""
        if not self._is_stopping:
            self._thread.submit(work, *args)

    def sweep(self) -> None:
        """Remove what is too old."""
        for shelf in self._shelves.values():
            shelf.sweep(time.time())

    def stop(self) -> None:
        """Requests that end from now on continue with the next server."""
        self._is_stopping = True

    async def close(self) -> None:
        """Wait until everything is written."""
        await asyncio.to_thread(self._thread.shutdown)
        with contextlib.suppress(OSError):
            fcntl.flock(self._root.fd, fcntl.LOCK_UN)  # files of requests may keep the directory open
        if self._path != self._root_path:
            _remove_folders(self._path)

    def adopt(self, is_alive: Callable[[str], bool]) -> list[History]:
        """Take over the requests of servers that are gone, oldest first."""
        moved = self._move_all(is_alive)
        return self._scan(moved) if moved else []

    def _move_all(self, is_alive: Callable[[str], bool]) -> dict[str, set[str]]:
        """Move the files of others here; returns their names by key."""
        fronts = [each for each in (self._root_path / _FRONTS).glob("*") if each != self._path]
        gone = [each for each in fronts if not is_alive(each.name)]
        if self._path != self._root_path:
            gone.append(self._root_path)  # of a server that shared it with no other
        moved: dict[str, set[str]] = defaultdict(set)
        for folder in gone:
            for file in folder.glob(f"*/*{SUFFIX}"):
                with contextlib.suppress(CorralError, OSError):  # another server was faster
                    if self._shelf(file.parent.name).take(file):
                        moved[file.parent.name].add(file.name.removesuffix(SUFFIX))
            if folder != self._root_path:
                _remove_folders(folder)
        return moved

    def _scan(self, names: dict[str, set[str]] | None = None) -> list[History]:
        """Return the requests of earlier servers that clients may ask for, oldest first. `names`: of some
        files only, by key."""
        found: list[tuple[int, History]] = []
        for entry in os.listdir(self._directory.fd) if names is None else names:
            if entry == _FRONTS:
                continue
            with contextlib.suppress(CorralError):
                shelf = self._shelf(entry)
                for name, modified_at, data in shelf.read_all(names[entry] if names is not None else None):
                    history = read_history(data)
                    if history is None or self._is_over(history, modified_at):
                        shelf.remove(name)
                        continue
                    found.append((history.opening.created, history))
                    if history.ended_at:
                        shelf.note_end(name, ended_at=modified_at)
        return [history for _, history in sorted(found, key=lambda pair: pair[0])]

    def _is_over(self, history: History, modified_at: float) -> bool:
        if history.ended_at and not history.is_complete:
            return True  # it was stopped, or failed
        kept_s = KEPT_S if history.ended_at else self._max_age_s
        return time.time() > modified_at + kept_s

    def _create(self, opening: JournalHeader) -> JournalFile | None:
        data, name = encode_opening(opening), _name(opening.id)
        try:
            shelf = self._shelf(folder_name(opening.client))
            shelf.sweep(time.time())
            shelf.remove(name)
            fd = os.open(name + SUFFIX, _CREATE, 0o600, dir_fd=shelf.fd)
        except (OSError, CorralError) as error:
            _log.warning("--journal: a request would not survive a restart: %s", error)
            return None
        file = shelf.files[name] = JournalFile(shelf, name, fd, 0, self._fsync)
        return file if file.append(data) else None

    def _reopen(self, history: History) -> JournalFile | None:
        shelf, name = self._shelf(folder_name(history.opening.client)), _name(history.opening.id)
        try:
            fd = os.open(name + SUFFIX, _APPEND, dir_fd=shelf.fd)
            os.ftruncate(fd, history.n_bytes)
        except OSError as error:
            _log.warning("--journal: a request would not survive another restart: %s", error.strerror)
            return None
        file = shelf.files[name] = JournalFile(shelf, name, fd, history.n_bytes, self._fsync)
        return file

    def drop(self, client: Client, id: str) -> None:
        """Remove the file of a request that cannot be continued."""
        self._shelf(folder_name(client)).remove(_name(id))

    def _shelf(self, name: str) -> _Shelf:
        if name not in self._shelves:
            self._shelves[name] = _Shelf(self._directory.subdirectory(name, SUFFIX), self._max_bytes)
        return self._shelves[name]


class _Shelf:
    """Mutable: the files of one key. `files`: those of this server, of which some have ended."""

    def __init__(self, directory: SaveDirectory, max_bytes: int) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._n_bytes = self._size()
        self.files: dict[str, JournalFile] = {}
        self._ended_at: dict[str, float] = {}

    @property
    def fd(self) -> int:
        return self._directory.fd

    def take(self, file: Path) -> bool:
        """Move a file here, unless a newer request has its name."""
        if self._directory.find(file.name.removesuffix(SUFFIX)) is not None:
            file.unlink()
            return False
        os.rename(file, file.name, dst_dir_fd=self.fd)
        self._n_bytes = self._size()
        return True

    def read_all(self, names: Container[str] | None = None) -> list[tuple[str, float, bytes]]:
        """Return name, time of the last change and content of every file, or of some."""
        found = []
        for file in self._directory.names():
            if names is not None and file.name not in names:
                continue
            with (
                contextlib.suppress(CorralError, OSError),
                os.fdopen(self._directory.open(file.name), "rb") as opened,
            ):
                found.append((file.name, file.modified_ns / 1e9, opened.read(self._max_bytes)))
        return found

    def make_room(self, n_bytes: int, name: str) -> None:
        """Count more bytes; requests that have ended make room. Raises OSError if there is none."""
        while self._n_bytes + n_bytes > self._max_bytes and self._ended_at:
            self.remove(next(iter(self._ended_at)))
        if self._n_bytes + n_bytes > self._max_bytes:
            raise OSError(errno.EDQUOT, "the journal of its key is full (--journal-max-mb)", name)
        self._n_bytes += n_bytes

    def note_end(self, name: str, file: JournalFile | None = None, ended_at: float = 0.0) -> None:
        if self.files.get(name) is file:
            self._ended_at[name] = ended_at or time.time()

    def remove(self, name: str, file: JournalFile | None = None) -> None:
        """Remove a file, unless another request has taken its name."""
        if file is not None and self.files.get(name) is not file:
            return
        self.files.pop(name, None)
        self._ended_at.pop(name, None)
        self._directory.remove(name)
        self._n_bytes = self._size()

    def _size(self) -> int:
        return sum(file.n_bytes for file in self._directory.names())

    def sweep(self, now: float) -> None:
        for name in [name for name, ended_at in self._ended_at.items() if now > ended_at + KEPT_S]:
            self.remove(name)


def _remove_folders(path: Path) -> None:
    """Remove a server's folder, as far as it is empty."""
    for folder in (*path.glob("*"), path):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _name(id: str) -> str:
    return hashlib.blake2b(id.encode(), digest_size=16).hexdigest()
