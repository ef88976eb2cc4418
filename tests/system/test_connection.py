"""Connections to uvicorn as the server starts it: clients that do nothing are cut off, others never."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from typing import Any

import anyio.to_thread
import pytest

from corral.server.app import use_threads
from corral.server.connection import IdleTimer, bounded_protocol
from tests.system.edge import GENEROUS_S, TIMEOUT_S, echo, serving

SIZE = 64 << 20  # more than all buffers between two sockets


async def plenty(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(SIZE >> 20):
        await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
    await send({"type": "http.response.body"})


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nhost: x\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ],
)
async def test_a_client_that_stops_in_a_request_is_cut_off(start):
    async with serving(echo) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        began = time.monotonic()
        writer.write(start)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), GENEROUS_S) == b""
        assert time.monotonic() - began >= TIMEOUT_S / 2
        writer.close()


POST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello"


async def test_a_client_that_only_closes_its_side_gets_its_answer():
    asked, probed = asyncio.Event(), asyncio.Event()

    async def app(scope, receive, send):
        body = (await receive())["body"]
        asked.set()
        await probed.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async with serving(app) as port:
        for waits in (True, False):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(POST)
            if waits:
                await asyncio.wait_for(asked.wait(), GENEROUS_S)
            writer.write_eof()
            if waits:
                await asyncio.wait_for(reader.readuntil(b" 100 Continue\r\n\r\n"), GENEROUS_S)
            probed.set()
            answer = await asyncio.wait_for(reader.read(), GENEROUS_S)  # the connection is closed then
            assert b"HTTP/1.1 200 OK\r\n" in answer
            assert b"hello" in answer
            writer.close()


async def test_a_client_that_closes_both_sides_is_gone():
    asked, left = asyncio.Event(), asyncio.Event()

    async def app(scope, receive, send):
        await receive()
        asked.set()
        assert (await receive())["type"] == "http.disconnect"
        left.set()

    async with serving(app) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(POST)
        await asyncio.wait_for(asked.wait(), GENEROUS_S)
        writer.close()
        await asyncio.wait_for(left.wait(), GENEROUS_S)


async def test_so_it_is_in_its_second_request():
    async with serving(echo) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n0")).startswith(b"HTTP/1.1 200")
        writer.write(b"GET / HTTP/1.1\r\nho")
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), GENEROUS_S) == b""
        writer.close()


async def test_a_client_that_takes_nothing_is_cut_off():
    gone = asyncio.Event()

    async def app(scope, receive, send):
        try:
            await plenty(scope, receive, send)
        finally:
            gone.set()

    async with serving(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.wait_for(gone.wait(), GENEROUS_S)
        n = 0
        with contextlib.suppress(ConnectionError):
            while part := await reader.read(1 << 20):
                n += len(part)
        assert n < SIZE
        writer.close()


async def test_a_client_that_takes_a_little_now_and_then_is_cut_off_by_the_send_timeout():
    gone = asyncio.Event()

    async def app(scope, receive, send):
        try:
            await plenty(scope, receive, send)
        finally:
            gone.set()

    async with serving(app, timeout_s=0, send_timeout_s=TIMEOUT_S) as port:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", port))
            client.setblocking(False)
            client.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            n = 0
            while not gone.is_set():
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    n += len(client.recv(100))
                await asyncio.sleep(0.01)
        assert 0 < n < SIZE


async def test_a_client_that_reads_steadily_is_not():
    async with serving(plenty, timeout_s=0, send_timeout_s=TIMEOUT_S) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        n = 0
        while part := await asyncio.wait_for(reader.read(1 << 20), GENEROUS_S):
            n += len(part)
        assert n > SIZE
        writer.close()


@pytest.mark.parametrize("connection", [b"close", b"keep-alive"])
@pytest.mark.parametrize("is_much", [True, False])
async def test_so_it_is_when_the_answer_was_over(connection, is_much):
    """What is left of it would wait for ever, and with it the end of the server."""
    transports, lost = [], asyncio.Event()

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        n_full = 0
        while n_full < 5:  # the system takes no more, and it stays so
            await send({"type": "http.response.body", "body": bytes(4096), "more_body": True})
            if transports[0].get_write_buffer_size():
                await asyncio.sleep(0.02)
                n_full += bool(transports[0].get_write_buffer_size())
        await send({"type": "http.response.body", "body": bytes(SIZE if is_much else 1)})

    base: Any = bounded_protocol(TIMEOUT_S)

    class Watched(base):
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            transports.append(transport)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            lost.set()

    async with serving(app, protocol=Watched) as port:
        with socket.socket() as client:
            client.setblocking(False)
            await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
            client.send(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: %s\r\n\r\n" % connection)
            await asyncio.wait_for(lost.wait(), GENEROUS_S)
            got = b""
            with contextlib.suppress(ConnectionError):
                while part := client.recv(1 << 20):
                    got += part
        assert got
        assert not got.endswith(b"\r\n0\r\n\r\n")


async def test_time_in_which_the_server_works_does_not_count():
    async def app(scope, receive, send):
        await asyncio.sleep(4 * TIMEOUT_S)
        await echo(scope, receive, send)

    async with serving(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for request in (
            b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
            b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\n",
        ):
            writer.write(request)
            if b"100-continue" in request:
                await asyncio.wait_for(reader.readuntil(b"100 Continue\r\n\r\n"), GENEROUS_S)
                writer.write(b"x")
            assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), GENEROUS_S)).startswith(
                b"HTTP/1.1 200"
            )
            await reader.readexactly(1)
        writer.close()


async def test_connections_that_are_kept_are_uvicorn_s_business():
    async with serving(echo, timeout_s=0.2) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n0"), GENEROUS_S)).startswith(
                b"HTTP/1.1 200"
            )
            await asyncio.sleep(1)
        writer.close()


async def test_without_a_timeout_there_is_all_the_time_in_the_world():
    async with serving(echo, timeout_s=0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\na")
        await asyncio.sleep(1)
        writer.write(b"b")
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n2"), GENEROUS_S)).startswith(
            b"HTTP/1.1 200"
        )
        writer.close()


class TestPatience:
    def test_a_slow_sender_may_go_on(self):
        timer = IdleTimer(10, 0)
        for now in range(5, 100, 5):
            assert not timer.is_over(now, 0, must_send=True)
            timer.on_activity(now)
        assert not timer.is_over(104, 0, must_send=True)
        assert timer.is_over(105, 0, must_send=True)

    def test_a_slow_reader_may_go_on(self):
        timer = IdleTimer(10, 0)
        for now in range(5, 100, 5):
            assert not timer.is_over(now, 1000 - now, must_send=False)
        assert not timer.is_over(104, 905, must_send=False)
        assert timer.is_over(105, 905, must_send=False)

    def test_the_clock_stands_still_while_nothing_is_up_to_the_client(self):
        timer = IdleTimer(10, 0)
        for now in range(0, 1000, 5):
            assert not timer.is_over(now, 0, must_send=False)
        assert not timer.is_over(1004, 0, must_send=True)
        assert timer.is_over(1005, 0, must_send=True)


@pytest.mark.parametrize("n", [1, 3])
async def test_so_many_threads_and_no_more(n):
    use_threads(n)
    together, n_now, n_most = threading.Barrier(n), 0, 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal n_now, n_most
        with lock:
            n_now += 1
            n_most = max(n_most, n_now)
        together.wait(GENEROUS_S)
        time.sleep(0.01)
        with lock:
            n_now -= 1

    for run in (asyncio.to_thread, anyio.to_thread.run_sync):
        await asyncio.gather(*(run(work) for _ in range(4 * n)))
        assert n_most == n
        n_most = 0


async def test_otherwise_as_many_as_others_think_fit():
    use_threads(-1)
    together = threading.Barrier(3)
    for run in (asyncio.to_thread, anyio.to_thread.run_sync):
        await asyncio.gather(*(run(together.wait, GENEROUS_S) for _ in range(3)))


async def named(scope, receive, send):
    headers = [(b"access-control-allow-origin", b"http://a: b"), (b"x-request-id", b"1"), (b"etag", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"lower: case\r\n\r\n", "more_body": True})
    await send({"type": "http.response.body", "body": b"x-more: y"})


async def test_header_names_are_written_in_their_canonical_spelling():
    async with serving(named) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\nx")
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        text = (await asyncio.wait_for(reader.read(), GENEROUS_S)).decode()
        writer.close()
    for head in text.split("HTTP/1.1 200 OK\r\n")[1:]:
        names = [line.partition(":")[0] for line in head.partition("\r\n\r\n")[0].splitlines()]
        assert {"Access-Control-Allow-Origin", "X-Request-Id", "ETag", "Transfer-Encoding", "Date"} <= {
            *names
        }
        assert "lower: case\r\n\r\n" in head
        assert "x-more: y" in head
    assert text.count("Access-Control-Allow-Origin: http://a: b\r\n") == 2
    assert "Connection: close" in text


async def test_so_they_are_in_what_the_connection_answers_by_itself():
    async with serving(named) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"nonsense\r\n\r\n")
        text = (await asyncio.wait_for(reader.read(), GENEROUS_S)).decode()
        writer.close()
    assert "\r\nContent-Type: application/json" in text
    assert "\r\nConnection: close\r\n" in text
