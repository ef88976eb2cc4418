"""Write header names in their canonical spelling, as llama-server does: scripts compare them by case.

Uvicorn writes them in lower case; what HTTP means by them does not depend on it.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Any

_OTHER_SPELLINGS = {b"etag": b"ETag", b"www-authenticate": b"WWW-Authenticate"}
_INTERIM = b"HTTP/1.1 100 "


@functools.lru_cache(maxsize=256)
def canonical_name(name: bytes) -> bytes:
    return _OTHER_SPELLINGS.get(name.lower()) or name.title()


def canonical_head(head: bytes) -> bytes:
    """Respell the names in a status line and headers."""
    status, *lines = head.split(b"\r\n")
    return b"\r\n".join([status, *map(_canonical_line, lines)])


def _canonical_line(line: bytes) -> bytes:
    name, colon, value = line.partition(b":")
    return canonical_name(name) + colon + value if colon else line


class HeadTransport:
    """The transport of one response: its head is respelled, everything after it is passed on."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.write = self._write_head

    def _write_head(self, data: bytes) -> None:
        if not data.startswith(_INTERIM):
            self.write = self._transport.write
        self._transport.write(canonical_head(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
