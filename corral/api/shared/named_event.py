"""Encode server-sent events whose name is in the `event` line and in the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corral.api.sse import SSE, Comment, StreamFormat, encode_event
from corral.core.errors import CorralError


def encode_named(event: Any) -> bytes:
    """compat: /v1/messages, /v1/responses: clients read one name or the other."""
    name = b"" if isinstance(event, Comment) else f"event: {event['type']}\n".encode()
    return name + encode_event(event)


def named_events(render_error: Callable[[CorralError], Any]) -> StreamFormat:
    return StreamFormat(SSE.media_type, encode_named, render_error)
