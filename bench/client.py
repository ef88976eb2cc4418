"""A light client: HTTP/1.1 on a plain socket, so that the measuring costs little next to the server."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import socket
import threading
import time
import urllib.parse
from dataclasses import dataclass
from typing import Any

_threads = concurrent.futures.ThreadPoolExecutor(64)


@dataclass(frozen=True, slots=True)
class Answer:
    """When each event of a stream arrived, and the last one."""

    sent_at: float
    times: list[float]
    last: dict[str, Any]

    @property
    def first_s(self) -> float:
        return self.times[0] - self.sent_at

    @property
    def decode_s(self) -> float:
        """From the first token to the last; the closing event is not a token."""
        return self.times[-2] - self.times[0]


async def complete(url: str, path: str = "/completion", **body: Any) -> Answer:
    """Stream one completion."""
    sent_at, parts = await exchange(url, path, {"stream": True, **body})
    return _read(sent_at, parts)


async def complete_until(left: threading.Event, url: str, **body: Any) -> Answer:
    """Stream one completion, and leave with the first event after `left` is set."""
    sent_at, parts = await exchange(url, "/completion", {"stream": True, **body}, left)
    return _read(sent_at, parts)


async def post(url: str, path: str, body: dict[str, Any]) -> Any:
    """A plain answer."""
    _, parts = await exchange(url, path, body)
    return json.loads(b"".join(part for _, part in parts).partition(b"\r\n\r\n")[2])


async def exchange(
    url: str, path: str, body: dict[str, Any], left: threading.Event | None = None
) -> tuple[float, list[tuple[float, bytes]]]:
    """When the request was sent, and what came back when, until the end or until `left` is set."""
    left = left or threading.Event()
    return await asyncio.get_running_loop().run_in_executor(_threads, _send, url, path, body, left)


def _send(
    url: str, path: str, body: dict[str, Any], left: threading.Event
) -> tuple[float, list[tuple[float, bytes]]]:
    """A blocking socket in a thread disturbs least; what arrives is time-stamped, and read at the end."""
    address = urllib.parse.urlsplit(url)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Length: {len(data)}\r\n"
    parts: list[tuple[float, bytes]] = []
    with socket.create_connection((address.hostname or "", address.port or 80)) as sock:
        sent_at = time.perf_counter()
        sock.sendall(head.encode() + b"Connection: close\r\nContent-Type: application/json\r\n\r\n" + data)
        while not left.is_set() and (part := sock.recv(1 << 16)):
            parts.append((time.perf_counter(), part))
    return sent_at, parts


def _read(sent_at: float, parts: list[tuple[float, bytes]]) -> Answer:
    whole = b"".join(part for _, part in parts)
    if b" 200 " not in whole.split(b"\r\n", 1)[0]:
        raise RuntimeError(whole.decode())
    times = [at for at, part in parts for _ in range(part.count(b"data: {"))]
    events = whole[: whole.rindex(b"\n\n")]
    last = events[events.rindex(b"data: {") + len(b"data: ") :].split(b"\n", 1)[0]
    return Answer(sent_at, times, json.loads(last))


async def get(url: str, path: str) -> tuple[int, bytes]:
    """Status and body; 0 where nobody answers."""
    address = urllib.parse.urlsplit(url)
    try:
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
    except OSError:
        return 0, b""
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n\r\n".encode())
    try:
        data = await reader.read()
    except OSError:
        data = b""
    writer.close()
    head, _, body = data.partition(b"\r\n\r\n")
    return (int(head.split()[1]), body) if head else (0, b"")
