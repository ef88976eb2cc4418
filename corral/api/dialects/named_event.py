"""Encode server-sent events whose name is in the `event` line and in the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corral.api.json_encode import encode_json
from corral.api.sse import Comment, StreamFormat
from corral.core.errors import CorralError


def encode_event(event: Any) -> bytes:
    """compat: /v1/messages, /v1/responses: clients read one name or the other. A list is several events."""
    if isinstance(event, list):
        return b"".join(map(encode_event, event))
    if isinstance(event, Comment):
        return f": {event.text}\n\n".encode()
    name: str = event["type"]
    return b"event: " + name.encode() + b"\ndata: " + encode_json(event) + b"\n\n"


def named_events(render_error: Callable[[CorralError], Any]) -> StreamFormat:
    return StreamFormat("text/event-stream; charset=utf-8", encode_event, render_error)
