"""Validate and search a conversation of the web UI, as it is sent and stored.

The web UI owns the rest: unknown fields are kept as they are.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from corral.core.errors import InvalidRequest

MAX_TITLE_CHARS = 1000
MAX_FOLDER_CHARS = 100
MAX_SEARCH_CHARS = 1000
MAX_TIME_MS = 2**53 - 1  # the largest exact integer in JavaScript
_NAMES = {str: "a string", dict: "an object", int: "an integer"}

CHAT_ID = "[0-9a-f]{32}"


def check_chat(data: Any, chat_id: str) -> dict[str, Any]:
    """Return the chat with defaults for missing fields. Raises InvalidRequest if it is invalid."""
    if not isinstance(data, dict):
        raise InvalidRequest("the body must be a JSON object")
    now = int(time.time() * 1000)
    defaults = {"createdAt": now, "updatedAt": now, "system": "", "settings": {}, "leaf": None}
    chat = {"id": chat_id, **defaults, **data}
    chat.pop("revision", None)  # derived from the content, not part of it
    if chat["id"] != chat_id:
        raise InvalidRequest("does not match the id in the path", field="id")
    if len(_typed(chat, "title", str)) > MAX_TITLE_CHARS:
        raise InvalidRequest(f"may have at most {MAX_TITLE_CHARS} characters", field="title")
    for field in ("createdAt", "updatedAt"):
        if not 0 <= _typed(chat, field, int) <= MAX_TIME_MS:
            raise InvalidRequest("must be a time in milliseconds", field=field)
    _typed(chat, "system", str)
    _typed(chat, "settings", dict)
    if len(_typed({"folder": "", **chat}, "folder", str)) > MAX_FOLDER_CHARS:
        raise InvalidRequest(f"may have at most {MAX_FOLDER_CHARS} characters", field="folder")
    if chat["leaf"] is not None:
        _typed(chat, "leaf", str)
    for message in _typed(chat, "messages", dict).values():
        if not isinstance(message, dict):
            raise InvalidRequest("must contain objects", field="messages")
        _typed(message, "role", str, "messages.role")
        _typed(message, "content", str, "messages.content")
    return chat


def texts_of(chat: dict[str, Any]) -> Iterator[str]:
    yield chat["title"]
    for message in chat["messages"].values():
        yield message["content"]


def _typed(fields: dict[str, Any], name: str, kind: type, called: str = "") -> Any:
    value = fields.get(name)
    if isinstance(value, kind) and not isinstance(value, bool):
        return value
    raise InvalidRequest(f"must be {_NAMES[kind]}", field=called or name)
