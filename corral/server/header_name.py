"""Write header names in their canonical spelling, as llama-server does: scripts compare them by case.

Uvicorn writes them in lower case; what HTTP means by them does not depend on it.
"""

from __future__ import annotations

import functools

_OTHER_SPELLINGS = {b"etag": b"ETag", b"www-authenticate": b"WWW-Authenticate"}


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
