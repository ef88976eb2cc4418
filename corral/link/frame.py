"""Frames between the two processes: four bytes of length, then msgpack. Typed both ways, no pickle."""

from __future__ import annotations

import socket
import struct
import threading

import msgspec

from corral.core.result import Event
from corral.core.settings import EngineSettings
from corral.core.task import Order

_length = struct.Struct("<I")
LENGTH_BYTES = _length.size

_encoder = msgspec.msgpack.Encoder()
decode_events = msgspec.msgpack.Decoder(list[Event]).decode
decode_order = msgspec.msgpack.Decoder(Order).decode
decode_settings = msgspec.msgpack.Decoder(EngineSettings).decode


def encode_frame(message: object) -> bytes:
    body = _encoder.encode(message)
    return _length.pack(len(body)) + body


def parse_length(header: bytes) -> int:
    return int(_length.unpack(header)[0])


class BlockingChannel:
    """The engine's end: one reader thread, any number of writers."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = sock.makefile("rb")
        self._lock = threading.Lock()

    def send(self, message: object) -> None:
        with self._lock:
            self._sock.sendall(encode_frame(message))

    def receive(self) -> bytes | None:
        """The next frame's body; None once the other end is gone."""
        header = self._reader.read(LENGTH_BYTES)
        if len(header) < LENGTH_BYTES:
            return None
        return self._reader.read(parse_length(header))

    def close(self) -> None:
        self._reader.close()
        self._sock.close()
