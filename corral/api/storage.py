"""Storage for clients: chats, responses and batches of a server, slot states and sessions of a model."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from corral.core.client import Client
from corral.core.errors import Conflict
from corral.core.settings import ServerSettings
from corral.core.task import Busy
from corral.storage.batch_store import BatchStore
from corral.storage.chat_store import ChatStore, folder_name
from corral.storage.document_store import DocumentStore
from corral.storage.front_registry import FrontRegistry
from corral.storage.save_directory import SaveDirectory
from corral.storage.secret import SECRET_BYTES, read_secret
from corral.storage.session import SessionStore, spill_directory

_KEYS = ".keys"  # has the directories of clients; no client can name it
_MAX_BLOBS = 2  # states in memory at once for each slot and direction, besides sessions


class Storage:
    """Of all models. `chats` and `batches` are None without a directory for them."""

    def __init__(self, server: ServerSettings, registry: FrontRegistry | None = None) -> None:
        """`registry`: of the servers that use the same directories."""
        self.chats = ChatStore(Path(server.chats_path)) if server.chats_path else None
        path = Path(server.responses_path) if server.responses_path else None
        self.documents = DocumentStore(path, is_shared=path is not None and registry is not None)
        self.batches = _open_batches(server.batches_path, registry)


class StateStorage:
    """Of one model. `saves` is None without a directory for them."""

    def __init__(self, server: ServerSettings) -> None:
        self.saves = SaveDirectory(Path(server.slot_save_path)) if server.slot_save_path else None
        self._saves_of: dict[str, SaveDirectory] = {}
        self._secret = os.urandom(SECRET_BYTES) if self.saves is None else read_secret(self.saves)
        spill = spill_directory(self.saves) if self.saves and server.slots else None
        self.sessions = SessionStore(server.sessions_ram_mib << 20, spill, bool(server.shared_storage))
        self._blob_limits: dict[tuple[int, str], asyncio.Semaphore] = {}

    def saves_of(self, client: Client) -> SaveDirectory | None:
        """Return the directory of a client's slot files."""
        name = owner_of(client)
        if self.saves is None or not name:
            return self.saves
        if name not in self._saves_of:
            self._saves_of[name] = self.saves.subdirectory(_KEYS).subdirectory(name)
        return self._saves_of[name]

    async def secret(self) -> bytes:
        """Return what states are signed with; the directory, and with it the secret, may be a new one."""
        return self._secret if self.saves is None else await asyncio.to_thread(read_secret, self.saves)

    @contextlib.asynccontextmanager
    async def limit_blobs(self, slot: int, way: str, busy: Busy) -> AsyncIterator[None]:
        """Wait until memory has room for one more state that is transferred from or to a slot."""
        limit = self._blob_limits.setdefault((slot, way), asyncio.Semaphore(_MAX_BLOBS))
        if busy is Busy.REFUSE and limit.locked():
            raise Conflict(f"{_MAX_BLOBS} states of slot {slot} are still being transferred; retry later")
        async with limit:
            yield


def owner_of(client: Client) -> str:
    """Return the folder of a client's states; empty: clients share them, as they share caches."""
    return folder_name(client) if client.tenant else ""


def _open_batches(path: str, registry: FrontRegistry | None) -> BatchStore | None:
    if not path:
        return None
    return BatchStore(Path(path), registry.id, registry.is_alive) if registry else BatchStore(Path(path))
