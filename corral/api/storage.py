"""Storage of the server for its clients: slot states, sessions, chats, responses, batches."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from corral.core.errors import Conflict
from corral.core.settings import ServerSettings
from corral.core.task import Busy
from corral.storage.batch_store import BatchStore
from corral.storage.chat_store import ChatStore
from corral.storage.document_store import DocumentStore
from corral.storage.front_registry import FrontRegistry
from corral.storage.save_directory import SaveDirectory
from corral.storage.session import SessionStore, spill_directory
from corral.storage.shared_documents import SharedDocumentStore

_MAX_BLOBS = 2  # states in memory at once for each slot and direction, besides sessions


class Storage:
    """`saves`, `chats` and `batches` are None without a directory for them."""

    def __init__(
        self, server: ServerSettings, shared: Storage | None = None, registry: FrontRegistry | None = None
    ) -> None:
        """`shared`: has the chats and documents of several models. `registry`: of the servers that use the
        same directories."""
        self.saves = SaveDirectory(Path(server.slot_save_path)) if server.slot_save_path else None
        spill = spill_directory(self.saves) if self.saves and server.slots else None
        self.sessions = SessionStore(server.sessions_ram_mib << 20, spill, bool(server.shared_storage))
        self.chats: ChatStore | None
        self.documents: DocumentStore
        self.batches: BatchStore | None = None
        if shared is not None:
            self.chats, self.documents = shared.chats, shared.documents
        else:
            self.chats = ChatStore(Path(server.chats_path)) if server.chats_path else None
            self.documents = _open_documents(server.responses_path, registry)
            self.batches = _open_batches(server.batches_path, registry)
        self._blob_limits: dict[tuple[int, str], asyncio.Semaphore] = {}

    @contextlib.asynccontextmanager
    async def limit_blobs(self, slot: int, way: str, busy: Busy) -> AsyncIterator[None]:
        """Wait until memory has room for one more state that is transferred from or to a slot."""
        limit = self._blob_limits.setdefault((slot, way), asyncio.Semaphore(_MAX_BLOBS))
        if busy is Busy.REFUSE and limit.locked():
            raise Conflict(f"{_MAX_BLOBS} states of slot {slot} are still being transferred; retry later")
        async with limit:
            yield


def _open_documents(path: str, registry: FrontRegistry | None) -> DocumentStore:
    if path and registry is not None:
        return SharedDocumentStore(Path(path))
    return DocumentStore(Path(path) if path else None)


def _open_batches(path: str, registry: FrontRegistry | None) -> BatchStore | None:
    if not path:
        return None
    return BatchStore(Path(path), registry.id, registry.is_alive) if registry else BatchStore(Path(path))
