"""Documents in a directory that several servers use: each reads what is there, and keeps nothing in memory.

One thread reads and writes, one thing after the other; `settle` waits for it, so that a client that has an
answer finds everything with any other server. For one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from corral.core.client import Client
from corral.core.errors import CorralError
from corral.storage.document_store import DocumentStore, Shelf, check_size

_RELIST = 100  # changes after which files of other servers count for the room on disk
Edit = Callable[[bytes], bytes]  # raises CorralError

T = TypeVar("T")

_log = logging.getLogger("corral")


class SharedDocumentStore(DocumentStore):
    is_shared = True

    def __init__(self, path: Path) -> None:
        """`path` must be a directory that can be written to."""
        super().__init__(path)
        self._pending: Counter[tuple[str, str]] = Counter()  # by client and id
        self._last: dict[str, asyncio.Future[Any]] = {}  # change of each client
        self._n_changes = 0

    def put(self, client: Client, id: str, data: bytes) -> str:
        check_size(id, data)
        writing = self._change(client, id, self._shelf(client).write, id, data)
        writing.add_done_callback(log_failure)
        writing.add_done_callback(self._note_write)
        return self._trouble(len(data))

    async def load(self, client: Client, id: str) -> bytes | None:
        return await self._run(self._shelf(client).read, id)

    def remove(self, client: Client, id: str) -> None:
        self._change(client, id, _unlink, self._shelf(client), id).add_done_callback(log_failure)

    def edit(self, client: Client, id: str, edit: Edit) -> asyncio.Future[None]:
        """Replace a document by what `edit` makes of it, while no other server changes it. The future raises
        what `edit` raises; a document that was removed stays away."""
        return self._change(client, id, _edit, self._shelf(client), id, edit)

    def is_pending(self, client: Client, id: str) -> bool:
        """Whether a change has not reached the disk."""
        return self._pending[client.id, id] > 0

    async def settle(self, client: Client) -> None:
        """Wait until all changes of this client are on disk."""
        last = self._last.get(client.id)
        if last is not None:
            await asyncio.wait({last})

    def _change(self, client: Client, id: str, work: Callable[..., T], *args: object) -> asyncio.Future[T]:
        place = client.id, id
        self._n_changes += 1
        if self._n_changes % _RELIST == 0:
            self._run(self._shelf(client).forget)
        changing = self._last[client.id] = self._run(work, *args)
        self._pending[place] += 1

        def note_end(_: asyncio.Future[T]) -> None:
            self._pending[place] -= 1
            self._pending += Counter()  # without those that are zero
            if self._last.get(client.id) is changing:
                del self._last[client.id]

        changing.add_done_callback(note_end)
        return changing


def _unlink(shelf: Shelf, id: str) -> None:
    with shelf.locked():
        shelf.unlink(id)


def _edit(shelf: Shelf, id: str, edit: Edit) -> None:
    with shelf.locked():
        data = shelf.read(id)
        if data is not None:
            edited = edit(data)
            check_size(id, edited)
            shelf.write(id, edited)


def log_failure(change: asyncio.Future[Any]) -> None:
    """Report a change that its client no longer waits for."""
    error = change.exception() if not change.cancelled() else None
    if isinstance(error, CorralError):
        _log.warning("--responses: %s", error.message)
    elif error is not None:
        _log.error("--responses: unexpected error", exc_info=error)
