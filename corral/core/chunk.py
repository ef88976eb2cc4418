"""A run of tokens of one sequence, or of embedding rows in their place, evaluated in one batch."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

TokenArray: TypeAlias = npt.NDArray[np.int32]
FloatArray: TypeAlias = npt.NDArray[np.float32]
Memory: TypeAlias = npt.NDArray[np.uint8]
State: TypeAlias = bytes | memoryview  # of a sequence, as the backend saved it

# Below MIN_CHUNK tokens, and for what a chunk has beyond a multiple of ALIGNMENT, libllama uses different
# arithmetic (on ARM: attention accumulated in 16 bits, rows that do not fill a tile). So prompts are cut only
# at multiples, never into smaller chunks, and batches to embed are padded: answers must not depend on
# what else is running or cached.
MIN_CHUNK = 8
ALIGNMENT = 4


@dataclass(frozen=True, slots=True)
class MediaRows:
    """The embedding rows of a run, one for each of its tokens.

    `places`: the position of each row in four dimensions, if the run begins at 0; `is_placed`: which of
    these numbers move with its start. In a run that is not causal, all tokens attend to each other.
    """

    rows: FloatArray
    places: TokenArray | None = None
    is_placed: TokenArray | None = None
    is_causal: bool = True

    @property
    def n_bytes(self) -> int:
        return self.rows.nbytes

    def cut(self, start: int, end: int) -> MediaRows:
        if self.places is None or self.is_placed is None:
            return MediaRows(self.rows[start:end], is_causal=self.is_causal)
        places, is_placed = self.places[:, start:end], self.is_placed[:, start:end]
        return MediaRows(self.rows[start:end], places, is_placed, self.is_causal)


class Chunk(msgspec.Struct, frozen=True):
    """Tokens at positions `pos`, `pos + 1`, ... of sequence `seq`.

    `logits`: after how many of the last tokens logits are needed. `encoded`: embedding rows to evaluate
    instead; then the tokens are placeholders.
    """

    seq: int
    pos: int
    tokens: TokenArray
    logits: int
    encoded: MediaRows | None = None


class DecodeStatus(enum.Enum):
    OK = "ok"
    NO_ROOM = "no room"
    ABORTED = "aborted"


def common_prefix(a: TokenArray, b: TokenArray) -> int:
    """Return how many tokens two runs share from the start."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    first = int(differs.argmax()) if n else 0
    return first if n and differs[first] else n
