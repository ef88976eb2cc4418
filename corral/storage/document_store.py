"""Documents that clients find again by an id (`--responses`): every key has its own, and sees no other.

A document is there as soon as it is put: in memory up to a budget, and with a directory a thread brings it to
disk, one after the other. The least recently used ones make room. For one event loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from cachetools import LRUCache

from corral.core.client import Client
from corral.core.errors import CorralError, InvalidRequest, TooLarge
from corral.storage.chat_store import folder_name
from corral.storage.save_directory import SaveDirectory

T = TypeVar("T")

SUFFIX = ".json"
RAM_BYTES = 64 << 20  # of one key
TOTAL_RAM_BYTES = 256 << 20
DISK_BYTES = 1 << 30  # of one key
MAX_BYTES = 32 << 20  # of one document
_LEAST_RAM, _LEAST_DISK = 16 << 10, 64 << 10  # that one counts as: this bounds their number too

_log = logging.getLogger("corral")


class DocumentStore:
    is_shared = False

    def __init__(self, path: Path | None = None) -> None:
        """`path` must be a directory that can be written to; None: in memory only."""
        self._directory = SaveDirectory(path, option="--responses") if path is not None else None
        self._shelves: dict[str, Shelf] = {}
        self._disk = concurrent.futures.ThreadPoolExecutor(1, "responses")
        self._failure = ""  # of the last write

    def put(self, client: Client, id: str, data: bytes) -> str:
        """Return why it will not survive this server, or "". Raises TooLarge; what was there before stays
        then."""
        check_size(id, data)
        shelf = self._shelf(client)
        shelf.memory[id] = data
        if self._directory is not None:
            shelf.unwritten[id] = data
            writing = self._run(shelf.write, id, data)
            writing.add_done_callback(lambda _: shelf.written(id, data))
            writing.add_done_callback(self._note_write)
        while sum(each.memory.currsize for each in self._shelves.values()) > TOTAL_RAM_BYTES:
            max(self._shelves.values(), key=lambda each: each.memory.currsize).memory.popitem()
        return self._trouble(len(data))

    def _trouble(self, n_bytes: int) -> str:
        """Return why the disk will not take a document, as far as that is known before it is written."""
        if self._directory is None:
            return ""
        return self._failure or missing_room(self._directory.fd, n_bytes)

    def _note_write(self, writing: asyncio.Future[str]) -> None:
        error = writing.exception() if not writing.cancelled() else None
        self._failure = repr(error) if error is not None else "" if writing.cancelled() else writing.result()

    async def load(self, client: Client, id: str) -> bytes | None:
        shelf = self._shelf(client)
        if (data := shelf.find(id)) is not None or self._directory is None:
            return data
        read = await self._run(shelf.read, id)
        return shelf.find(id) or read

    def remove(self, client: Client, id: str) -> None:
        shelf = self._shelf(client)
        shelf.memory.pop(id, None)
        shelf.unwritten.pop(id, None)
        if self._directory is not None:
            self._run(shelf.unlink, id)

    async def close(self) -> None:
        """Wait until everything is on disk."""
        await asyncio.to_thread(self._disk.shutdown)

    def _shelf(self, client: Client) -> Shelf:
        name = folder_name(client)
        if name not in self._shelves:
            self._shelves[name] = Shelf(self._directory, name)
        return self._shelves[name]

    def _run(self, work: Callable[..., T], *args: object) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._disk, work, *args)


def check_size(id: str, data: bytes) -> None:
    if len(data) > MAX_BYTES:
        raise TooLarge(f"'{id}' has {len(data)} bytes; the server keeps up to {MAX_BYTES >> 20} MiB of one")


def missing_room(fd: int, n_bytes: int) -> str:
    """Return why a file system has no room for so many bytes, or ""."""
    facts = os.fstatvfs(fd)
    n_blocks = facts.f_bfree if os.geteuid() == 0 else facts.f_bavail
    return os.strerror(errno.ENOSPC) if n_blocks * facts.f_frsize < n_bytes else ""


class Shelf:
    """Mutable: what one key has. All that uses files belongs into the thread of the disk."""

    def __init__(self, parent: SaveDirectory | None, name: str) -> None:
        self.memory: LRUCache[str, bytes] = LRUCache(RAM_BYTES, lambda data: max(len(data), _LEAST_RAM))
        self.unwritten: dict[str, bytes] = {}
        self._parent = parent
        self._name = name
        self._opened: tuple[SaveDirectory, _Files] | None = None

    def find(self, id: str) -> bytes | None:
        return self.unwritten.get(id) or self.memory.get(id)

    def written(self, id: str, data: bytes) -> None:
        if self.unwritten.get(id) is data:
            del self.unwritten[id]

    def read(self, id: str) -> bytes | None:
        directory, files = self._open()
        try:
            with os.fdopen(directory.open(id), "rb") as file:
                data = file.read(MAX_BYTES)
        except InvalidRequest:  # there is none
            files.pop(id, None)
            return None
        files[id] = len(data)
        return data

    def write(self, id: str, data: bytes) -> str:
        """Return why it is not on disk, or ""."""
        try:
            directory, files = self._open()
            with directory.create(id) as file:
                file.write([data])
                file.commit()
            files[id] = len(data)
        except CorralError as error:
            _log.error("--responses: %s cannot be written: %s", id, error.message)
            return error.message
        return ""

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Keep other servers from changing documents."""
        return self._open()[0].locked()

    def forget(self) -> None:
        """List the files again before they are used."""
        self._opened = None

    def unlink(self, id: str) -> None:
        try:
            directory, files = self._open()
            directory.remove(id)
            files.pop(id, None)
        except CorralError as error:
            _log.error("--responses: %s cannot be removed: %s", id, error.message)

    def _open(self) -> tuple[SaveDirectory, _Files]:
        assert self._parent is not None
        if self._opened is None or not os.fstat(self._opened[0].fd).st_nlink:
            directory = self._parent.subdirectory(self._name, SUFFIX)
            self._opened = directory, _Files(directory)
        return self._opened


class _Files(LRUCache[str, int]):
    """Mutable: the files of a directory and their sizes; those that have to make room are removed."""

    def __init__(self, directory: SaveDirectory) -> None:
        super().__init__(DISK_BYTES, lambda n_bytes: max(min(n_bytes, MAX_BYTES), _LEAST_DISK))
        self._directory = directory
        for file in sorted(directory.names(), key=lambda file: file.modified_ns):
            self[file.name] = file.n_bytes

    def popitem(self) -> tuple[str, int]:
        name, n_bytes = super().popitem()
        self._directory.remove(name)
        return name, n_bytes
