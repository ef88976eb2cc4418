"""Content of messages as other APIs have it: a text, or a list of objects with a type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import quoteattr

from corral.core.errors import InvalidRequest, NotSupported

Fields = Mapping[str, Any]
Part = dict[str, Any]  # of a canonical message

MAX_PARTS = 1 << 16


def typed_parts(content: Any, place: str, text_type: str, noun: str) -> list[Fields]:
    """Return content as parts; a text is one part, of `text_type`. `noun`: what the API calls parts."""
    if isinstance(content, str):
        return [{"type": text_type, "text": content}]
    if not isinstance(content, list) or len(content) > MAX_PARTS:
        raise InvalidRequest(f"must be a string or a list of at most {MAX_PARTS} {noun}", field=place)
    for i, part in enumerate(content):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise InvalidRequest("must be an object with a 'type'", field=f"{place}[{i}]")
    return content


def require_text(fields: Fields, name: str, place: str) -> str:
    text = fields.get(name)
    if not isinstance(text, str):
        raise InvalidRequest("must be a string", field=f"{place}.{name}")
    return text


def plain(parts: list[Part]) -> str | list[Part]:
    """Return a single text part as a string, the most common content."""
    if not parts:
        return ""
    return str(parts[0]["text"]) if len(parts) == 1 and parts[0]["type"] == "text" else parts


def wrap_text(tag: str, text: str, fields: Fields, *names: str) -> str:
    """Return a text in a tag, which has those of the fields that are texts as attributes."""
    given = [(name, fields.get(name)) for name in names]
    attributes = "".join(f" {name}={quoteattr(value)}" for name, value in given if isinstance(value, str))
    return f"<{tag}{attributes}>\n{text}\n</{tag}>"


def keeps_no_files(place: str) -> NotSupported:
    return NotSupported(f"Field '{place}': this server keeps no files", param=place)
