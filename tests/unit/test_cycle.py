"""How responses are written: what belongs together goes out together."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from corral.server.cycle import Cycle


class Transport:
    """Keeps what was written, one entry for each call."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def writelines(self, parts: tuple[bytes, ...]) -> None:
        self.written.append(b"".join(parts))

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


class Flow:
    write_paused = False

    def __init__(self) -> None:
        self.drained = asyncio.Event()

    async def drain(self) -> None:
        await self.drained.wait()


@pytest.fixture
def transport():
    return Transport()


@pytest.fixture
def open_cycle(transport):
    def open_cycle(method: str = "GET", keep_alive: bool = True, version: str = "1.1") -> Cycle:
        logger: Any = logging.getLogger("test")
        scope: Any = {"type": "http", "method": method, "http_version": version}
        flow: Any = Flow()
        event, on_response = asyncio.Event(), lambda: None
        headers = [(b"date", b"today")]
        return Cycle(
            scope, transport, flow, logger, logger, False, headers, event, False, keep_alive, on_response
        )

    return open_cycle


async def respond(cycle: Cycle, *bodies: bytes, status: int = 200, headers=()) -> None:
    await cycle.send({"type": "http.response.start", "status": status, "headers": list(headers)})
    for i, body in enumerate(bodies, 1):
        await cycle.send({"type": "http.response.body", "body": body, "more_body": i < len(bodies)})


async def test_a_response_of_known_length_is_written_at_once(open_cycle, transport):
    await respond(open_cycle(), b"ok", headers=[(b"content-length", b"2"), (b"etag", b"x")])
    head = b"HTTP/1.1 200 OK\r\nDate: today\r\nContent-Length: 2\r\nETag: x\r\n\r\n"
    assert transport.written == [head + b"ok"]


async def test_a_stream_begins_at_once(open_cycle, transport):
    cycle = open_cycle()
    await respond(cycle)
    assert transport.written == [b"HTTP/1.1 200 OK\r\nDate: today\r\nTransfer-Encoding: chunked\r\n\r\n"]
    await cycle.send({"type": "http.response.body", "body": b"abc", "more_body": True})
    await cycle.send({"type": "http.response.body"})
    assert transport.written[1:] == [b"3\r\nabc\r\n", b"0\r\n\r\n"]


async def test_a_stream_to_an_old_client_ends_with_the_connection(open_cycle, transport):
    await respond(open_cycle(keep_alive=False, version="1.0"), b"abc", b"", b"d")
    head = b"HTTP/1.1 200 OK\r\nDate: today\r\nConnection: close\r\n\r\n"
    assert b"".join(transport.written) == head + b"abcd"
    assert transport.is_closed


async def test_head_has_no_body(open_cycle, transport):
    cycle = open_cycle("HEAD")
    await respond(cycle, b"ok", headers=[(b"content-length", b"2")])
    assert transport.written == [b"HTTP/1.1 200 OK\r\nDate: today\r\nContent-Length: 2\r\n\r\n"]
    assert cycle.response_complete


@pytest.mark.parametrize("status", [204, 304])
async def test_a_response_without_a_body_is_written(open_cycle, transport, status):
    await respond(open_cycle(), b"", status=status)
    assert b"".join(transport.written).endswith(b"Date: today\r\n\r\n")


async def test_the_last_response_closes_the_connection(open_cycle, transport):
    await respond(open_cycle(keep_alive=False), b"ok", headers=[(b"content-length", b"2")])
    assert b"Connection: close\r\n" in transport.written[0]
    assert transport.is_closed


async def test_a_full_buffer_is_waited_for(open_cycle, transport):
    cycle = open_cycle()
    cycle.flow.write_paused = True
    sending = asyncio.ensure_future(respond(cycle, b"ok", headers=[(b"content-length", b"2")]))
    await asyncio.sleep(0)
    assert not transport.written
    cycle.flow.write_paused = False
    cycle.flow.drained.set()
    await sending
    assert len(transport.written) == 1


@pytest.mark.parametrize("body", [b"short", b"much too long"])
async def test_a_body_that_breaks_its_length_is_a_bug(open_cycle, body):
    with pytest.raises(RuntimeError):
        await respond(open_cycle(), body, headers=[(b"content-length", b"8")])


async def test_a_header_cannot_begin_another_one(open_cycle):
    with pytest.raises(RuntimeError):
        await respond(open_cycle(), headers=[(b"x", b"a\r\nset-cookie: b")])
