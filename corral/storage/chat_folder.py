"""The chats of one API key, each a JSON file. All methods block; several threads may call them. Other servers
may share the directory.

The revision is a hash of a chat's content, so nothing else is stored, and saving the same chat again
changes nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
import orjson
import xxhash
from cachetools import LRUCache

from corral.core.errors import Conflict, CorralError, InsufficientStorage, InvalidRequest, NotFound, TooLarge
from corral.core.file import file_error
from corral.storage.save_directory import SavedFile, SaveDirectory, saved_file
from corral.storage.saved_chat import CHAT_ID, check_chat, texts_of
from corral.text.json_depth import check_json

MAX_CHATS = 10_000
MAX_BYTES = 256 << 20  # of one chat: it must fit in memory
MAX_TEXT_BYTES = 256 << 20  # of texts in memory for searches, of all keys together
SUFFIX = ".json"

_log = logging.getLogger("corral")
_ID = re.compile(CHAT_ID)


_BEFORE, _AFTER = 30, 90  # characters of a snippet around the text that was searched for


class _Text(NamedTuple):
    """The texts of a chat; `folded` for comparisons, of the same length as `shown`."""

    folded: str
    shown: str
    n_title: int


TextCache: TypeAlias = "LRUCache[str, _Text]"  # by revision


def new_text_cache() -> TextCache:
    """Only the thread of searches may use it."""
    return LRUCache(
        MAX_TEXT_BYTES, getsizeof=lambda text: sys.getsizeof(text.folded) + sys.getsizeof(text.shown)
    )


class ChatInfo(msgspec.Struct, frozen=True, rename="camel"):
    """An entry of the list, as clients get it. Times are Unix milliseconds."""

    id: str
    title: str
    created_at: int
    updated_at: int
    revision: str
    n_bytes: int = msgspec.field(name="bytes")
    pinned: bool = False
    folder: str = ""


class FoundChat(ChatInfo, frozen=True, rename="camel"):
    """`snippet`: the words around the first place in a message; empty if the text is only in the title."""

    snippet: str = ""


class Precondition(msgspec.Struct, frozen=True):
    """What must exist when a chat is saved; by default there is no condition."""

    revision: str | None = None  # this revision
    is_new: bool = False  # no chat
    is_known: bool = False  # any revision

    def is_met(self, found: ChatInfo | None) -> bool:
        if found is None:
            return self.revision is None and not self.is_known
        return not self.is_new and self.revision in (None, found.revision)


class ChatFolder:
    def __init__(self, directory: SaveDirectory, texts: TextCache | None = None) -> None:
        self._directory = directory
        self._texts = new_text_cache() if texts is None else texts
        self._lock = threading.Lock()
        self._known: dict[str, tuple[SavedFile, ChatInfo | None]] = {}  # None: not a chat

    def list(self) -> Sequence[ChatInfo]:
        """List the chats, newest first."""
        files = self._directory.names()
        found = [info for file in files if (info := self._look(file)) is not None]
        there = {file.name for file in files}
        for name in self._known.keys() - there:
            self._known.pop(name, None)
        return sorted(found, key=lambda info: (-info.updated_at, info.id))

    def search(self, text: str) -> Sequence[FoundChat]:
        """Find the chats with this text in title or messages."""
        wanted = text.casefold()
        texts = ((info, self._text(info)) for info in self.list())
        return [
            FoundChat(**msgspec.structs.asdict(info), snippet=_snippet(text, wanted))
            for info, text in texts
            if text is not None and wanted in text.folded
        ]

    def load(self, chat_id: str) -> bytes:
        """Return the chat as JSON, with its revision."""
        data, chat = self._read(chat_id)
        return orjson.dumps({**chat, "revision": _revision(data)})

    def save(self, chat: dict[str, Any], condition: Precondition) -> ChatInfo:
        """Save the chat. Raises Conflict, and keeps the existing chat, if the condition is not met."""
        chat_id, data = chat["id"], orjson.dumps(chat)
        if len(data) > MAX_BYTES:
            raise TooLarge(f"the chat is larger than {MAX_BYTES >> 20} MiB")
        with self._alone():
            found = self._find(chat_id)
            if found is not None and found.revision == _revision(data):
                return found  # the response was lost and the client retries
            if not condition.is_met(found):
                raise Conflict(_what_happened(chat_id, found))
            if found is None and len(self._directory.names()) >= MAX_CHATS:
                raise InsufficientStorage(f"the limit of {MAX_CHATS} chats is reached; remove some")
            with self._directory.create(chat_id) as file:
                file.write([data])
                file.commit()
                saved = saved_file(chat_id, os.fstat(file.fd))
            info = _describe(chat, data)
            self._known[chat_id] = (saved, info)
            return info

    def remove(self, chat_id: str) -> None:
        with self._alone():
            if self._find(chat_id) is None:
                raise _unknown(chat_id)
            self._directory.remove(chat_id)
            self._known.pop(chat_id, None)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold a lock against other writers, in this process and others."""
        with self._lock, self._directory.locked():
            yield

    def _find(self, chat_id: str) -> ChatInfo | None:
        file = self._directory.find(chat_id)
        return self._look(file) if file is not None else None

    def _look(self, file: SavedFile) -> ChatInfo | None:
        """Describe the file, reading it only if it has changed; None if it is not a chat."""
        known, info = self._known.get(file.name, (None, None))
        if known == file:
            return info
        try:
            data, chat = self._read(file.name)
            info = _describe(chat, data)
        except CorralError:
            info = None
        self._known[file.name] = (file, info)
        return info

    def _text(self, info: ChatInfo) -> _Text | None:
        """Return the texts of a chat; None if it was removed meanwhile."""
        text = self._texts.get(info.revision)
        if text is not None:
            return text
        try:
            data, chat = self._read(info.id)
        except CorralError:
            return None
        text = _text_of(chat)
        with contextlib.suppress(ValueError):  # larger than the whole cache
            self._texts[_revision(data)] = text
        return text

    def _read(self, chat_id: str) -> tuple[bytes, dict[str, Any]]:
        """Return a file's content and the chat in it. Raises NotFound if it is not a chat."""
        if not _ID.fullmatch(chat_id):
            raise self._foreign(chat_id, "its name is not that of a chat")
        file = self._directory.find(chat_id)
        if file is None:
            raise _unknown(chat_id)
        if file.n_bytes > MAX_BYTES:
            raise self._foreign(chat_id, f"it is larger than {MAX_BYTES >> 20} MiB")
        data = self._content(chat_id)
        try:
            return data, _parse(data, chat_id)
        except (InvalidRequest, ValueError, RecursionError) as error:
            raise self._foreign(chat_id, f"it is not a chat: {error}") from None

    def _content(self, chat_id: str) -> bytes:
        try:
            fd = self._directory.open(chat_id)
        except InvalidRequest:  # just removed, or replaced by a link
            raise _unknown(chat_id) from None
        try:
            with os.fdopen(fd, "rb") as file:
                return file.read(MAX_BYTES)
        except OSError as error:
            raise file_error(f"cannot read '{chat_id}'", error) from None

    def _foreign(self, name: str, why: str) -> NotFound:
        _log.warning("--chats: '%s%s' is skipped: %s", name, SUFFIX, why)
        return _unknown(name)


def check_id(chat_id: str) -> str:
    if _ID.fullmatch(chat_id):
        return chat_id
    raise InvalidRequest("must be 32 lowercase hexadecimal digits", field="id")


def _parse(data: bytes, chat_id: str) -> dict[str, Any]:
    check_json(data)
    return check_chat(orjson.loads(data), chat_id)


def _describe(chat: dict[str, Any], data: bytes) -> ChatInfo:
    return ChatInfo(
        chat["id"],
        chat["title"],
        chat["createdAt"],
        chat["updatedAt"],
        _revision(data),
        len(data),
        chat.get("pinned") is True,
        chat.get("folder", ""),
    )


def _text_of(chat: dict[str, Any]) -> _Text:
    shown = "\0".join(texts_of(chat))
    folded = shown.casefold()
    if len(folded) != len(shown):  # places would be others
        shown = folded
    return _Text(folded, shown, shown.index("\0") if "\0" in shown else len(shown))


def _snippet(text: _Text, wanted: str) -> str:
    at = text.folded.find(wanted, text.n_title)
    if at < 0:
        return ""
    begin = max(text.shown.rfind("\0", 0, at) + 1, at - _BEFORE)
    message_end = text.shown.find("\0", at)
    last = len(text.shown) if message_end < 0 else message_end
    end = min(last, at + len(wanted) + _AFTER)
    words = " ".join(text.shown[begin:end].split())
    is_begun = begin > 0 and text.shown[begin - 1] != "\0"
    return ("…" if is_begun else "") + words + ("…" if end < last else "")


def _revision(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)


def _what_happened(chat_id: str, found: ChatInfo | None) -> str:
    if found is None:
        return f"chat '{chat_id}' no longer exists"
    return f"chat '{chat_id}' was changed by another client in between"


def _unknown(chat_id: str) -> NotFound:
    return NotFound(f"chat '{chat_id}' does not exist")
