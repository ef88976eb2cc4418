"""Find the model that a request names: in its query, or in its body, which is read once and replayed."""

from __future__ import annotations

import re
from collections import deque
from typing import Any
from urllib.parse import parse_qs

import orjson
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope

from corral.core.errors import TooLarge
from corral.text.json_depth import SLICE_BYTES, JsonDepth

_MAX_FOUND = 10_000  # occurrences of a name in a long body
_SCALAR = re.compile(rb'\s*:\s*("(?:[^"\\]|\\.){0,1024}"|true|false)')


def query_of(scope: Scope) -> dict[str, str]:
    """Return the first value of each field of the query."""
    pairs = parse_qs(scope.get("query_string", b"").decode("latin-1"), max_num_fields=1000)
    return {name: values[0] for name, values in pairs.items()}


class ReadBody:
    """The body of a request. An instance replays it as a `Receive`."""

    def __init__(self, parts: deque[bytes], receive: Receive) -> None:
        self._parts = parts or deque([b""])
        self.rest = receive

    @property
    def content(self) -> bytes:
        return b"".join(self._parts)

    async def __call__(self) -> Message:
        if not self._parts:
            return await self.rest()
        part = self._parts.popleft()
        return {"type": "http.request", "body": part, "more_body": bool(self._parts)}


async def read_body(receive: Receive, max_mib: int) -> ReadBody:
    """Read the whole body. Raises TooLarge, and ClientDisconnect if the client leaves."""
    parts: deque[bytes] = deque()
    n_bytes, has_more = 0, True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part = message.get("body", b"")
        n_bytes += len(part)
        if n_bytes > max_mib << 20:
            raise TooLarge(f"the body is larger than {max_mib} MiB (--max-body-mb)")
        if part:
            parts.append(part)
        has_more = message.get("more_body", False)
    return ReadBody(parts, receive)


def is_long(body: bytes) -> bool:
    """Whether finding a name would block the event loop."""
    return len(body) >= SLICE_BYTES


def find_name(body: bytes, *fields: str) -> str | None:
    """Return the first of these fields of a JSON object that is a string; None without one."""
    if is_long(body):
        found = (_scan(body, field) for field in fields)
    else:
        values = _parse(body)
        found = (values.get(field) for field in fields)
    return next((name for name in found if isinstance(name, str)), None)


def has_flag(body: bytes, field: str) -> bool:
    """Whether a field of a JSON object is true."""
    return (_scan(body, field) if is_long(body) else _parse(body).get(field)) is True


def _parse(body: bytes) -> dict[str, Any]:
    try:
        values = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return values if isinstance(values, dict) else {}


def _scan(body: bytes, field: str) -> str | bool | None:
    """Find a field of the outermost object without parsing the others."""
    key, depth = f'"{field}"'.encode(), JsonDepth()
    at = begin = 0
    for _ in range(_MAX_FOUND):
        at = body.find(key, begin)
        if at < 0:
            return None
        depth.feed(body[begin:at])
        begin = at + len(key)
        if depth.place == (1, False) and (found := _SCALAR.match(body, begin)):
            try:
                value: str | bool = orjson.loads(found[1])
                return value
            except orjson.JSONDecodeError:
                return None
        depth.feed(key)
    return None
