"""A run of tokens of one sequence, to be evaluated in one batch."""

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
MAX_AHEAD = 17  # tokens of a stream that are evaluated at once: one that was drawn, and those of a draft


@dataclass(frozen=True, slots=True)
class Chunk:
    """`tokens` go to positions `pos`, `pos + 1`, ... of sequence `seq`; `logits`: behind how many of the last
    ones they are wanted."""

    seq: int
    pos: int
    tokens: TokenArray
    logits: int


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
