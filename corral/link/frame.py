"""Frames between processes: four bytes of length, then msgpack. Typed in both directions, no pickle.

Decoding a damaged frame raises one of `DAMAGED`; the process that sent it is replaced.
"""

from __future__ import annotations

import math
import socket
import struct
import threading

import msgspec

from corral.core.result import Event, LoadFailed
from corral.core.settings import EngineSettings
from corral.core.task import Command
from corral.core.top_probs import decode_hook, encode_hook
from corral.text.vocab import VocabFile, VocabTable

_length = struct.Struct("<I")
LENGTH_BYTES = _length.size
_RECEIVE_BYTES = 256 << 10

DAMAGED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_encoder = msgspec.msgpack.Encoder(enc_hook=encode_hook)
decode_events = msgspec.msgpack.Decoder(list[Event], dec_hook=decode_hook).decode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_settings = msgspec.msgpack.Decoder(EngineSettings).decode
decode_vocab_file = msgspec.msgpack.Decoder(VocabFile).decode
decode_vocab = msgspec.msgpack.Decoder(VocabTable | LoadFailed).decode
decode_segments = msgspec.msgpack.Decoder(list[tuple[bytes, bool, bool]]).decode
decode_tokens = msgspec.msgpack.Decoder(list[bytes]).decode


def encode_frame(message: object) -> bytes:
    return wrap_frame(_encoder.encode(message))


def wrap_frame(body: bytes) -> bytes:
    return _length.pack(len(body)) + body


class FrameAssembler:
    """Assembles frame bodies from bytes that are split anywhere."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        self._buffer += data
        bodies: list[bytes] = []
        start = 0
        while len(self._buffer) - start >= LENGTH_BYTES:
            end = start + LENGTH_BYTES + _length.unpack_from(self._buffer, start)[0]
            if len(self._buffer) < end:
                break
            bodies.append(bytes(self._buffer[start + LENGTH_BYTES : end]))
            start = end
        del self._buffer[:start]
        return bodies


class BlockingChannel:
    """A blocking socket with one reader thread and any number of writers. `parcels`: a socket for
    descriptors."""

    def __init__(self, sock: socket.socket, parcels: socket.socket | None = None) -> None:
        self._sock = sock
        self._parcels = parcels
        self._reader = sock.makefile("rb")
        self._lock = threading.Lock()
        self._limit_s = 0

    def send(self, message: object) -> None:
        self.send_frames(encode_frame(message))

    def send_frames(self, frames: bytes) -> None:
        with self._lock:
            self._sock.sendall(frames)

    def ask(self, frame: bytes, limit_s: float | None) -> bytes | None:
        """Send a frame and return the body of the answer; None if the other end is gone. Raises
        TimeoutError."""
        self._limit(limit_s)
        try:
            self._sock.sendall(frame)
            received = self._sock.recv(_RECEIVE_BYTES)
            while len(received) < LENGTH_BYTES and (more := self._sock.recv(_RECEIVE_BYTES)):
                received += more
            if len(received) < LENGTH_BYTES:
                return None
            (n_bytes,) = _length.unpack_from(received)
            body = bytearray(received[LENGTH_BYTES:])
            while len(body) < n_bytes and (more := self._sock.recv(_RECEIVE_BYTES)):
                body += more
            return bytes(body) if len(body) == n_bytes else None
        except ConnectionError:
            return None
        except BlockingIOError:
            raise TimeoutError from None

    def _limit(self, limit_s: float | None) -> None:
        """Set timeouts in the kernel: Python's own timeouts take the GIL twice as often."""
        seconds = math.ceil(limit_s or 0)
        if seconds != self._limit_s:
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                self._sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", seconds, 0))
            self._limit_s = seconds

    def receive(self) -> bytes | None:
        """Return the next frame's body; None once the other end is gone."""
        header = self._reader.read(LENGTH_BYTES)
        if len(header) < LENGTH_BYTES:
            return None
        (n_bytes,) = _length.unpack(header)
        body = self._reader.read(n_bytes)
        return body if len(body) == n_bytes else None

    def receive_fd(self) -> int:
        """Return the next descriptor, which was sent before the frame that refers to it; -1 if too many are
        open."""
        assert self._parcels is not None
        _, fds, _, _ = socket.recv_fds(self._parcels, 1, 1)
        return fds[0] if fds else -1

    def detach(self) -> socket.socket:
        """Return the socket to somebody who reads it otherwise. Nothing may have been received before."""
        self._reader.close()
        return self._sock

    def close(self) -> None:
        if self._parcels is not None:
            self._parcels.close()
        self._reader.close()
        self._sock.close()
