"""Conversations that pages keep on the server (`--chats`): every key has a folder, and sees no other.

Files are read and written in threads of its own, so that neither the event loop nor a prompt waits for a
disk; looking through all of them happens in another one, so that no save waits for that.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from corral.core.client import Client
from corral.storage.chat_folder import SUFFIX, ChatFolder, ChatInfo, Precondition
from corral.storage.save_directory import SaveDirectory
from corral.storage.saved_chat import check_chat

T = TypeVar("T")

_N_THREADS = 4
_EVERYBODY = "everybody"


class ChatStore:
    def __init__(self, path: Path) -> None:
        """`path` must be a directory that can be written to."""
        self._directory = SaveDirectory(path, option="--chats")
        self._folders: dict[str, ChatFolder] = {}
        self._opening = threading.Lock()
        self._threads = concurrent.futures.ThreadPoolExecutor(_N_THREADS, "chats")
        self._searching = concurrent.futures.ThreadPoolExecutor(1, "chats-search")

    async def list(self, client: Client) -> Sequence[ChatInfo]:
        return await _run(self._threads, lambda: self._folder(client).list())

    async def search(self, client: Client, text: str) -> Sequence[ChatInfo]:
        """Those in whose title or messages it is, whatever the case."""
        return await _run(self._searching, lambda: self._folder(client).search(text))

    async def load(self, client: Client, chat_id: str) -> bytes:
        return await _run(self._threads, lambda: self._folder(client).load(chat_id))

    async def save(self, client: Client, chat_id: str, data: Any, condition: Precondition) -> ChatInfo:
        """Raises InvalidRequest if it is no chat, Conflict if the condition is not met."""

        def save() -> ChatInfo:
            return self._folder(client).save(check_chat(data, chat_id), condition)

        return await _run(self._threads, save)

    async def remove(self, client: Client, chat_id: str) -> None:
        await _run(self._threads, lambda: self._folder(client).remove(chat_id))

    def _folder(self, client: Client) -> ChatFolder:
        name = folder_name(client)
        with self._opening:
            folder = self._folders.get(name)
            if folder is None or folder.is_gone:
                folder = self._folders[name] = ChatFolder(self._directory.subdirectory(name, SUFFIX))
            return folder


def folder_name(client: Client) -> str:
    """The same after a restart. The digest tells names apart where a file system does not, as Ann and ann."""
    if not client.id:
        return _EVERYBODY
    digest = hashlib.sha256(client.id.encode()).hexdigest()[:32]
    return f"key-{client.name}-{digest}" if client.name == client.id else f"key-{digest}"


async def _run(pool: concurrent.futures.Executor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(pool, work)
