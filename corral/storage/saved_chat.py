"""Validate and search a conversation of the web UI, as it is sent and stored.

The fields that the page shows have the types it expects, and messages form trees. It checks them again
(`webui/js/chat_check.js`). Unknown fields are kept as they are.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from corral.core.errors import InvalidRequest

MAX_TITLE_CHARS = 1000
MAX_FOLDER_CHARS = 100
MAX_SEARCH_CHARS = 1000
MAX_TIME_MS = 2**53 - 1  # the largest exact integer in JavaScript
_NAMES = {str: "a string", dict: "an object", int: "an integer", list: "a list", bool: "a boolean"}

CHAT_ID = "[0-9a-f]{32}"
_MESSAGE_ID = re.compile("[0-9A-Za-z-]{1,64}")
_ROLES = ("user", "assistant", "tool")
_IMAGE = re.compile(r"data:image/[\w.+-]{1,64}[;,]", re.I | re.A)
_AUDIO = re.compile("data:audio/(?:wav|mp3|flac|ogg);base64,")
_Check = Callable[[Any, str], None]  # of a value and the name of its field; raises InvalidRequest


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
        _check_time(chat[field], field)
    _typed(chat, "system", str)
    _typed(chat, "settings", dict)
    if len(_typed({"folder": "", **chat}, "folder", str)) > MAX_FOLDER_CHARS:
        raise InvalidRequest(f"may have at most {MAX_FOLDER_CHARS} characters", field="folder")
    if chat.get("toolsOn") is not None:
        _list_of(_text)(chat["toolsOn"], "toolsOn")
    chat["messages"] = _check_messages(_typed(chat, "messages", dict))
    if chat["leaf"] is not None and _typed(chat, "leaf", str) not in chat["messages"]:
        raise InvalidRequest("is not the id of a message", field="leaf")
    return chat


def texts_of(chat: dict[str, Any]) -> Iterator[str]:
    yield chat["title"]
    for message in chat["messages"].values():
        yield message["content"]


def _check_messages(messages: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    checked = {id: _check_message(id, message) for id, message in messages.items()}
    for message in checked.values():
        if message["parent"] is not None and message["parent"] not in checked:
            raise InvalidRequest("is not the id of a message", field="messages.parent")
    _check_tree({id: message["parent"] for id, message in checked.items()})
    return checked


def _check_message(id: str, data: Any) -> dict[str, Any]:
    if not _MESSAGE_ID.fullmatch(id):
        raise InvalidRequest("ids may have 1 to 64 letters, digits and hyphens", field="messages")
    if not isinstance(data, dict):
        raise InvalidRequest("must contain objects", field="messages")
    message = {"id": id, "parent": None, **data}
    if message["id"] != id:
        raise InvalidRequest("differs from the key of the message", field="messages.id")
    if message.get("role") not in _ROLES:
        raise InvalidRequest(f"must be one of {', '.join(_ROLES)}", field="messages.role")
    _require(str)(message.get("content"), "messages.content")
    for name, check in _OPTIONAL.items():
        if message.get(name) is not None:
            check(message[name], f"messages.{name}")
    return message


def _check_tree(parents: Mapping[str, str | None]) -> None:
    """Raises InvalidRequest if a message is its own ancestor."""
    known = set[str]()
    for start in parents:
        path = set[str]()
        at: str | None = start
        while at is not None and at not in known:
            if at in path:
                raise InvalidRequest("messages form a cycle", field="messages.parent")
            path.add(at)
            at = parents[at]
        known |= path


def _require(kind: type) -> _Check:
    def check(value: Any, field: str) -> None:
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InvalidRequest(f"must be {_NAMES[kind]}", field=field)

    return check


def _check_time(value: Any, field: str) -> None:
    _require(int)(value, field)
    if not 0 <= value <= MAX_TIME_MS:
        raise InvalidRequest("must be a time in milliseconds", field=field)


def _list_of(check_item: _Check) -> _Check:
    def check(value: Any, field: str) -> None:
        _require(list)(value, field)
        for item in value:
            check_item(item, field)

    return check


def _object_with(**checks: _Check) -> _Check:
    def check(value: Any, field: str) -> None:
        _require(dict)(value, field)
        for name, check_value in checks.items():
            check_value(value.get(name), f"{field}.{name}")

    return check


def _data_url(pattern: re.Pattern[str], kind: str) -> _Check:
    def check(value: Any, field: str) -> None:
        if not (isinstance(value, str) and pattern.match(value)):
            raise InvalidRequest(f"must be a data URL of {kind}", field=field)

    return check


_text = _require(str)
_OPTIONAL: Mapping[str, _Check] = {  # of a message; null as if absent
    "parent": _text,
    "createdAt": _check_time,
    "state": _text,
    "model": _text,
    "reasoning": _text,
    "images": _list_of(_data_url(_IMAGE, "an image")),
    "files": _list_of(_object_with(name=_text, text=_text)),
    "audio": _list_of(_object_with(name=_text, url=_data_url(_AUDIO, "audio"))),
    "toolCalls": _list_of(_object_with(id=_text, name=_text, arguments=_text)),
    "toolCallId": _text,
    "ms": _check_time,
    "isError": _require(bool),
    "error": _text,
    "remedies": _list_of(_text),
    "finish": _text,
    "start": _check_time,
    "stream": _object_with(id=_text, index=_check_time),
    "timings": _require(dict),
    "usage": _require(dict),
    "tokens": _require(list),
}


def _typed(fields: dict[str, Any], name: str, kind: type) -> Any:
    value = fields.get(name)
    _require(kind)(value, name)
    return value
