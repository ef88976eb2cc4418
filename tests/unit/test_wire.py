"""The connections between a bridge and its host, over real sockets."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from corral.fleet.ray.message import Exit, Part, decode_from_host, decode_to_host
from corral.fleet.ray.tls import FILES
from corral.fleet.ray.wire import Door, connect
from tests.system.certificate import make_certificate

HOST = "127.0.0.1"


@pytest.fixture(params=["plain", "tls"])
def secured(request, tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    if request.param == "tls":
        certificate, key = make_certificate(tmp_path, "node")
        monkeypatch.setenv("RAY_USE_TLS", "1")
        for name, path in zip(FILES, (certificate, key, certificate), strict=True):
            monkeypatch.setenv(name, path)


@pytest.fixture
def door():
    door = Door(HOST)
    yield door
    door._listener.close()


@pytest.fixture
def accepting(door):
    """Who comes in, once the bridge has."""
    with ThreadPoolExecutor(1) as thread:
        host = thread.submit(door.accept)
        yield host
        if not host.done():
            connect(door.endpoint, door.key).close()
        host.result().close()


def address_of(door: Door) -> tuple[str, int]:
    return HOST, int(door.endpoint.rpartition(":")[2])


def is_refused(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1)
    except OSError:
        return True


def test_messages_pass_in_both_directions_until_one_end_is_gone(secured, door, accepting):
    with closing(connect(door.endpoint, door.key)) as bridge:
        host = accepting.result()
        sending = threading.Thread(target=lambda: [bridge.send(Part(bytes(1 << 20))) for _ in range(20)])
        sending.start()
        for code in range(20):
            host.send(Exit(code))
            assert decode_from_host(bridge.receive()) == Exit(code)
            assert decode_to_host(host.receive()) == Part(bytes(1 << 20))
        sending.join()
    assert host.receive() is None


def test_who_does_not_know_the_key_is_not_let_in(secured, door, accepting):
    with socket.create_connection(address_of(door)):
        pass
    with socket.create_connection(address_of(door)) as stranger:
        stranger.sendall(bytes(33))
        assert is_refused(stranger)
    with closing(connect(door.endpoint, bytes(32))) as stranger:
        assert stranger.receive() is None
    with closing(connect(door.endpoint, door.key)) as bridge:
        accepting.result().send(Exit(1))
        assert decode_from_host(bridge.receive()) == Exit(1)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address_of(door))


@pytest.mark.parametrize("secured", ["tls"], indirect=True)
def test_with_tls_a_bridge_needs_a_certificate(secured, door, accepting):
    context = ssl.create_default_context(cafile=os.environ[FILES[-1]])
    plain = socket.create_connection(address_of(door))
    with context.wrap_socket(plain, server_hostname="localhost") as stranger:
        assert is_refused(stranger)
    with closing(connect(door.endpoint, door.key)) as bridge:
        accepting.result().send(Exit(1))
        assert decode_from_host(bridge.receive()) == Exit(1)
