"""Documents that clients find again by an id (`--responses`): every key has its own, and sees no other.

A document is there as soon as it is put: in memory up to a budget, and with a directory a thread brings it to
disk, one after the other. The least recently used ones make room.

Servers that share a directory keep nothing in memory and read what is there. `settle` waits for the thread,
so that a client that has an answer finds everything with any other server. For one event loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import logging
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from cachetools import LRUCache

from corral.core.client import Client
from corral.core.errors import CorralError, InvalidRequest, TooLarge
from corral.storage.budget import who_makes_room
from corral.storage.chat_store import folder_name
from corral.storage.save_directory import SaveDirectory

T = TypeVar("T")
Edit = Callable[[bytes], bytes]  # raises CorralError

SUFFIX = ".json"
RAM_BYTES = 64 << 20  # of one key
TOTAL_RAM_BYTES = 256 << 20
DISK_BYTES = 1 << 30  # of one key
MAX_BYTES = 32 << 20  # of one document
_LEAST_RAM, _LEAST_DISK = 16 << 10, 64 << 10  # that one counts as: this bounds their number too
_RELIST = 100  # changes after which files of other servers count for the room on disk

_log = logging.getLogger("corral")


class DocumentStore:
    """Mutable."""

    def __init__(self, path: Path | None = None, is_shared: bool = False) -> None:
        """`path` must be a directory that can be written to; None: in memory only. `is_shared`: other servers
        change documents in it."""
        assert path is not None or not is_shared
        self.is_shared = is_shared
        self._directory = SaveDirectory(path, option="--responses") if path is not None else None
        self._shelves: dict[str, KeyFolder] = {}
        self._disk = concurrent.futures.ThreadPoolExecutor(1, "responses")
        self._failure = ""  # of the last write
        self._pending: Counter[tuple[str, str]] = Counter()  # changes, by client and id
        self._last: dict[str, asyncio.Future[Any]] = {}  # change of each client
        self._n_changes = 0

    def put(self, client: Client, id: str, data: bytes) -> str:
        """Return why it will not survive this server, or "". Raises TooLarge; what was there before stays
        then."""
        check_size(id, data)
        shelf = self._shelf(client)
        if not self.is_shared:
            self._remember(shelf, id, data)
        if self._directory is None:
            return ""
        writing = self._change(client, id, shelf.write, id, data)
        writing.add_done_callback(lambda _: shelf.written(id, data))
        writing.add_done_callback(self._note_write)
        writing.add_done_callback(_log_failure)
        return self._failure or missing_room(self._directory.fd, len(data))

    async def load(self, client: Client, id: str) -> bytes | None:
        shelf = self._shelf(client)
        if (data := shelf.find(id)) is not None or self._directory is None:
            return data
        read = await self._run(shelf.read, id)
        return shelf.find(id) or read

    async def edit(self, client: Client, id: str, edit: Edit) -> bool:
        """Replace a document by what `edit` makes of it, while nobody else changes it; returns whether there
        is one. Raises what `edit` raises; the document stays as it was then."""
        if self.is_shared:
            return await self._change(client, id, _edit, self._shelf(client), id, edit)
        data = await self.load(client, id)
        if data is not None:
            self.put(client, id, edit(data))
        return data is not None

    def remove(self, client: Client, id: str) -> None:
        shelf = self._shelf(client)
        shelf.forget(id)
        if self._directory is not None:
            self._change(client, id, shelf.unlink, id).add_done_callback(_log_failure)

    def is_pending(self, client: Client, id: str) -> bool:
        """Whether a change has not reached the disk."""
        return self._pending[client.id, id] > 0

    async def settle(self, client: Client) -> None:
        """Wait until all changes of this client are on disk."""
        last = self._last.get(client.id)
        if last is not None:
            await asyncio.wait({last})

    async def close(self) -> None:
        """Wait until everything is on disk."""
        await asyncio.to_thread(self._disk.shutdown)

    def _remember(self, shelf: KeyFolder, id: str, data: bytes) -> None:
        shelf.memory[id] = data
        if self._directory is not None:
            shelf.unwritten[id] = data
        sizes = {name: int(each.memory.currsize) for name, each in self._shelves.items()}
        while (name := who_makes_room(sizes, TOTAL_RAM_BYTES)) is not None:
            memory = self._shelves[name].memory
            memory.popitem()
            sizes[name] = int(memory.currsize)

    def _change(self, client: Client, id: str, work: Callable[..., T], *args: object) -> asyncio.Future[T]:
        place = client.id, id
        self._n_changes += 1
        if self.is_shared and self._n_changes % _RELIST == 0:
            self._run(self._shelf(client).relist)
        changing = self._last[client.id] = self._run(work, *args)
        self._pending[place] += 1

        def note_end(_: asyncio.Future[T]) -> None:
            self._pending[place] -= 1
            self._pending += Counter()  # without those that are zero
            if self._last.get(client.id) is changing:
                del self._last[client.id]

        changing.add_done_callback(note_end)
        return changing

    def _note_write(self, writing: asyncio.Future[str]) -> None:
        if writing.cancelled():
            self._failure = ""
            return
        error = writing.exception()
        self._failure = repr(error) if error is not None else writing.result()

    def _shelf(self, client: Client) -> KeyFolder:
        name = folder_name(client)
        if name not in self._shelves:
            self._shelves[name] = KeyFolder(self._directory, name)
        return self._shelves[name]

    def _run(self, work: Callable[..., T], *args: object) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._disk, work, *args)


def _edit(shelf: KeyFolder, id: str, edit: Edit) -> bool:
    with shelf.locked():
        data = shelf.read(id)
        if data is not None:
            edited = edit(data)
            check_size(id, edited)
            shelf.write(id, edited)
        return data is not None


def _log_failure(change: asyncio.Future[Any]) -> None:
    """Report a change that nobody waits for."""
    error = change.exception() if not change.cancelled() else None
    if error is not None:
        _log.error("--responses: unexpected error", exc_info=error)


def check_size(id: str, data: bytes) -> None:
    if len(data) > MAX_BYTES:
        raise TooLarge(f"'{id}' has {len(data)} bytes; the server keeps up to {MAX_BYTES >> 20} MiB of one")


def missing_room(fd: int, n_bytes: int) -> str:
    """Return why a file system has no room for so many bytes, or ""."""
    facts = os.fstatvfs(fd)
    n_blocks = facts.f_bfree if os.geteuid() == 0 else facts.f_bavail
    return os.strerror(errno.ENOSPC) if n_blocks * facts.f_frsize < n_bytes else ""


class KeyFolder:
    """Mutable: what one key has. All that uses files belongs into the thread of the disk."""

    def __init__(self, parent: SaveDirectory | None, name: str) -> None:
        self.memory: LRUCache[str, bytes] = LRUCache(RAM_BYTES, lambda data: max(len(data), _LEAST_RAM))
        self.unwritten: dict[str, bytes] = {}
        self._parent = parent
        self._name = name
        self._opened: tuple[SaveDirectory, _Files] | None = None

    def find(self, id: str) -> bytes | None:
        return self.unwritten.get(id) or self.memory.get(id)

    def forget(self, id: str) -> None:
        self.memory.pop(id, None)
        self.unwritten.pop(id, None)

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

    def relist(self) -> None:
        """List the files again before they are used."""
        self._opened = None

    def unlink(self, id: str) -> None:
        try:
            with self.locked():
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
