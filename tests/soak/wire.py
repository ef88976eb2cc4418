"""HTTP/1.1 over a plain socket, so that a client can leave, stall or read slowly at any byte.

Takes answers apart as they come and notices what a library would hide: bytes behind the end of an answer, and
answers that end too early. Knows nothing of what is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_READ = 65536
_TINY_BUFFER = 4096


@dataclass(frozen=True, slots=True)
class Manner:
    """How a client behaves: when it leaves, and how fast it reads. Negative: it does not leave by this."""

    leaves_after_bytes: int = -1  # of its own request
    leaves_after_events: int = -1
    leaves_after_s: float = -1.0
    reads_slowly: bool = False

    @property
    def may_leave(self) -> bool:
        return self.leaves_after_bytes >= 0 or self.leaves_after_events >= 0 or self.leaves_after_s >= 0


POLITE = Manner()


@dataclass(slots=True)
class Received:
    """Mutable: an answer as far as it has come."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    is_complete: bool = False
    n_extra: int = 0
    has_left: bool = False
    _raw: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> None:
        self._raw += data
        if not self.status and not self._read_head():
            return
        if self.is_complete:
            pass
        elif self.headers.get("transfer-encoding") == "chunked":
            self._read_chunks()
        else:
            self._read_plain(int(self.headers.get("content-length", 0)))
        if self.is_complete:
            self.n_extra = len(self._raw)

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """Of a stream, the complete ones."""
        whole = bytes(self.body).split(b"\n\n")[:-1]
        datas = [event.removeprefix(b"data: ") for event in whole if event.startswith(b"data: ")]
        return [json.loads(data) for data in datas if data != b"[DONE]"]

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    def _read_head(self) -> bool:
        head, end, rest = bytes(self._raw).partition(b"\r\n\r\n")
        if not end:
            return False
        first, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        self.headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self.status, self._raw = int(first.split(" ")[1]), bytearray(rest)
        return True

    def _read_plain(self, n: int) -> None:
        taken = self._raw[: n - len(self.body)]
        del self._raw[: len(taken)]
        self.body += taken
        self.is_complete = len(self.body) == n

    def _read_chunks(self) -> None:
        while not self.is_complete:
            line, end, _ = bytes(self._raw[:32]).partition(b"\r\n")
            n = int(line, 16) if end else 0
            whole = len(line) + 2 + n + 2
            if not end or len(self._raw) < whole:
                return
            self.body += self._raw[len(line) + 2 : whole - 2]
            del self._raw[:whole]
            self.is_complete = n == 0


def encode(
    method: str, path: str, body: bytes | Mapping[str, Any] = b"", headers: Mapping[str, str] | None = None
) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"Host": "localhost", "Content-Length": str(len(content)), **(headers or {})}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode() + content


class Wire:
    """Mutable: one client with one connection, opened when it is needed and kept as long as possible."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def exchange(self, request: bytes, manner: Manner = POLITE) -> Received:
        """What comes back, all of it unless somebody breaks it off."""
        if manner != POLITE:
            self.close()
        received, was_kept = Received(), self._streams is not None
        try:
            limit = manner.leaves_after_s if manner.leaves_after_s >= 0 else None
            await asyncio.wait_for(self._exchange(request, manner, received), limit)
        except asyncio.TimeoutError:
            received.has_left = True
        except ConnectionError:
            received.has_left = False
        kept = received.is_complete and received.headers.get("connection") != "close" and manner == POLITE
        if not kept:
            self.close()
        if was_kept and not received.status:  # it was closed between two requests
            return await self.exchange(request, manner)
        return received

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    async def _exchange(self, request: bytes, manner: Manner, received: Received) -> None:
        if self._streams is None:
            self._streams = await self._connect(manner)
        reader, writer = self._streams
        if manner.leaves_after_bytes >= 0:
            writer.write(request[: manner.leaves_after_bytes])
            await writer.drain()
            received.has_left = True
            return
        writer.write(request)
        drain = asyncio.ensure_future(writer.drain())  # a server may answer before it has read everything
        try:
            while not received.is_complete:
                if 0 <= manner.leaves_after_events <= received.body.count(b"data: "):
                    received.has_left = True
                    return
                if manner.reads_slowly:
                    await asyncio.sleep(0.02)
                data = await reader.read(1024 if manner.reads_slowly else _READ)
                if not data:
                    return
                received.feed(data)
        finally:
            drain.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await drain

    async def _connect(self, manner: Manner) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not manner.reads_slowly:
            return await asyncio.open_connection(*self._address)
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _TINY_BUFFER)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, self._address)
        return await asyncio.open_connection(sock=sock, limit=_TINY_BUFFER)
