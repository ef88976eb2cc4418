"""The shapes of saved chats in OpenAPI."""

from __future__ import annotations

from corral.api.openapi import Schema, list_of, shape
from corral.storage.saved_chat import MAX_TIME_MS, MAX_TITLE_CHARS

_MESSAGES: Schema = {"type": "object", "additionalProperties": shape(role="string", content="string")}
_TITLE: Schema = {"type": "string", "maxLength": MAX_TITLE_CHARS}
_TIME: Schema = {"type": "integer", "minimum": 0, "maximum": MAX_TIME_MS}
CHAT: Schema = {
    **shape(
        id="string",
        title=_TITLE,
        createdAt=_TIME,
        updatedAt=_TIME,
        revision="string?",
        system="string",
        settings="object",
        leaf="string|null",
        messages=_MESSAGES,
    ),
    "required": ["title", "messages"],
}
CHAT_SAVED = shape(id="string", updatedAt="integer", revision="string")
CHAT_REMOVED = shape(id="string", success="boolean")
CHATS = list_of(
    shape(
        id="string",
        title="string",
        createdAt="integer",
        updatedAt="integer",
        revision="string",
        bytes="integer",
    )
)
