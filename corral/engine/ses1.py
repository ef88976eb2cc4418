"""SES1, the file of a conversation: its tokens and the state of its sequence.

    "SES1" | n: u32 | tokens: n x i32 | state of the sequence, with a seal behind it

The seal says which model it is of, with which adapters and for whom, and carries a checksum. Files may come
from anywhere, and a seal can be forged: nothing of a state that somebody sent reaches native code before its
structure has been checked too. Any thread.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

import numpy as np
import xxhash

from corral.core.chunk import TokenArray
from corral.core.errors import CorralError, InvalidRequest
from corral.core.file import read_into, write_all
from corral.core.media import cell_positions, is_valid_layout
from corral.engine.grouping import Grouping
from corral.engine.ports import StatePort
from corral.engine.reuse_key import ReuseKey
from corral.engine.saved import Saved

VERSION = 1
ADAPTED = 2  # its seal begins with the adapters
OWNED = 3  # its seal begins with adapters and tenant

_head = struct.Struct("<4sI")
_MAGIC = b"SES1"
# Fingerprint of the model, tokens before a shift, version; then the checksum of all that, and a last word.
_seal = struct.Struct("<16sII")
_close = struct.Struct("<16s4s")
_LAST_WORD = b"/SES"
_REUSE_KEY_BYTES = 16  # of adapters, and of a tenant
_NO_ADAPTERS = bytes(_REUSE_KEY_BYTES)
_REUSE_KEY_COUNTS = {VERSION: 0, ADAPTED: 1, OWNED: 2}
_MAX_REUSE_KEY_BYTES = 2 * _REUSE_KEY_BYTES
_SEAL_BYTES = _seal.size + _close.size
OVERHEAD_BYTES = _head.size + _MAX_REUSE_KEY_BYTES + _SEAL_BYTES
# A state begins with a magic number and the sequence it was of, which nobody reads: our mark is there.
_MARK = slice(4, 8)
_SEALED = b"CRL1"
_MIN_STATE_BYTES = 8


@dataclass(frozen=True, slots=True)
class Title:
    """What a sealed file says of itself, without its state."""

    tokens: TokenArray
    shifted_from: int
    fingerprint: bytes
    lora_key: bytes = b""
    tenant: bytes = b""
    n_bytes: int = _SEAL_BYTES  # of the seal

    @property
    def reuse_key(self) -> ReuseKey:
        return ReuseKey(self.lora_key, self.tenant)


class Ses1:
    def __init__(self, port: StatePort, grouping: Grouping) -> None:
        self._port = port
        self._grouping = grouping
        # Grouped states fit only where they are grouped in the same way.
        how = f"{grouping.n} {grouping.width}".encode()
        grouped = xxhash.xxh3_128_digest(port.fingerprint + how)
        self.fingerprint = grouped if grouping.is_active else port.fingerprint

    def write(self, fd: int, saved: Saved) -> int:
        """Write a file from its start; returns its size."""
        parts = self._port.pack(saved.state)
        start = bytes(parts[0][: _MARK.start]) + _SEALED
        head = _head.pack(_MAGIC, len(saved.tokens))
        version = OWNED if saved.tenant else ADAPTED if saved.lora_key else VERSION
        reuse_key = (saved.lora_key or _NO_ADAPTERS) + saved.tenant if saved.tenant else saved.lora_key
        seal = reuse_key + _seal.pack(self.fingerprint, saved.shifted_from, version)
        body: list[bytes | memoryview] = [parts[0][_MARK.stop :], *parts[1:]]
        digest = xxhash.xxh3_128()
        os.lseek(fd, 0, os.SEEK_SET)
        for part in (head, saved.tokens.tobytes(), start, *body, seal):
            digest.update(part)
            write_all(fd, part)
        write_all(fd, _close.pack(digest.digest(), _LAST_WORD))
        return os.lseek(fd, 0, os.SEEK_CUR)

    def read(self, fd: int, is_ours: bool) -> Saved:
        """The content of a file; InvalidRequest says why it cannot be used. `is_ours`: it must be sealed."""
        try:
            n_file = os.fstat(fd).st_size
            tokens = self._read_tokens(fd, n_file)
            return self._read_state(fd, n_file, tokens, is_ours)
        except OSError as error:
            raise CorralError(f"the state cannot be read: {error.strerror}") from None

    def _read_tokens(self, fd: int, n_file: int) -> TokenArray:
        magic, n = _head.unpack(_read_exactly(fd, 0, _head.size, n_file))
        if magic != _MAGIC:
            raise InvalidRequest("this is no SES1 state")
        if n > self._port.n_ctx:
            room = self._port.n_ctx
            raise InvalidRequest(f"the state has {n} tokens, a slot here holds {room} (--ctx-size)")
        tokens = np.frombuffer(_read_exactly(fd, _head.size, 4 * n, n_file), "<i4")
        if n and not (tokens.max() < self._port.n_vocab and is_valid_layout(tokens)):
            raise InvalidRequest("the state has tokens that are none of this model's")
        return tokens

    def _read_state(self, fd: int, n_file: int, tokens: TokenArray, is_ours: bool) -> Saved:
        start = _head.size + tokens.nbytes
        n_bytes = n_file - start
        if not _MIN_STATE_BYTES <= n_bytes <= self._port.max_state_bytes + _MAX_REUSE_KEY_BYTES + _SEAL_BYTES:
            raise InvalidRequest(f"{n_bytes} bytes cannot be the state of {len(tokens)} tokens of this model")
        buffer = np.empty(n_bytes + self._port.state_growth, np.uint8)
        _fill(fd, start, buffer[:n_bytes].data)
        is_sealed = buffer[_MARK].tobytes() == _SEALED
        if is_ours and not is_sealed:
            raise InvalidRequest("this is no state that this server saved, or it is damaged")
        title = None
        if is_sealed:
            title = self._check_seal(tokens, buffer[:n_bytes].data)
            n_bytes -= title.n_bytes
        is_grouped = self._grouping.is_active
        positions = self._grouping.positions(len(tokens)) if is_grouped else cell_positions(tokens)
        state = self._port.unpack(buffer, n_bytes, positions, is_ours)
        if title is None:
            return Saved(tokens, state)
        return Saved(tokens, state, title.shifted_from, lora_key=title.lora_key, tenant=title.tenant)

    def _check_seal(self, tokens: TokenArray, sealed: memoryview) -> Title:
        title, digest = _parse_seal(tokens, bytes(sealed[-_MAX_REUSE_KEY_BYTES - _SEAL_BYTES :]))
        actual = xxhash.xxh3_128(_head.pack(_MAGIC, len(tokens)) + tokens.tobytes())
        actual.update(sealed[: -_close.size])
        if actual.digest() != digest:
            raise InvalidRequest("the state is damaged: its checksum does not match")
        if title.fingerprint != self.fingerprint:
            raise InvalidRequest("the state is of another model, or of another --grp-attn-n or -w")
        return title


def read_title(fd: int) -> Title:
    """What a sealed file has, without a look at its state; InvalidRequest if it is none."""
    n_file = os.fstat(fd).st_size
    magic, n = _head.unpack(_read_exactly(fd, 0, _head.size, n_file))
    if magic != _MAGIC:
        raise InvalidRequest("this is no SES1 state")
    tokens = np.frombuffer(_read_exactly(fd, _head.size, 4 * n, n_file), "<i4")
    n_tail = min(n_file, _MAX_REUSE_KEY_BYTES + _SEAL_BYTES)
    return _parse_seal(tokens, _read_exactly(fd, n_file - n_tail, n_tail, n_file))[0]


def _parse_seal(tokens: TokenArray, data: bytes) -> tuple[Title, bytes]:
    if len(data) < _SEAL_BYTES:
        raise InvalidRequest("the state is cut off")
    start = len(data) - _SEAL_BYTES
    fingerprint, shifted_from, version = _seal.unpack_from(data, start)
    digest, last_word = _close.unpack_from(data, start + _seal.size)
    if last_word != _LAST_WORD:
        raise InvalidRequest("the state is cut off, or damaged at its end")
    n_reuse_key = _REUSE_KEY_COUNTS.get(version, -1) * _REUSE_KEY_BYTES
    if not 0 <= n_reuse_key <= start:
        raise InvalidRequest(f"the state is in version {version} of its format, this server reads {OWNED}")
    reuse_key = data[start - n_reuse_key : start]
    lora_key, tenant = reuse_key[:_REUSE_KEY_BYTES], reuse_key[_REUSE_KEY_BYTES:]
    lora_key = b"" if tenant and lora_key == _NO_ADAPTERS else lora_key
    return Title(tokens, shifted_from, fingerprint, lora_key, tenant, n_reuse_key + _SEAL_BYTES), digest


def _read_exactly(fd: int, offset: int, n: int, n_file: int) -> bytes:
    if offset + n > n_file:
        raise InvalidRequest("the state is cut off")
    buffer = bytearray(n)
    _fill(fd, offset, memoryview(buffer))
    return bytes(buffer)


def _fill(fd: int, offset: int, view: memoryview) -> None:
    if read_into(fd, offset, view) < len(view):
        raise InvalidRequest("the state is cut off")
