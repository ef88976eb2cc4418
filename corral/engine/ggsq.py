"""Slot files of llama.cpp ("ggsq", as of `llama-server --slot-save-path`), to be restored here or there.

    magic: u32 | version: u32 | n: u32 | tokens: n x i32 | state of the sequence, without its header

llama-server writes its tokens with a frame: -1, version, count, tokens, number of media. Files have no
checksum: their structure is checked before native code reads them. Any thread.
"""

from __future__ import annotations

import os
import struct

import numpy as np

from corral.core.chunk import TokenArray
from corral.core.errors import InvalidRequest
from corral.core.file import read_into, write_all
from corral.core.media import cell_positions, has_media
from corral.engine.ports import StatePort
from corral.engine.saved import SavedState

MAGIC = struct.pack("<I", 0x67677371)
_VERSION = 3
_head = struct.Struct("<4sII")
_frame = struct.Struct("<iII")
_NO_MEDIA = struct.pack("<I", 0)
_STATE_HEADER = 8  # bytes of a state that these files do not have
_MARKER, _FRAME_VERSION = -1, 1
_FRAME_TOKENS = (_frame.size + len(_NO_MEDIA)) // 4


def read_ggsq(fd: int, port: StatePort) -> SavedState:
    """Read a slot file; InvalidRequest says why it cannot be used."""
    n_file = os.fstat(fd).st_size
    if not _head.size <= n_file <= _head.size + 4 * (port.n_ctx + _FRAME_TOKENS) + _max_state(port):
        raise InvalidRequest(f"{n_file} bytes cannot be a slot file of this model")
    data = np.empty(n_file, np.uint8)
    if read_into(fd, 0, data.data) < n_file:
        raise InvalidRequest("the state is truncated")
    _, version, n = _head.unpack(data[: _head.size].tobytes())
    if version != _VERSION:
        raise InvalidRequest(f"the slot file has version {version}; this server reads version {_VERSION}")
    end = _head.size + 4 * n
    if end > n_file:
        raise InvalidRequest("the state is truncated")
    tokens = _unframe(data[_head.size : end].tobytes())
    if len(tokens) > port.n_ctx:
        raise InvalidRequest(
            f"the state has {len(tokens)} tokens, but a slot holds at most {port.n_ctx} (--ctx-size)"
        )
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < port.n_vocab:
        raise InvalidRequest("the state contains token ids outside this model's vocabulary")
    return SavedState(tokens, port.unpack_body(data[end:], cell_positions(tokens)))


def write_ggsq(fd: int, saved: SavedState, port: StatePort) -> int:
    """Write a slot file from its start, for a context with one stream of KV cells; return its size."""
    if has_media(saved.tokens):
        raise InvalidRequest("the slot has images or audio, which slot files of llama.cpp do not carry here")
    n = len(saved.tokens)
    frame = _frame.pack(_MARKER, _FRAME_VERSION, n) + saved.tokens.astype("<i4").tobytes() + _NO_MEDIA
    first, *rest = port.pack(saved.state)
    os.lseek(fd, 0, os.SEEK_SET)
    parts: list[bytes | memoryview] = [_head.pack(MAGIC, _VERSION, n + _FRAME_TOKENS), frame]
    for part in (*parts, first[_STATE_HEADER:], *rest):
        write_all(fd, part)
    return os.lseek(fd, 0, os.SEEK_CUR)


def _max_state(port: StatePort) -> int:
    """Return the largest state that another context, with more sequences, may have written."""
    return port.max_state_bytes + (1 << 16)


def _unframe(data: bytes) -> TokenArray:
    """Return the tokens of a list, with or without llama-server's frame."""
    tokens = np.frombuffer(data, "<i4")
    if not len(tokens) or tokens[0] != _MARKER:
        return tokens
    if len(data) < _frame.size:
        raise InvalidRequest("the state is truncated")
    _, version, n = _frame.unpack_from(data)
    if version != _FRAME_VERSION:
        raise InvalidRequest(f"the tokens of the slot file have version {version}, which is not known here")
    if data[_frame.size + 4 * n :] != _NO_MEDIA:
        raise InvalidRequest("the slot file has images or audio, or its list of tokens is damaged")
    return tokens[_frame.size // 4 :][:n]
