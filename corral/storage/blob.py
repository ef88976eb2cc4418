"""Saved states on their way through the front: in anonymous files, never completely in Python's memory.

The engine reads and writes such a file through its descriptor. Only `write` depends on the file offset.
Decoding and long reads block; call them in a thread.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import orjson

from corral.core.errors import CorralError, InsufficientStorage, InvalidRequest, TooLarge
from corral.core.file import open_memory, read_into, write_all
from corral.text.json_depth import check_json

PIECE_BYTES = 3 << 16  # a multiple of three, so that the base64 of pieces joins to base64 of the whole

_EDGE_BYTES = 1024
_HEAD = re.compile(rb'[ \t\n\r]*\{[ \t\n\r]*"state"[ \t\n\r]*:[ \t\n\r]*"')
_TAIL = re.compile(rb'"[ \t\n\r]*\}[ \t\n\r]*\Z')


class Blob:
    """Owns the descriptor of a file with a state, and closes it with the last reference at the latest."""

    _close = staticmethod(os.close)  # at interpreter exit `os` may be gone before the last blob

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def create(cls, what: str = "state") -> Blob:
        """Create an empty file, in memory if the system supports it."""
        return cls(open_memory(what))

    @property
    def fd(self) -> int:
        return self._fd

    @property
    def n_bytes(self) -> int:
        return os.fstat(self._fd).st_size

    def write(self, data: bytes) -> None:
        try:
            write_all(self._fd, data)
        except OSError as error:
            raise InsufficientStorage(f"no space left for it: {error.strerror}") from None

    def duplicate(self) -> Blob:
        """Return a second blob with the same bytes, which is closed separately."""
        return Blob(os.dup(self._fd))

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._close(fd)

    def __enter__(self) -> Blob:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def read_pieces(fd: int, stop: int, start: int = 0) -> Iterator[bytes]:
    """Yield the bytes from `start` to `stop` without moving the file offset."""
    while start < stop:
        data = bytearray(min(PIECE_BYTES, stop - start))
        n_read = read_into(fd, start, memoryview(data))
        if n_read < len(data):
            raise CorralError(f"the saved state is truncated at {start + n_read} bytes")
        start += n_read
        yield bytes(data)


def read_base64(fd: int, n_bytes: int) -> Iterator[bytes]:
    """Yield pieces of the base64 of the file's first `n_bytes`."""
    return map(base64.b64encode, read_pieces(fd, n_bytes))


async def receive(parts: AsyncIterator[bytes], max_bytes: int) -> Blob:
    """Receive a request's body; raises TooLarge as soon as it exceeds the limit."""
    with contextlib.ExitStack() as on_error:
        blob = on_error.enter_context(Blob.create())
        n_bytes = 0
        async for part in parts:
            n_bytes += len(part)
            if n_bytes > max_bytes:
                raise TooLarge(f"the body is larger than {max_bytes} bytes")
            blob.write(part)
        on_error.pop_all()
    return blob


def decode_state(body: Blob, max_json_bytes: int) -> Blob:
    """Decode `{"state": "<base64>"}`.

    An object with only this key is decoded as it is read, at any length. Everything else is parsed in
    memory, up to `max_json_bytes`.
    """
    span = _find_text(body)
    if span is not None:
        start, end = span
        with contextlib.suppress(binascii.Error):
            return _decode(_unescape(read_pieces(body.fd, end, start)))
    if body.n_bytes > max_json_bytes:
        limit = f"{max_json_bytes >> 20} MiB"
        raise InvalidRequest(f"must be base64, and the only field in a body over {limit}", field="state")
    return _decode_json(b"".join(read_pieces(body.fd, body.n_bytes)))


def _find_text(body: Blob) -> tuple[int, int] | None:
    """Return the bounds of the string if head and tail of the body match; the bytes between are not
    checked."""
    tail_at = max(0, body.n_bytes - _EDGE_BYTES)
    head = _HEAD.match(os.pread(body.fd, _EDGE_BYTES, 0))
    tail = _TAIL.search(os.pread(body.fd, _EDGE_BYTES, tail_at))
    if head is None or tail is None or tail_at + tail.start() < head.end():
        return None
    return head.end(), tail_at + tail.start()


def _decode_json(text: bytes) -> Blob:
    check_json(text)
    try:
        body: Any = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise InvalidRequest("the body must be a JSON object")
    if "state" not in body:
        raise InvalidRequest("is required", field="state")
    if not isinstance(body["state"], str):
        raise InvalidRequest("must be a string", field="state")
    try:
        return _decode([body["state"].encode()])
    except binascii.Error as error:
        raise InvalidRequest(f"is not valid base64: {error}", field="state") from None


def _unescape(pieces: Iterable[bytes]) -> Iterator[bytes]:
    r"""Replace `\/`, PHP's escaped slash, by `/`. Other backslashes stay; base64 decoding refuses them."""
    held = b""
    for piece in pieces:
        text = held + piece
        held = b"\\" if text.endswith(b"\\") else b""
        yield text[: len(text) - len(held)].replace(b"\\/", b"/")
    yield held


def _decode(pieces: Iterable[bytes]) -> Blob:
    """Decode base64. Raises `binascii.Error` for anything but whole groups of four, with padding only at the
    end."""
    with contextlib.ExitStack() as on_error:
        blob = on_error.enter_context(Blob.create())
        rest, is_over = b"", False
        for piece in pieces:
            text = rest + piece
            cut = len(text) & ~3
            group, rest = text[:cut], text[cut:]
            if group.count(b"=") > 2 or (is_over and text):
                raise binascii.Error("Excess data after padding")
            is_over = is_over or group.endswith(b"=")
            blob.write(base64.b64decode(group, validate=True))
        if rest:
            raise binascii.Error("Incorrect padding")
        on_error.pop_all()
    return blob
