"""A run of tokens of one sequence, or of what stands for them, to be evaluated in one batch."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

TokenArray: TypeAlias = npt.NDArray[np.int32]
FloatArray: TypeAlias = npt.NDArray[np.float32]
Memory: TypeAlias = npt.NDArray[np.uint8]
State: TypeAlias = bytes | memoryview  # of a sequence, as the backend wrote it

# libllama evaluates fewer tokens than MIN_CHUNK, and what a chunk has over a multiple of ALIGNMENT, with
# other arithmetic (on ARM: attention accumulated in 16 bits, rows that do not fill a tile). Prompts are cut
# at multiples only, never into smaller chunks, and batches to embed are padded: answers must not depend on
# what else is running or cached.
MIN_CHUNK = 8
ALIGNMENT = 4


@dataclass(frozen=True, slots=True)
class Encoded:
    """What a run is evaluated as: a row for each of its tokens.

    `places`: where each row is in four dimensions, if the run begins at 0; `is_placed` tells which of these
    numbers move with its beginning. A run that is not causal sees itself as a whole.
    """

    rows: FloatArray
    places: TokenArray | None = None
    is_placed: TokenArray | None = None
    is_causal: bool = True

    @property
    def n_bytes(self) -> int:
        return self.rows.nbytes

    def cut(self, start: int, end: int) -> Encoded:
        if self.places is None or self.is_placed is None:
            return Encoded(self.rows[start:end], is_causal=self.is_causal)
        places, is_placed = self.places[:, start:end], self.is_placed[:, start:end]
        return Encoded(self.rows[start:end], places, is_placed, self.is_causal)


@dataclass(frozen=True, slots=True)
class Chunk:
    """`tokens` go to positions `pos`, `pos + 1`, ... of sequence `seq`; `logits`: behind how many of the last
    ones they are wanted. `encoded`: they are no tokens of the vocabulary, and this is evaluated instead."""

    seq: int
    pos: int
    tokens: TokenArray
    logits: int
    encoded: Encoded | None = None


class DecodeStatus(enum.Enum):
    OK = "ok"
    NO_ROOM = "no room"
    ABORTED = "aborted"


def common_prefix(a: TokenArray, b: TokenArray) -> int:
    """How many tokens two runs share from the start."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    first = int(differs.argmax()) if n else 0
    return first if n and differs[first] else n
