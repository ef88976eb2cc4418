"""The connections between a bridge and the actor of its engine: frames, past Ray, which takes ten times as
much CPU time for a message. The actor listens on its node's address; who connects must have its key, which
the bridge got through Ray. Where Ray uses TLS, they do, with the same files.

A connection for each direction: TLS allows no thread to send while another one receives.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
from dataclasses import dataclass

from corral.fleet.ray import tls
from corral.fleet.ray.join import split_address
from corral.link.frame import BlockingChannel, encode_frame

_KEY_BYTES = 32
_COMMANDS, _EVENTS = b"c", b"e"
_GREETING_S = 10.0  # to connect, and for a connection to show its key


@dataclass(frozen=True, slots=True)
class Wire:
    """One end. One thread receives; any number of threads send."""

    incoming: BlockingChannel
    outgoing: BlockingChannel

    def send(self, message: object) -> None:
        """Raises OSError if the other end is gone."""
        self.outgoing.send_frames(encode_frame(message))

    def receive(self) -> bytes | None:
        """Return the next frame's body; None once the other end is gone."""
        try:
            return self.incoming.receive()
        except OSError:
            return None

    def close(self) -> None:
        for channel in (self.incoming, self.outgoing):
            channel.close()


class Door:
    """Listens on a free port of an address, until its bridge has come in."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family)
        self.endpoint = f"{address}:{self._listener.getsockname()[1]}"
        self.key = secrets.token_bytes(_KEY_BYTES)

    def accept(self) -> Wire:
        """Wait for both connections; others are closed."""
        found: dict[bytes, socket.socket] = {}
        with self._listener:
            while len(found) < 2:
                connection, _ = self._listener.accept()
                try:
                    connection = _prepare(connection, is_server=True)
                    role = self._read_role(connection)
                except OSError:
                    connection.close()
                else:
                    found[role] = connection
        return Wire(_channel(found[_COMMANDS]), _channel(found[_EVENTS]))

    def _read_role(self, connection: socket.socket) -> bytes:
        greeting = b""
        while len(greeting) <= _KEY_BYTES and (more := connection.recv(_KEY_BYTES + 1 - len(greeting))):
            greeting += more
        key, role = greeting[:_KEY_BYTES], greeting[_KEY_BYTES:]
        if not hmac.compare_digest(key, self.key) or role not in (_COMMANDS, _EVENTS):
            raise ConnectionError("a stranger")
        return role


def connect(endpoint: str, key: bytes) -> Wire:
    """Come in. Raises OSError."""
    with contextlib.ExitStack() as opened:
        sockets = []
        for role in (_EVENTS, _COMMANDS):
            plain = socket.create_connection(split_address(endpoint), _GREETING_S)
            connection = opened.enter_context(_prepare(plain, is_server=False))
            connection.sendall(key + role)
            sockets.append(connection)
        opened.pop_all()
    return Wire(*map(_channel, sockets))


def _prepare(connection: socket.socket, is_server: bool) -> socket.socket:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.settimeout(_GREETING_S)
    return tls.secure(connection, is_server) if tls.uses_tls() else connection


def _channel(connection: socket.socket) -> BlockingChannel:
    connection.settimeout(None)
    return BlockingChannel(connection)
