"""Connections are taken in, however few descriptors there are, and however many want in."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import subprocess
import sys

import pytest

from corral.core.settings import ServerSettings
from corral.server.acceptor import Acceptor, raise_open_files, share_for_connections
from corral.server.tls import open_tls
from tests.system.certificate import make_certificate

try:
    import uvloop
except ImportError:  # Windows
    uvloop = None

GENEROUS_S = 60
LOOPS = [asyncio.new_event_loop, *([uvloop.new_event_loop] if uvloop else [])]


class Echo(asyncio.Protocol):
    open: set[Echo] = set()

    def connection_made(self, transport) -> None:
        self.transport = transport
        self.open.add(self)

    def connection_lost(self, _error) -> None:
        self.open.discard(self)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Unlucky(socket.socket):
    """Cannot accept now and then."""

    failures: list[int] = []

    def accept(self):
        if self.failures:
            raise OSError(self.failures.pop(), "no")
        return super().accept()


@contextlib.asynccontextmanager
async def accepting(kind: type[socket.socket] = socket.socket, **options):
    with kind() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        acceptor = Acceptor([listening], Echo, Echo.open, **options)
        try:
            yield listening.getsockname()[1]
        finally:
            acceptor.close()
            await acceptor.wait_closed()
            while Echo.open:
                for connection in list(Echo.open):
                    connection.transport.abort()
                await asyncio.sleep(0.01)


async def echoes(port: int) -> bool:
    """Whether somebody is let in, and heard."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"hello")
    try:
        return await asyncio.wait_for(reader.read(5), GENEROUS_S) == b"hello"
    except ConnectionError:
        return False
    finally:
        writer.close()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EPERM])
async def test_a_failure_is_not_the_end(number, caplog):
    Unlucky.failures = [number] * 3
    async with accepting(Unlucky) as port:
        for _ in range(2):
            assert await echoes(port)
    assert not Unlucky.failures
    assert caplog.text.count("cannot accept connections") == 1


@pytest.mark.parametrize("number", [errno.ECONNABORTED, errno.EINTR, errno.EAGAIN])
async def test_what_is_no_failure(number, caplog):
    Unlucky.failures = [number] * 3
    async with accepting(Unlucky) as port:
        assert await echoes(port)
    assert not caplog.text


async def test_no_more_than_there_is_room_for(caplog):
    async with accepting(max_connections=3) as port:
        pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for reader, writer in pairs:
            writer.write(b"x")
            assert await asyncio.wait_for(reader.read(1), GENEROUS_S) == b"x"
        for _ in range(5):
            assert not await echoes(port)
        pairs[0][1].close()
        while len(Echo.open) > 2:
            await asyncio.sleep(0.01)
        assert await echoes(port)
        for _, writer in pairs[1:]:
            writer.close()
    assert caplog.text.count("limit of 3 connections reached, refusing further ones") == 1


async def test_many_at_once():
    async with accepting() as port:
        assert all(await asyncio.gather(*(echoes(port) for _ in range(300))))


@pytest.mark.parametrize("n_steps", range(12))
@pytest.mark.parametrize("new_loop", LOOPS)
def test_who_arrives_while_it_closes_is_disconnected(new_loop, n_steps):
    async def arrive() -> None:
        async with accepting() as port:
            with socket.create_connection(("127.0.0.1", port)):
                for _ in range(n_steps):
                    await asyncio.sleep(0)

    with contextlib.closing(new_loop()) as loop:
        loop.run_until_complete(asyncio.wait_for(arrive(), GENEROUS_S))
    assert not Echo.open


async def test_who_says_nothing_where_encryption_is_agreed_on(tmp_path):
    certificate, key = make_certificate(tmp_path, "ours")
    tls = open_tls(ServerSettings(ssl_cert_file=certificate, ssl_key_file=key))
    async with accepting(tls=tls, handshake_s=0.3, max_connections=1) as port:
        for start in (b"", b"\x16\x03\x01"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(start)
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), GENEROUS_S) == b""
            writer.close()
        assert not Echo.open


def test_as_many_files_as_the_system_allows():
    program = (
        "import resource as r; from corral.server.acceptor import raise_open_files\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (64, 256))\n"
        "print(raise_open_files(), *r.getrlimit(r.RLIMIT_NOFILE), raise_open_files())"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=GENEROUS_S
    )
    assert result.stdout.split() == ["256"] * 4, result.stderr


def test_some_are_left_for_other_things():
    assert share_for_connections(1024) == 768
    assert share_for_connections(0) == 0
    assert raise_open_files() > 0
