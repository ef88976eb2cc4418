"""Load for a server at almost no cost of its own: raw sockets in one thread, answers that are not parsed.

An HTTP client that parses every event is slower than the servers that are measured with a tiny model. Here
a stream is two moments, its first event and its end; a short request is the bytes up to its content length.
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_SILENCE_S = 120


@dataclass(frozen=True, slots=True)
class Streams:
    """When each stream had its first event and its end, in seconds after all were sent."""

    first_s: list[float]
    end_s: list[float]

    @property
    def middle_first_s(self) -> float:
        return statistics.median(self.first_s)

    def tokens_per_s(self, n_predict: int) -> float:
        return n_predict * len(self.end_s) / max(self.end_s)


@dataclass(slots=True)
class _Client:
    """One connection, and the part of an answer that was read so far."""

    socket: socket.socket
    data: bytearray = field(default_factory=bytearray)
    n_left: int = 0
    is_last: bool = False  # the server closes the connection after this answer


def run_streams(url: str, bodies: list[Mapping[str, Any]], path: str = "/completion") -> Streams:
    """Send all bodies at once; each must ask for a stream."""
    clients = [_connect(url) for _ in bodies]
    first, end = [0.0] * len(bodies), [0.0] * len(bodies)
    with selectors.DefaultSelector() as selector:
        for i, client in enumerate(clients):
            selector.register(client.socket, selectors.EVENT_READ, i)
        started = time.perf_counter()
        for client, body in zip(clients, bodies, strict=True):
            client.socket.sendall(_request(url, path, body, close=True))
        while selector.get_map():
            for key, _ in _ready(selector):
                i = key.data
                data = clients[i].socket.recv(1 << 16)
                now = time.perf_counter() - started
                if not first[i]:
                    clients[i].data += data
                    if b"data: " in clients[i].data:
                        first[i] = now
                if not data:
                    end[i] = now
                    selector.unregister(clients[i].socket)
                    clients[i].socket.close()
    if not all(first):
        raise RuntimeError(f"{url}{path} did not stream: {bytes(clients[first.index(0.0)].data[:400])!r}")
    return Streams(first, end)


def requests_per_s(
    url: str, path: str, body: Mapping[str, Any] | None, n_clients: int, n_requests: int
) -> float:
    """Requests per second of clients that each send the next one when the last is answered."""
    raw = _request(url, path, body)
    clients = [_connect(url) for _ in range(n_clients)]
    n_unsent, n_done = n_requests - n_clients, 0
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
        started = time.perf_counter()
        for client in clients:
            client.socket.sendall(raw)
        while n_done < n_requests:
            for key, _ in _ready(selector):
                client = key.data
                if _read(client, url, path):
                    n_done += 1
                    if client.is_last:
                        selector.unregister(client.socket)
                        client.socket.close()
                        client.socket = _connect(url).socket
                        selector.register(client.socket, selectors.EVENT_READ, client)
                    if n_unsent > 0:
                        n_unsent -= 1
                        client.socket.sendall(raw)
        seconds = time.perf_counter() - started
    for client in clients:
        client.socket.close()
    return n_requests / seconds


def _read(client: _Client, url: str, path: str) -> bool:
    """Take in what has come; True: the answer is complete."""
    data = client.socket.recv(1 << 16)
    if not data:
        raise RuntimeError(f"{url}{path}: the server closed the connection")
    if client.n_left:
        client.n_left -= len(data)
        return not client.n_left
    client.data += data
    head, blank, body = bytes(client.data).partition(b"\r\n\r\n")
    if not blank:
        return False
    length = _LENGTH.search(head)
    if not head.startswith(b"HTTP/1.1 200") or length is None:
        raise RuntimeError(f"{url}{path}: {bytes(client.data[:400])!r}")
    client.n_left = int(length[1]) - len(body)
    client.is_last = b"connection: close" in head.lower()
    client.data.clear()
    return not client.n_left


def _ready(selector: selectors.BaseSelector) -> list[tuple[selectors.SelectorKey, int]]:
    ready = selector.select(_SILENCE_S)
    if not ready:
        raise RuntimeError(f"the server sent nothing for {_SILENCE_S} s")
    return ready


def _connect(url: str) -> _Client:
    parts = urlsplit(url)
    client = socket.create_connection((parts.hostname or "", parts.port or 80))
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return _Client(client)


def _request(url: str, path: str, body: Mapping[str, Any] | None, close: bool = False) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", f"Host: {urlsplit(url).netloc}"]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    if close:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode() + data
