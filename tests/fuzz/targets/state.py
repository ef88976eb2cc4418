"""libllama's states of sequences, inside SES1: checked before native code reads them.

The seed is the state of 8 tokens of the tiny model `llama-bpe`, from a context with three sequences.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from corral.core.errors import InvalidRequest
from corral.llama.state import StateLayout
from tests.fuzz.mutation import mutated
from tests.fuzz.target import Target

_N_TOKENS, _N_SEQ = 8, 3
_POSITIONS = np.arange(_N_TOKENS, dtype=np.int32)
_NATIVE = (Path(__file__).parents[1] / "seeds" / "state.bin").read_bytes()
_LAYOUT = StateLayout.learn(_NATIVE, _N_TOKENS, _N_SEQ, False)
assert _LAYOUT is not None


def parse(data: bytes) -> None:
    """Check a state, and convert one that passes to this context's form and back."""
    _LAYOUT.check(data, _POSITIONS)
    buffer = np.zeros(len(data) + _LAYOUT.growth, np.uint8)
    buffer[: len(data)] = np.frombuffer(data, np.uint8)
    native = _LAYOUT.make_native(buffer, len(data))
    assert b"".join(map(bytes, _LAYOUT.portable_parts(native))) == data


SEEDS = [b"".join(map(bytes, _LAYOUT.portable_parts(_NATIVE)))]
TARGET = Target("state", parse, SEEDS, mutated(SEEDS), (InvalidRequest,))
