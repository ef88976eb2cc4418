"""`limit=n` in a query: streams that never end by themselves end after so many events."""

from __future__ import annotations

from collections.abc import Mapping

from corral.api.openapi import query
from corral.core.errors import InvalidRequest

_MAX_EVENTS = 1_000_000
LIMIT = query(
    "limit", "End the stream after this number of events.", type="integer", minimum=1, maximum=_MAX_EVENTS
)


def limit_of(query: Mapping[str, str]) -> int:
    """Return the number of events to send; 0: no limit."""
    text = query.get("limit", "")
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= _MAX_EVENTS):
        raise InvalidRequest(f"must be a number from 1 to {_MAX_EVENTS}", field="limit")
    return int(text)
