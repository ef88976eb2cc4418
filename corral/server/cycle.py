"""One request and its response on a connection, as uvicorn's, but with less work for each message.

The head goes out together with the first part of a body of known length, in one system call, and its header
names are written in their canonical spelling. A message that fits the buffer needs no coroutine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator, Iterable
from typing import Any

from uvicorn.protocols.http.httptools_impl import (
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from corral.server.header_name import canonical_name

_Headers = Iterable[tuple[bytes, bytes]]


class _Sent:
    """Something to await that is over already."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


_SENT = _Sent()


class Cycle(RequestResponseCycle):
    _head = b""  # that waits for the body

    def send(self, message: Any) -> Awaitable[None]:  # type: ignore[override]
        if self.flow.write_paused and not self.disconnected:
            return self._send_later(message)
        self._send_now(message)
        return _SENT

    async def _send_later(self, message: Any) -> None:
        await self.flow.drain()
        self._send_now(message)

    def _send_now(self, message: Any) -> None:
        if self.disconnected:
            return
        kind = message["type"]
        if kind == "http.response.start" and not self.response_started:
            self._start(message["status"], message.get("headers", ()))
        elif kind == "http.response.body" and self.response_started and not self.response_complete:
            self._continue(message.get("body", b""), message.get("more_body", False))
        else:
            raise RuntimeError(f"unexpected ASGI message '{kind}'")

    def _start(self, status: int, headers: _Headers) -> None:
        self.response_started = True
        self.waiting_for_100_continue = False
        lines = [STATUS_LINE[status]]
        closes = False
        for name, value in (*self.default_headers, *headers):
            if HEADER_VALUE_RE.search(value):
                raise RuntimeError("invalid value of a header")
            spelled = canonical_name(name)
            lines += (spelled, b": ", value, b"\r\n")
            if spelled == b"Content-Length" and self.chunked_encoding is None:
                self.expected_content_length = int(value)
                self.chunked_encoding = False
            elif spelled == b"Transfer-Encoding" and value.lower() == b"chunked":
                self.expected_content_length = 0
                self.chunked_encoding = True
            elif spelled == b"Connection" and b"close" in value.lower():
                self.keep_alive, closes = False, True
        if not (self.keep_alive or closes):
            lines.append(b"Connection: close\r\n")
        has_body = self.scope["method"] != "HEAD" and status not in (204, 304)
        if self.chunked_encoding is None and has_body and self.scope["http_version"] != "1.0":
            self.chunked_encoding = True
            lines.append(b"Transfer-Encoding: chunked\r\n")
        lines.append(b"\r\n")
        head = b"".join(lines)
        if has_body and self.chunked_encoding is False:
            self._head = head
        else:
            self.transport.write(head)

    def _continue(self, body: bytes, has_more: bool) -> None:
        if self.scope["method"] == "HEAD":
            self.expected_content_length = 0
        elif self.chunked_encoding:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            self.transport.write(chunk if has_more else chunk + b"0\r\n\r\n")
        elif self.chunked_encoding is None:  # HTTP/1.0 knows no chunks: the body ends with the connection
            self.transport.write(body)
        else:
            self._write_counted(body)
        if has_more:
            return
        if self.expected_content_length:
            raise RuntimeError("the body is shorter than its Content-Length")
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    def _write_counted(self, body: bytes) -> None:
        if len(body) > self.expected_content_length:
            raise RuntimeError("the body is longer than its Content-Length")
        self.expected_content_length -= len(body)
        head, self._head = self._head, b""
        if head:
            self.transport.writelines((head, body))
        else:
            self.transport.write(body)


def open_cycle(protocol: HttpToolsProtocol, arrived: asyncio.Event, keep_alive: bool) -> Cycle:
    """Return the cycle of the request whose header a protocol has read. `arrived`: set when more has come."""
    return Cycle(
        scope=protocol.scope,
        transport=protocol.transport,
        flow=protocol.flow,
        logger=protocol.logger,
        access_logger=protocol.access_logger,
        access_log=False,
        default_headers=protocol.server_state.default_headers,
        message_event=arrived,
        expect_100_continue=protocol.expect_100_continue,
        keep_alive=keep_alive,
        on_response=protocol.on_response_complete,
    )
