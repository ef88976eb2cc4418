"""Refuse schemas with other values where a keyword takes text: no draft of JSON Schema allows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from corral.core.errors import InvalidRequest
from corral.grammar.schema import BY_NAME

_TEXTS = ("$ref", "format", "pattern")
_LISTS = ("required", "type")
_LISTS_BY_NAME = ("dependentRequired", "dependencies")
_VALUES = {"const", "enum", "default", "example", "examples", *_LISTS}


def check_shape(schema: Any, field: str) -> None:
    """Raise InvalidRequest. Looks at whatever may be a schema, also under unknown keywords."""
    rest: list[tuple[str, Any]] = [("#", schema)]
    while rest:
        pointer, node = rest.pop()
        if isinstance(node, dict):
            for keyword, expected in _misused(node):
                raise InvalidRequest(f"keyword '{keyword}' at {pointer} must {expected}", field=field)
        rest += _inner(pointer, node)


def _inner(pointer: str, node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, list):
        yield from ((f"{pointer}/{i}", item) for i, item in enumerate(node))
    for keyword, value in node.items() if isinstance(node, dict) else ():
        if keyword in BY_NAME and isinstance(value, dict):
            yield from ((f"{pointer}/{keyword}/{name}", part) for name, part in value.items())
        elif keyword not in _VALUES:
            yield f"{pointer}/{keyword}", value


def _misused(node: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for keyword in _TEXTS:
        if isinstance(node.get(keyword), list | dict):
            yield keyword, "be a string"
    for keyword in _LISTS:
        if not _lists_texts(node.get(keyword)):
            yield keyword, "list strings"
    for keyword in _LISTS_BY_NAME:
        by_name = node.get(keyword)
        if isinstance(by_name, dict) and not all(map(_lists_texts, by_name.values())):
            yield keyword, "list strings"


def _lists_texts(value: Any) -> bool:
    return not isinstance(value, list) or all(isinstance(item, str) for item in value)
