"""SES1 files in memory, and a fake context whose states they hold."""

from __future__ import annotations

import contextlib
import os
import struct

import numpy as np
import pytest
import xxhash

from corral.core.chunk import State
from corral.core.errors import InvalidRequest
from corral.engine.grouping import Grouping
from corral.engine.saved import SavedState
from corral.engine.ses1 import Ses1

FINGERPRINT = bytes(range(16))
N_SEAL = 44
TOKENS = [5, 0, 63, 7, 7]


class Port:
    """States: 8 bytes in front, padding that only this context has, position and value of each token."""

    def __init__(self, growth: int = 6, n_ctx: int = 16, fingerprint: bytes = FINGERPRINT) -> None:
        self.n_ctx = n_ctx
        self.n_vocab = 64
        self.fingerprint = fingerprint
        self.max_state_bytes = 8 + 8 * n_ctx
        self.state_growth = growth
        self.trusted: list[bool] = []

    def state(self, tokens, positions=None) -> bytes:
        positions = range(len(tokens)) if positions is None else positions
        rows = [struct.pack("<ii", p, t % 64) for p, t in zip(positions, tokens, strict=True)]
        return b"KVKV" + b"seq3" + bytes(self.state_growth) + b"".join(rows)

    def pack(self, state) -> list[memoryview]:
        view = memoryview(state)
        return [view[:8], view[8 + self.state_growth :]]

    @property
    def max_checkpoint_bytes(self) -> int:
        return 4 * self.max_state_bytes

    def unpack_body(self, body, positions) -> State:
        raise NotImplementedError

    def pack_partial(self, state) -> list[memoryview]:
        return self.pack(state)

    def unpack_partial(self, packed, positions, is_trusted):
        room = np.zeros(self.state_growth, np.uint8)
        return self.unpack(np.concatenate([packed, room]), packed.size, positions, is_trusted)

    def unpack(self, buffer, n_bytes, positions, is_trusted):
        assert buffer.size >= n_bytes + self.state_growth
        self.trusted.append(is_trusted)
        data = buffer[:n_bytes].tobytes()
        if data[:4] != b"KVKV" or n_bytes != 8 + 8 * len(positions):
            raise InvalidRequest("was not saved by this server")
        if [p for p, _ in struct.iter_unpack("<ii", data[8:])] != positions.tolist():
            raise InvalidRequest("its positions are others")
        return data[:8] + bytes(self.state_growth) + data[8:]


@contextlib.contextmanager
def file_of(data: bytes = b""):
    fd = os.memfd_create("ses1")
    try:
        os.write(fd, data)
        yield fd
    finally:
        os.close(fd)


def write(saved, port=None, grouping=None) -> bytes:
    with file_of() as fd:
        n_bytes = Ses1(port or Port(), grouping or Grouping()).write(fd, saved)
        data = os.pread(fd, 1 << 20, 0)
        assert n_bytes == len(data)
        return data


def read(data, is_ours, port=None, grouping=None) -> SavedState:
    with file_of(data) as fd:
        return Ses1(port or Port(), grouping or Grouping()).read(fd, is_ours)


def refuses(data, is_ours, port=None, match=None) -> None:
    with pytest.raises(InvalidRequest, match=match):
        read(data, is_ours, port)


def sealed_again(data: bytes) -> bytes:
    """A checksum that fits, whatever is in front of it."""
    return data[:-20] + xxhash.xxh3_128_digest(data[:-20]) + data[-4:]


either = pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "anybody's"])
