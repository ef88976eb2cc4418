"""A server on loopback that is as bad as servers can be: it drops, forgets, lies and sends away."""

from __future__ import annotations

import contextlib
import http.server
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

Answer = tuple[int, dict[str, str], bytes]


@dataclass
class Seen:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]


@dataclass
class Served:
    """A file, and how it is served: `cuts` are numbers of bytes after which to hang up, one for each answer;
    `statuses` are given before anything else. `on_answer` may change all of it for the next one.
    """

    content: bytes
    etag: str = ""
    last_modified: str = ""
    ranges: bool = True
    if_range: bool = True
    has_length: bool = True
    cuts: Iterable[int] = ()
    statuses: Iterable[int] = ()
    headers: dict[str, str] = field(default_factory=dict)
    location: str = ""
    token: str = ""
    hold: threading.Event | None = None  # to wait for before hanging up
    on_answer: Callable[[Served], None] = lambda _: None

    def __post_init__(self) -> None:
        self.cuts, self.statuses = iter(self.cuts), iter(self.statuses)


class FileServer:
    """Serves `files` by path; `host` is how it calls itself, to be another one for clients."""

    def __init__(
        self, files: dict[str, Served] | None = None, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self.files = files if files is not None else {}
        self.seen: list[Seen] = []
        self._server = _Server(("127.0.0.1", port), _handler(self))
        self.port = int(self._server.server_address[1])
        self.url = f"http://{host}:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def answer(self, seen: Seen) -> Served | Answer | None:
        """What is served for a request; nothing: 404."""
        return self.files.get(seen.path.partition("?")[0])

    def requests(self, method: str, path: str = "") -> list[Seen]:
        return [seen for seen in self.seen if seen.method == method and path in seen.path]

    def __enter__(self) -> FileServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Also of connections on which nothing is going on."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for connection in self._server.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.connections: list[socket.socket] = []

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.append(request)
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients may leave."""


def _handler(server: FileServer) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer()

        def do_HEAD(self) -> None:
            self._answer()

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

        def _answer(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            seen = Seen(self.command, self.path, headers)
            server.seen.append(seen)
            found = server.answer(seen)
            if isinstance(found, Served):
                self._serve(found, seen)
                found.on_answer(found)
            else:
                self._send(*(found or (404, {}, b"there is nothing")))

        def _serve(self, file: Served, seen: Seen) -> None:
            status = next(_iter(file.statuses), 0)
            if status:
                self._send(status, dict(file.headers), b"no")
            elif file.token and seen.headers.get("authorization") != f"Bearer {file.token}":
                self._send(401, dict(file.headers), b"who are you")
            elif file.location:
                self._send(302, {**file.headers, "Location": file.location}, b"")
            else:
                status, headers, body = _content(file, seen)
                cut = next(_iter(file.cuts), None) if seen.method == "GET" else None
                self._send(status, headers, body, cut, file)

        def _send(
            self,
            status: int,
            headers: dict[str, str],
            body: bytes,
            cut: int | None = None,
            file: Served | None = None,
        ) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if file is None or file.has_length:
                self.send_header("Content-Length", str(len(body)))
            else:
                self.send_header("Connection", "close")
                self.close_connection = True
            self.end_headers()
            if self.command == "HEAD":
                return
            self.wfile.write(body if cut is None else body[:cut])
            if cut is not None and cut < len(body):
                self.wfile.flush()
                if file is not None and file.hold is not None:
                    file.hold.wait()
                self._hang_up()

        def _hang_up(self) -> None:
            """With a reset half of the time, which takes along what was not read yet."""
            if len(server.seen) % 2:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()

    return Handler


def _iter(values: Iterable[int]) -> Iterator[int]:
    assert isinstance(values, Iterator)
    return values


def _content(file: Served, seen: Seen) -> Answer:
    headers = {**file.headers}
    if file.etag:
        headers["ETag"] = file.etag
    if file.last_modified:
        headers["Last-Modified"] = file.last_modified
    asked = re.fullmatch(r"bytes=(\d+)-(\d*)", seen.headers.get("range", ""))
    wanted = seen.headers.get("if-range", "")
    is_same = not wanted or not file.if_range or wanted in (file.etag, file.last_modified)
    if asked is None or not file.ranges or not is_same:
        return 200, headers, file.content
    start, n = int(asked[1]), len(file.content)
    if start >= n:
        return 416, {**headers, "Content-Range": f"bytes */{n}"}, b""
    end = min(int(asked[2]), n - 1) if asked[2] else n - 1
    return 206, {**headers, "Content-Range": f"bytes {start}-{end}/{n}"}, file.content[start : end + 1]
