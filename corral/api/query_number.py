"""Numbers in queries and forms, which are texts there."""

from __future__ import annotations

from collections.abc import Mapping

from corral.core.errors import InvalidRequest


def query_number(query: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    """Return a number in the query, or the default if it is not there."""
    text = query.get(name)
    return default if text is None else parse_number(text, name, low, high)


def parse_number(text: str, field: str, low: int, high: int) -> int:
    if not text.isdecimal() or not text.isascii() or len(text) > 10 or not low <= int(text) <= high:
        raise InvalidRequest(f"must be an integer from {low} to {high}", field=field)
    return int(text)
