"""Conversations that the web UI keeps on the server (`--chats`): each API key has its own folder.

Files are read and written in separate threads, so that neither the event loop nor a prompt waits for a
disk. Searches have another thread, so that no save waits for one.
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
from corral.storage.chat_folder import (
    SUFFIX,
    ChatFolder,
    ChatInfo,
    FoundChat,
    Precondition,
    new_text_cache,
)
from corral.storage.save_directory import SaveDirectory
from corral.storage.saved_chat import check_chat

T = TypeVar("T")

_N_THREADS = 4
_EVERYBODY = "everybody"
KEY_FOLDER = "key-"  # begins the name of a key's folder


class ChatStore:
    def __init__(self, path: Path) -> None:
        """`path` must be a writable directory."""
        self._directory = SaveDirectory(path, option="--chats")
        self._folders: dict[str, ChatFolder] = {}
        self._texts = new_text_cache()
        self._opening = threading.Lock()
        self._threads = concurrent.futures.ThreadPoolExecutor(_N_THREADS, "chats")
        self._searching = concurrent.futures.ThreadPoolExecutor(1, "chats-search")

    async def list(self, client: Client) -> Sequence[ChatInfo]:
        return await _run(self._threads, lambda: self._folder(client).list())

    async def search(self, client: Client, text: str) -> Sequence[FoundChat]:
        """Find the chats with this text in title or messages, ignoring case."""
        return await _run(self._searching, lambda: self._folder(client).search(text))

    async def load(self, client: Client, chat_id: str) -> bytes:
        return await _run(self._threads, lambda: self._folder(client).load(chat_id))

    async def save(self, client: Client, chat_id: str, data: Any, condition: Precondition) -> ChatInfo:
        """Save a chat. Raises InvalidRequest if it is not a chat, Conflict if the condition is not met."""

        def save() -> ChatInfo:
            return self._folder(client).save(check_chat(data, chat_id), condition)

        return await _run(self._threads, save)

    async def remove(self, client: Client, chat_id: str) -> None:
        await _run(self._threads, lambda: self._folder(client).remove(chat_id))

    def _folder(self, client: Client) -> ChatFolder:
        name = folder_name(client)
        with self._opening:
            folder = self._folders.get(name)
            if folder is None:
                folder = self._folders[name] = ChatFolder(
                    self._directory.subdirectory(name, SUFFIX), self._texts
                )
            return folder


def folder_name(client: Client) -> str:
    """Return a folder name that is stable across restarts. The digest separates names that differ only
    in case."""
    if not client.id:
        return _EVERYBODY
    digest = hashlib.sha256(client.id.encode()).hexdigest()[:32]
    return f"{KEY_FOLDER}{client.name}-{digest}" if client.name == client.id else f"{KEY_FOLDER}{digest}"


async def _run(pool: concurrent.futures.Executor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(pool, work)
