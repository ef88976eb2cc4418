"""SES1, the file of a conversation: its tokens and the state of its sequence.

    "SES1" | n: u32 | tokens: n x i32 | state of the sequence | checkpoints | seal

The seal has the model's fingerprint, the adapters, the tenant and a checksum. Most files have no checkpoints
(`ses1_table.py`). Files may come from anywhere, and a seal can be forged: no state from a client reaches
native code before its structure has been checked too. A signature shows that this server, or one with the
same secret, wrote the file, and for which tenant. Any thread.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import xxhash

from corral.core.chunk import Memory, TokenArray
from corral.core.errors import CorralError, InvalidRequest
from corral.core.file import read_into, write_all
from corral.core.media import cell_positions, is_valid_layout
from corral.engine.checkpoint import Checkpoint
from corral.engine.ggsq import MAGIC as GGSQ
from corral.engine.ggsq import read_ggsq, write_ggsq
from corral.engine.grouping import Grouping
from corral.engine.ports import StatePort
from corral.engine.reuse_key import ReuseKey
from corral.engine.saved import SavedState
from corral.engine.ses1_table import MAX_TABLE_BYTES, Row, pack_table, parse_table, table_bytes

VERSION = 1
ADAPTED = 2  # its seal begins with the adapters
OWNED = 3  # its seal begins with adapters and tenant
CHECKPOINTED = 4  # the same, with checkpoints and their table before it
SIGNED = 16  # added to each: whether the state was imported, and the signature, before the fingerprint

_head = struct.Struct("<4sI")
_MAGIC = b"SES1"
# Fingerprint of the model, tokens before a shift, version; then the checksum of all that, and an end mark.
_seal = struct.Struct("<16sII")
_close = struct.Struct("<16s4s")
_LAST_WORD = b"/SES"
_REUSE_KEY_BYTES = 16  # of adapters, and of a tenant
_NO_KEY = bytes(_REUSE_KEY_BYTES)  # no adapters, or no tenant
_REUSE_KEY_COUNTS = {VERSION: 0, ADAPTED: 1, OWNED: 2, CHECKPOINTED: 2}
_MAX_REUSE_KEY_BYTES = 2 * _REUSE_KEY_BYTES
_SEAL_BYTES = _seal.size + _close.size
_flags = struct.Struct("<I")  # 1: the state was imported
_SIGNATURE_BYTES = 32
_SIGNED_BYTES = _flags.size + _SIGNATURE_BYTES
_MAX_TAIL_BYTES = MAX_TABLE_BYTES + _MAX_REUSE_KEY_BYTES + _SIGNED_BYTES + _SEAL_BYTES
OVERHEAD_BYTES = _head.size + _MAX_REUSE_KEY_BYTES + _SEAL_BYTES  # without checkpoints and signature
# A state begins with a magic number and its former sequence id, which is not read: our mark is there.
_MARK = slice(4, 8)
_SEALED = b"CRL1"
_MIN_STATE_BYTES = 8


@dataclass(frozen=True, slots=True)
class Title:
    """The contents of a sealed file, without its state."""

    tokens: TokenArray
    shifted_from: int
    fingerprint: bytes
    lora_key: bytes = b""
    tenant: bytes = b""
    is_imported: bool = False
    signature: bytes = b""
    n_bytes: int = _SEAL_BYTES  # of the seal, the signature and the table of checkpoints
    checkpoints: tuple[Row, ...] = ()

    @property
    def cuts(self) -> tuple[int, ...]:
        return tuple(row.n for row in self.checkpoints)

    @property
    def n_checkpoint_bytes(self) -> int:
        return sum(row.n_bytes for row in self.checkpoints)

    @property
    def reuse_key(self) -> ReuseKey:
        return ReuseKey(self.lora_key, self.tenant, self.is_imported)


class Ses1:
    def __init__(self, port: StatePort, grouping: Grouping) -> None:
        self._port = port
        self._grouping = grouping
        # Grouped states fit only where they are grouped in the same way.
        how = f"{grouping.n} {grouping.width}".encode()
        grouped = xxhash.xxh3_128_digest(port.fingerprint + how)
        self.fingerprint = grouped if grouping.is_active else port.fingerprint

    def write(self, fd: int, saved: SavedState, secret: bytes = b"") -> int:
        """Write a file from its start, signed with the secret if there is one; return its size."""
        parts = self._port.pack(saved.state)
        start = bytes(parts[0][: _MARK.start]) + _SEALED
        head = _head.pack(_MAGIC, len(saved.tokens))
        checkpoints = [self._port.pack_partial(checkpoint.state) for checkpoint in saved.checkpoints]
        version = _version_of(saved) + (SIGNED if secret else 0)
        seal = _seal.pack(self.fingerprint, saved.shifted_from, version)
        body: list[bytes | memoryview] = [parts[0][_MARK.stop :], *parts[1:]]
        if checkpoints:
            sizes = [sum(map(len, packed)) for packed in checkpoints]
            body += [part for packed in checkpoints for part in packed]
            body.append(pack_table(map(Row, saved.cuts, sizes)))
        whole = [head, saved.tokens.tobytes(), start, *body, _reuse_key_of(saved)]
        if secret:
            whole.append(_flags.pack(saved.is_imported))
            whole.append(_sign(secret, [*whole, seal]))
        digest = xxhash.xxh3_128()
        os.lseek(fd, 0, os.SEEK_SET)
        for part in (*whole, seal):
            digest.update(part)
            write_all(fd, part)
        write_all(fd, _close.pack(digest.digest(), _LAST_WORD))
        return os.lseek(fd, 0, os.SEEK_CUR)

    def write_ggsq(self, fd: int, saved: SavedState) -> int:
        """Write a slot file of llama.cpp; return its size."""
        if self._grouping.is_active:
            raise InvalidRequest("slot files of llama.cpp have no groups (--grp-attn-n)")
        return write_ggsq(fd, saved, self._port)

    def read(self, fd: int, is_ours: bool, secret: bytes = b"") -> SavedState:
        """Read the content of a file; InvalidRequest says why it cannot be used. `is_ours`: it must be
        sealed, or a slot file of llama.cpp. With a secret, a state is an imported one unless that has signed
        it."""
        try:
            n_file = os.fstat(fd).st_size
            if os.pread(fd, len(GGSQ), 0) == GGSQ and not self._grouping.is_active:
                return replace(read_ggsq(fd, self._port), is_imported=bool(secret))
            tokens = self._read_tokens(fd, n_file)
            return self._read_state(fd, n_file, tokens, is_ours, secret)
        except OSError as error:
            raise CorralError(f"the state cannot be read: {error.strerror}") from None

    def _read_tokens(self, fd: int, n_file: int) -> TokenArray:
        magic, n = _head.unpack(_read_exactly(fd, 0, _head.size, n_file))
        if magic != _MAGIC:
            raise InvalidRequest("not a SES1 state")
        if n > self._port.n_ctx:
            room = self._port.n_ctx
            raise InvalidRequest(f"the state has {n} tokens, but a slot holds at most {room} (--ctx-size)")
        tokens = np.frombuffer(_read_exactly(fd, _head.size, 4 * n, n_file), "<i4")
        if n and not (tokens.max() < self._port.n_vocab and is_valid_layout(tokens)):
            raise InvalidRequest("the state contains token ids outside this model's vocabulary")
        return tokens

    def _read_state(
        self, fd: int, n_file: int, tokens: TokenArray, is_ours: bool, secret: bytes
    ) -> SavedState:
        start = _head.size + tokens.nbytes
        n_bytes = n_file - start
        n_max = self._port.max_state_bytes + self._port.max_checkpoint_bytes + _MAX_TAIL_BYTES
        if not _MIN_STATE_BYTES <= n_bytes <= n_max:
            raise InvalidRequest(f"{n_bytes} bytes cannot be the state of {len(tokens)} tokens of this model")
        buffer = np.empty(n_bytes + self._port.state_growth, np.uint8)
        _fill(fd, start, buffer[:n_bytes].data)
        is_sealed = buffer[_MARK].tobytes() == _SEALED
        if is_ours and not is_sealed:
            raise InvalidRequest("the state was not saved by this server, or is damaged")
        title, is_imported = None, bool(secret)
        if is_sealed:
            title = self._check_seal(tokens, buffer[:n_bytes].data)
            if not secret or _is_signed(title, tokens, buffer[:n_bytes].data, secret):
                is_imported = title.is_imported
            n_bytes -= title.n_bytes + title.n_checkpoint_bytes
        is_grouped = self._grouping.is_active
        positions = self._grouping.positions(len(tokens)) if is_grouped else cell_positions(tokens)
        rows = title.checkpoints if title is not None else ()
        checkpoints = tuple(self._read_checkpoints(buffer[n_bytes:], rows, positions, is_ours))
        state = self._port.unpack(buffer, n_bytes, positions, is_ours)
        if title is None:
            return SavedState(tokens, state, is_imported=is_imported)
        return SavedState(
            tokens,
            state,
            title.shifted_from,
            lora_key=title.lora_key,
            tenant=title.tenant,
            is_imported=is_imported,
            checkpoints=checkpoints,
        )

    def _read_checkpoints(
        self, data: Memory, rows: Sequence[Row], positions: TokenArray, is_ours: bool
    ) -> Iterator[Checkpoint]:
        """Copy checkpoints out of a file, each validated."""
        offset = 0
        for n, n_bytes in rows:
            packed = data[offset : offset + n_bytes].copy()
            yield Checkpoint(n, self._port.unpack_partial(packed, positions[:n], is_ours))
            offset += n_bytes

    def _check_seal(self, tokens: TokenArray, sealed: memoryview) -> Title:
        title, digest = _parse_seal(tokens, bytes(sealed[-_MAX_TAIL_BYTES:]))
        actual = xxhash.xxh3_128(_head.pack(_MAGIC, len(tokens)) + tokens.tobytes())
        actual.update(sealed[: -_close.size])
        if actual.digest() != digest:
            raise InvalidRequest("the state is damaged: its checksum does not match")
        if len(sealed) - title.n_bytes - title.n_checkpoint_bytes < _MIN_STATE_BYTES:
            raise InvalidRequest("the state is truncated: its checkpoints do not fit into it")
        if title.fingerprint != self.fingerprint:
            raise InvalidRequest(
                "the state belongs to another model, or to other values of --grp-attn-n and --grp-attn-w"
            )
        return title


def read_title(fd: int) -> Title:
    """Read a sealed file without its state; InvalidRequest if it is not one."""
    n_file = os.fstat(fd).st_size
    magic, n = _head.unpack(_read_exactly(fd, 0, _head.size, n_file))
    if magic != _MAGIC:
        raise InvalidRequest("not a SES1 state")
    tokens = np.frombuffer(_read_exactly(fd, _head.size, 4 * n, n_file), "<i4")
    n_tail = min(n_file, _MAX_TAIL_BYTES)
    return _parse_seal(tokens, _read_exactly(fd, n_file - n_tail, n_tail, n_file))[0]


def _parse_seal(tokens: TokenArray, data: bytes) -> tuple[Title, bytes]:
    if len(data) < _SEAL_BYTES:
        raise InvalidRequest("the state is truncated")
    start = len(data) - _SEAL_BYTES
    fingerprint, shifted_from, version = _seal.unpack_from(data, start)
    digest, last_word = _close.unpack_from(data, start + _seal.size)
    if last_word != _LAST_WORD:
        raise InvalidRequest("the state is truncated, or damaged at its end")
    is_imported, signature = False, b""
    base, n_signed = (version - SIGNED, _SIGNED_BYTES) if version > SIGNED else (version, 0)
    n_reuse_key = _REUSE_KEY_COUNTS.get(base, -1) * _REUSE_KEY_BYTES
    if not 0 <= n_reuse_key <= start - n_signed:
        raise InvalidRequest(
            f"the state has format version {version}; this server reads version {CHECKPOINTED + SIGNED}"
        )
    if n_signed:
        start -= n_signed
        is_imported = _flags.unpack_from(data, start) != (0,)
        signature = data[start + _flags.size : start + n_signed]
    reuse_key = data[start - n_reuse_key : start]
    lora_key, tenant = reuse_key[:_REUSE_KEY_BYTES], reuse_key[_REUSE_KEY_BYTES:]
    lora_key = b"" if tenant and lora_key == _NO_KEY else lora_key
    rows, n_bytes = tuple[Row, ...](), n_reuse_key + n_signed + _SEAL_BYTES
    if base == CHECKPOINTED:
        tenant = b"" if tenant == _NO_KEY else tenant
        rows = parse_table(data[: start - n_reuse_key], len(tokens))
        n_bytes += table_bytes(len(rows))
    title = Title(tokens, shifted_from, fingerprint, lora_key, tenant, is_imported, signature, n_bytes, rows)
    return title, digest


def seal_tenant(tenant: bytes, secret: bytes) -> bytes:
    """Return how a tenant is written in signed files: without the secret nobody can tell whose they are."""
    return hashlib.blake2b(tenant, digest_size=_REUSE_KEY_BYTES, key=secret).digest() if tenant else b""


def _sign(secret: bytes, parts: Iterable[bytes | memoryview]) -> bytes:
    signature = hashlib.blake2b(digest_size=_SIGNATURE_BYTES, key=secret)
    for part in parts:
        signature.update(part)
    return signature.digest()


def _is_signed(title: Title, tokens: TokenArray, sealed: memoryview, secret: bytes) -> bool:
    """Whether the secret has signed a file, of which `sealed` is what follows the tokens."""
    head = _head.pack(_MAGIC, len(tokens)) + tokens.tobytes()
    start = len(sealed) - _SEAL_BYTES
    signed: list[bytes | memoryview] = [
        head,
        sealed[: start - _SIGNATURE_BYTES],
        sealed[start : start + _seal.size],
    ]
    return bool(title.signature) and hmac.compare_digest(_sign(secret, signed), title.signature)


def _version_of(saved: SavedState) -> int:
    if saved.checkpoints:
        return CHECKPOINTED
    return OWNED if saved.tenant else ADAPTED if saved.lora_key else VERSION


def _reuse_key_of(saved: SavedState) -> bytes:
    if saved.checkpoints or saved.tenant:
        return (saved.lora_key or _NO_KEY) + (saved.tenant or _NO_KEY)
    return saved.lora_key


def _read_exactly(fd: int, offset: int, n: int, n_file: int) -> bytes:
    if offset + n > n_file:
        raise InvalidRequest("the state is truncated")
    buffer = bytearray(n)
    _fill(fd, offset, memoryview(buffer))
    return bytes(buffer)


def _fill(fd: int, offset: int, view: memoryview) -> None:
    if read_into(fd, offset, view) < len(view):
        raise InvalidRequest("the state is truncated")
