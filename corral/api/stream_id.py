"""Which stream that continues without its client a POST begins, or comes back to."""

from __future__ import annotations

import re

from starlette.types import Scope

from corral.api.policy import Follow
from corral.api.route_table import RouteTable

PREFIX = "stream_"  # of durable requests
HEADER = b"x-conversation-id"
MAX_ID_CHARS = 512
_LAST_ID = b"last-event-id"
_EVENT_ID = re.compile(rf"({PREFIX}[0-9a-f]{{32}})\.[0-9]{{1,10}}")


def follow_of(table: RouteTable, scope: Scope) -> Follow:
    """Return whether the stream of a request continues without its client."""
    policy = table.policy(scope)
    return policy.follow if policy is not None else Follow.NEVER


def resumed_stream(scope: Scope, follow: Follow) -> str:
    """Return the stream that the client of a POST has lost; empty: none."""
    last_id = last_event(scope, follow)
    return (_stream_of(last_id) or _conversation(scope, follow)) if last_id else ""


def begun_stream(scope: Scope, follow: Follow) -> str:
    """Return the id of the stream that a POST begins; empty: none that continues without its client."""
    return "" if resumed_stream(scope, follow) else _conversation(scope, follow)


def _conversation(scope: Scope, follow: Follow) -> str:
    """Return the id of a request's conversation, if it has one and can be a stream."""
    return _header(scope, HEADER)[:MAX_ID_CHARS] if follow is Follow.CONVERSATION else ""


def last_event(scope: Scope, follow: Follow) -> str:
    return _header(scope, _LAST_ID) if follow is not Follow.NEVER else ""


def _stream_of(event_id: str) -> str:
    """Return the stream that an event's id names; empty: none."""
    found = _EVENT_ID.fullmatch(event_id)
    return found[1] if found is not None else ""


def _header(scope: Scope, wanted: bytes) -> str:
    found = next((value for name, value in scope["headers"] if name == wanted), b"")
    return str(found.decode("latin-1"))
