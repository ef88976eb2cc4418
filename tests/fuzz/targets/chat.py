"""Conversations as the web page sends them and as they are stored."""

from __future__ import annotations

import orjson

from corral.core.errors import InvalidRequest
from corral.storage.chat_folder import _describe, _parse
from corral.storage.saved_chat import texts_of
from tests.fuzz.mutation import either, mutated
from tests.fuzz.target import Target
from tests.fuzz.value_mutation import mutated_values

_ID = "0123456789abcdef" * 2
_MESSAGE = {"id": "a", "parent": None, "role": "user", "content": "hello", "children": ["b"]}
_CHAT = {
    "id": _ID,
    "title": "a chat",
    "createdAt": 1,
    "updatedAt": 2,
    "system": "",
    "settings": {"temperature": 0.5},
    "leaf": "b",
    "messages": {"a": _MESSAGE, "b": {**_MESSAGE, "id": "b", "role": "assistant", "parent": "a"}},
}


def parse(data: bytes) -> None:
    chat = _parse(data, _ID)
    assert all(isinstance(text, str) for text in texts_of(chat))
    assert _describe(chat, data).id == _ID


SEEDS = [orjson.dumps(_CHAT), orjson.dumps({"title": "", "messages": {}})]
NAMES = [*_CHAT, *_MESSAGE, "revision"]
CASES = either(mutated(SEEDS, [b"{", b"[", b'"', b"\\u", b"1e999"]), mutated_values([_CHAT], NAMES))
TARGET = Target("chat", parse, SEEDS, CASES, (InvalidRequest, orjson.JSONDecodeError))
