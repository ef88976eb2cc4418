"""What servers with the same storage say to each other in headers.

`ASKS` asks a server whether it has something that lives in its memory: `YES` or `NO`. A request with `PASSED`
comes from another server, and is never passed on.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

import msgspec

ASKS, PASSED = "x-corral-asks", "x-corral-passed"
YES, NO = 204, 421


class LiveId(msgspec.Struct, frozen=True):
    """Something in the memory of a server: `stream`, `answer`, `response` or `batch`."""

    kind: str
    id: str

    def encode(self) -> str:
        return f"{self.kind} {quote(self.id, safe='')}"

    @staticmethod
    def decode(text: str) -> LiveId:
        kind, _, id = text.partition(" ")
        return LiveId(kind, unquote(id))
