"""Numbers in queries and forms, which are texts there."""

from __future__ import annotations

from starlette.requests import Request

from corral.core.errors import InvalidRequest


def query_number(request: Request, name: str, default: int, low: int, high: int) -> int:
    """Return a number in the query, or the default if it is not there."""
    text = request.query_params.get(name)
    return default if text is None else parse_number(text, name, low, high)


def parse_number(text: str, field: str, low: int, high: int) -> int:
    if not text.isdecimal() or not text.isascii() or len(text) > 10 or not low <= int(text) <= high:
        raise InvalidRequest(f"must be an integer from {low} to {high}", field=field)
    return int(text)
