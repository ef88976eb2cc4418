"""Requests that are too much or come too slowly are cut off, over real sockets; all others are not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time

import pytest

from corral.server.connection import Awaited, Delivery, Limits
from tests.system.edge import GENEROUS_S, echo, serving

SIZE = 64 << 20
SHORT = Limits(header_s=0.4, body_s=0.4, linger_s=GENEROUS_S)
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


class TestDelivery:
    LIMITS = Limits(header_s=10, body_s=10, body_bytes_per_s=500)

    def waited(self, delivery: Delivery, seconds: int, n_bytes_per_s: int = 0, is_turn: bool = True) -> int:
        """After how many of them it was over."""
        for second in range(seconds):
            self.now += 1
            delivery.n_bytes += n_bytes_per_s
            if delivery.is_over(self.now, is_turn):
                return second + 1
        return 0

    def begin(self, awaited: Awaited) -> Delivery:
        self.now = 0
        delivery = Delivery(self.LIMITS, 0)
        delivery.expect(awaited, 0)
        return delivery

    def test_a_header_has_its_time_however_much_of_it_comes(self):
        assert self.waited(self.begin(Awaited.HEADER), 100, n_bytes_per_s=5000) == 10

    def test_a_body_may_be_slow_but_not_too_slow(self):
        assert self.waited(self.begin(Awaited.BODY), 1000, n_bytes_per_s=500) == 0
        assert self.waited(self.begin(Awaited.BODY), 1000, n_bytes_per_s=499) == 10
        late = self.begin(Awaited.BODY)
        late.n_bytes = 20_000  # worth forty seconds
        assert self.waited(late, 1000) == 41

    def test_what_is_left_of_a_body_that_was_answered_has_no_more_than_that(self):
        assert self.waited(self.begin(Awaited.REST), 1000, n_bytes_per_s=1 << 30) == 10

    def test_nothing_is_never_too_late(self):
        assert self.waited(self.begin(Awaited.NOTHING), 1000) == 0

    @pytest.mark.parametrize("awaited", [Awaited.HEADER, Awaited.BODY, Awaited.REST])
    def test_the_server_s_own_time_does_not_count(self, awaited):
        delivery = self.begin(awaited)
        assert self.waited(delivery, 1000, is_turn=False) == 0
        assert self.waited(delivery, 9) == 0
        assert self.waited(delivery, 1) == 1

    @pytest.mark.parametrize("awaited", [Awaited.HEADER, Awaited.BODY, Awaited.REST])
    def test_a_server_that_stood_still_blames_nobody(self, awaited):
        """What the client has sent meanwhile may still be unread."""
        delivery = self.begin(awaited)
        assert not delivery.is_over(3600, True)
        assert not delivery.is_over(3601, True)


async def send_all(port: int, data: bytes) -> bytes:
    """What comes back until the connection ends; a server that has heard enough need not hear the rest."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        return await asyncio.wait_for(reader.read(), GENEROUS_S)
    finally:
        writer.close()


def read_error(answer: bytes, status: int) -> dict:
    """The error, in the shape of all errors, and nothing behind it."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer[:200]
    assert b"\r\nConnection: close" in head
    assert b"\r\nContent-Length: %d" % len(body) in head
    error = json.loads(body)["error"]
    assert (error["code"], error["type"]) == (status, "invalid_request_error")
    return error


def lines(n: int, size: int = 0) -> bytes:
    return b"".join(b"h%d: %b\r\n" % (i, b"x" * size) for i in range(n))


class TestHeaders:
    @pytest.mark.parametrize(
        "request_",
        [
            b"GET / HTTP/1.1\r\nhost: x\r\n" + lines(99) + b"\r\n",
            b"GET / HTTP/1.1\r\nhost: x\r\n" + lines(60, 1000) + b"\r\n",
            b"GET /" + b"x" * 60_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
            b"GET / HTTP/1.1\r\nhost: x\r\nlong: " + b"x" * 65_000 + b"\r\n\r\n",
            POST % 300_000 + bytes(300_000),
            b"\r\n\r\n" + GET,
        ],
    )
    async def test_what_is_not_too_much(self, request_):
        async with serving(echo, GENEROUS_S) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(2):
                writer.write(request_)
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n0"), GENEROUS_S)
                assert head.startswith(b"HTTP/1.1 200")
            writer.close()

    @pytest.mark.parametrize(
        "request_",
        [
            b"GET / HTTP/1.1\r\nhost: x\r\n" + lines(100) + b"\r\n",
            b"GET / HTTP/1.1\r\nhost: x\r\n" + lines(100_000),
            b"GET / HTTP/1.1\r\nhost: x\r\n" + lines(70, 1000) + b"\r\n",
            b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
            b"GET /" + b"x" * 2_000_000,
            b"GET / HTTP/1.1\r\nhost: x\r\nlong: " + b"x" * 66_000 + b"\r\n\r\n",
            b"GET / HTTP/1.1\r\nhost: x\r\nlong: " + b"x" * 2_000_000,
            b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x" * 2_000_000,
            b"\r\n" * 1_000_000,
        ],
    )
    @pytest.mark.parametrize("n_before", [0, 1])
    async def test_what_is_too_much(self, request_, n_before):
        async with serving(echo, GENEROUS_S) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(n_before):
                writer.write(GET)
                await asyncio.wait_for(reader.readuntil(b"\r\n\r\n0"), GENEROUS_S)
            writer.write(request_)
            error = read_error(await asyncio.wait_for(reader.read(), GENEROUS_S), 431)
            assert "64 KiB and 100 lines" in error["message"]
            writer.close()

    @pytest.mark.parametrize(
        "rest", [lines(120), b"long: " + b"x" * 400_000, b"0;" + b"x" * 400_000, b"\xff" * 400_000]
    )
    async def test_what_comes_behind_a_body(self, rest):
        """It is no part of the request, and no way around the limits either."""
        async with serving(echo, GENEROUS_S) as port:
            answer = await send_all(port, CHUNKED + (b"" if rest[:2] == b"0;" else b"0\r\n") + rest)
            read_error(answer, 400 if rest[:1] == b"\xff" else 431)

    async def test_headers_behind_a_body_are_ignored(self):
        seen = []

        async def app(scope, receive, send):
            await echo(scope, receive, send)
            seen.extend(name for name, _ in scope["headers"])

        async with serving(app, GENEROUS_S) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(CHUNKED + b"1\r\nx\r\n0\r\nhost: y\r\nx-api-key: z\r\n\r\n")
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n1"), GENEROUS_S)
            writer.close()
        assert seen == [b"host", b"transfer-encoding"]

    @pytest.mark.parametrize(
        "data", [b"\x16\x03\x01\x02\x00", b"NONSENSE\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"]
    )
    async def test_what_is_no_http(self, data):
        async with serving(echo, GENEROUS_S) as port:
            read_error(await send_all(port, data), 400)

    @pytest.mark.parametrize(
        ("target", "hosts"),
        [
            (b"/", [b"x"]),
            (b"//evil.example/", [b"x"]),
            (b"http://evil.example/", [b"evil.example"]),
            (b"HTTPS://Evil.example:81/a?b", [b"Evil.example:81"]),
            (b"http://x@evil.example/", [b"evil.example"]),
            (b"http://[::1]:8080/", [b"[::1]:8080"]),
        ],
    )
    async def test_the_host_of_a_target_counts(self, target, hosts):
        seen = []

        async def app(scope, receive, send):
            seen.extend(value for name, value in scope["headers"] if name == b"host")
            await echo(scope, receive, send)

        async with serving(app, GENEROUS_S) as port:
            for lines in (b"host: x\r\na: b\r\n", b"") if target[:1] != b"/" else (b"host: x\r\n",):
                seen.clear()
                request = b"GET %b HTTP/1.1\r\n%bconnection: close\r\n\r\n" % (target, lines)
                assert (await send_all(port, request)).startswith(b"HTTP/1.1 200")
                assert seen == hosts

    async def test_an_upgrade_is_a_request_like_others(self):
        upgrade = b"host: x\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\r\n"
        async with serving(echo, GENEROUS_S) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\n" + upgrade)
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n0"), GENEROUS_S)
            assert head.startswith(b"HTTP/1.1 200")
            writer.close()


class TestSlowSenders:
    @pytest.mark.parametrize("start", [b"GET /", b"GET / HTTP/1.1\r\nhost: x\r\n", b"\r\n"])
    @pytest.mark.parametrize("n_before", [0, 1])
    async def test_a_header_that_does_not_end(self, start, n_before):
        async with serving(echo, GENEROUS_S, limits=SHORT) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(n_before):
                writer.write(GET)
                await asyncio.wait_for(reader.readuntil(b"\r\n\r\n0"), GENEROUS_S)
            dribbling = asyncio.create_task(dribble(writer, start, b"x" if start.strip() else start))
            error = read_error(await read_answer(reader, dribbling), 408)
            assert "too slowly" in error["message"]
            writer.close()

    async def test_a_connection_that_says_nothing(self):
        async with serving(echo, GENEROUS_S, limits=SHORT) as port:
            began = time.monotonic()
            assert await send_all(port, b"") == b""
            assert time.monotonic() - began >= SHORT.header_s / 2

    async def test_a_connection_that_is_kept_has_time(self):
        async with serving(echo, GENEROUS_S, limits=SHORT) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(2):
                writer.write(GET)
                await asyncio.wait_for(reader.readuntil(b"\r\n\r\n0"), GENEROUS_S)
                await asyncio.sleep(3 * SHORT.header_s)
            writer.close()

    @pytest.mark.parametrize("start", [POST % 100_000, CHUNKED, CHUNKED + b"186A0;x="])
    async def test_a_body_that_comes_too_slowly(self, start):
        gone = asyncio.Event()

        async def app(scope, receive, send):
            while (await receive())["type"] != "http.disconnect":
                pass
            gone.set()

        async with serving(app, GENEROUS_S, limits=SHORT) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            sign = b"1\r\nx\r\n" if start == CHUNKED else b"x"
            dribbling = asyncio.create_task(dribble(writer, start, sign))
            read_error(await read_answer(reader, dribbling), 408)
            await asyncio.wait_for(gone.wait(), GENEROUS_S)
            writer.close()

    async def test_a_body_that_is_slow_but_not_too_slow(self):
        limits = Limits(header_s=0.4, body_s=0.4, body_bytes_per_s=0.001)
        async with serving(echo, GENEROUS_S, limits=limits) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(POST % 8)
            for _ in range(8):
                writer.write(b"x")
                await asyncio.sleep(0.2)
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n8"), GENEROUS_S)
            assert head.startswith(b"HTTP/1.1 200")
            writer.close()

    async def test_the_server_s_own_time_does_not_count(self):
        """Neither before it reads, nor while it cannot read on, nor while it answers."""
        limits = Limits(header_s=1, body_s=1, body_bytes_per_s=250_000)

        async def app(scope, receive, send):
            n, n_parts, more = 0, 0, True
            while more:
                if n_parts < 2:  # at the beginning, and when more has come than is read at once
                    await asyncio.sleep(3)
                message, n_parts = await receive(), n_parts + 1
                n, more = n + len(message["body"]), message["more_body"]
            await asyncio.sleep(3)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"%d" % n})

        async with serving(app, GENEROUS_S, limits=limits) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write((POST % 400_000).replace(b"host", b"expect: 100-continue\r\nhost"))
            await asyncio.wait_for(reader.readuntil(b"100 Continue\r\n\r\n"), GENEROUS_S)
            writer.write(bytes(400_000))
            answer = await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), GENEROUS_S)
            assert b"\r\n400000\r\n" in answer
            writer.close()

    async def test_what_is_left_of_a_body_that_was_answered(self):
        async def app(scope, receive, send):
            await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body"})

        async with serving(app, GENEROUS_S, limits=SHORT) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            dribbling = asyncio.create_task(dribble(writer, POST % SIZE, bytes(1000)))
            answer = b""
            with contextlib.suppress(ConnectionError):
                while part := await asyncio.wait_for(reader.read(1000), GENEROUS_S):
                    answer += part
            assert answer.count(b"HTTP/1.1") == 1
            dribbling.cancel()
            writer.close()

    async def test_the_rest_may_come_and_the_next_request_too(self):
        async def app(scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]})
            await send({"type": "http.response.body", "body": b"0"})

        async with serving(app, GENEROUS_S) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(3):
                writer.write(POST % 4 + b"ab")
                await asyncio.wait_for(reader.readuntil(b"\r\n\r\n0"), GENEROUS_S)
                writer.write(b"cd")
            writer.close()

    async def test_the_beginning_of_a_next_request_waits_for_this_one(self):
        async def app(scope, receive, send):
            await asyncio.sleep(4 * SHORT.header_s)
            await echo(scope, receive, send)

        async with serving(app, GENEROUS_S, limits=SHORT) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET + GET[:10])
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n0"), GENEROUS_S)
            assert head.startswith(b"HTTP/1.1 200")
            read_error(await asyncio.wait_for(reader.read(), GENEROUS_S), 408)
            writer.close()

    async def test_nothing_is_written_into_the_answer_to_another(self):
        async def app(scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"part", "more_body": True})
            await receive()
            while (await receive())["type"] != "http.disconnect":
                pass

        async with serving(app, GENEROUS_S, limits=SHORT) as port:
            answer = b""
            with contextlib.suppress(ConnectionError):
                answer = await send_all(port, GET + b"NONSENSE\r\n\r\n")
            assert answer.count(b"HTTP/1.1") <= 1

    async def test_many_of_them_hurt_nobody(self):
        """A hundred that dribble, and one that asks as usual all the while."""
        limits = Limits(header_s=2, body_s=2)
        async with serving(echo, GENEROUS_S, limits=limits) as port:
            ends, writers = [], []
            for i in range(100):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                dribbling = asyncio.create_task(dribble(writer, (b"GET /", POST % SIZE)[i % 2]))
                ends.append(asyncio.create_task(read_answer(reader, dribbling)))
                writers.append(writer)
            n_served = 0
            while not n_served or not all(end.done() for end in ends):
                answer = await send_all(port, GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
                assert answer.startswith(b"HTTP/1.1 200")
                n_served += 1
            for end in ends:
                read_error(end.result(), 408)
            for writer in writers:
                writer.close()


async def dribble(writer: asyncio.StreamWriter, start: bytes, sign: bytes = b"x") -> None:
    writer.write(start)
    with contextlib.suppress(ConnectionError):
        while not writer.is_closing():
            await asyncio.sleep(0.02)
            writer.write(sign)


async def read_answer(reader: asyncio.StreamReader, dribbling: asyncio.Task) -> bytes:
    """What comes back until the connection ends. Writing ends where it begins: a write that fails would lose
    what is not read yet."""
    start = await asyncio.wait_for(reader.read(1), GENEROUS_S)
    dribbling.cancel()
    return start + await asyncio.wait_for(reader.read(), GENEROUS_S)
