"""Slot files of llama.cpp, checked up to the state that native code reads.

The seeds have the state of 8 tokens of the tiny model `llama-bpe`, from a context with three sequences.
"""

from __future__ import annotations

import os
import struct

import numpy as np

from corral.core.chunk import Memory, State, TokenArray
from corral.core.errors import InvalidRequest
from corral.engine.ggsq import MAGIC, read_ggsq, write_ggsq
from corral.engine.saved import SavedState
from corral.llama.backend import _unpack
from tests.fuzz.mutation import mutated
from tests.fuzz.target import Target
from tests.fuzz.targets.state import _LAYOUT, _N_TOKENS, _NATIVE
from tests.unit.ses1_files import Port, file_of


class LlamaPort(Port):
    """A context that has the layout of the seeds."""

    def __init__(self) -> None:
        super().__init__()
        self.max_state_bytes = _LAYOUT.n_bytes(self.n_ctx)

    def pack(self, state: State) -> list[memoryview]:
        return _LAYOUT.portable_parts(state)

    def unpack_body(self, body: Memory, positions: TokenArray) -> State:
        portable = _LAYOUT.join_streams(body.data)
        return _unpack(_LAYOUT, portable, portable.size, positions, False)


_PORT = LlamaPort()


def parse(data: bytes) -> None:
    with file_of(data) as fd:
        saved = read_ggsq(fd, _PORT)
    with file_of(_write(saved)) as fd:
        again = read_ggsq(fd, _PORT)
    assert again.tokens.tolist() == saved.tokens.tolist()
    assert bytes(again.state) == bytes(saved.state)


def _write(saved: SavedState) -> bytes:
    with file_of() as fd:
        return os.pread(fd, write_ggsq(fd, saved, _PORT), 0)


_TOKENS = np.arange(_N_TOKENS, dtype=np.int32)
_FRAMED = _write(SavedState(_TOKENS, _NATIVE))
_BARE = MAGIC + struct.pack("<II", 3, _N_TOKENS) + _TOKENS.tobytes() + _NATIVE[8:]
SEEDS = [_FRAMED, _BARE]
TARGET = Target("ggsq", parse, SEEDS, mutated(SEEDS, [MAGIC, b"\xff" * 4]), (InvalidRequest,))
