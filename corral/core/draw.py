"""The random numbers of libllama's samplers, by position: a seed means what it means to llama-server.

libllama draws with `std::mt19937`; the standard distributions take its words as libstdc++ does. Any position
can be read, so a sequence of draws can be resumed anywhere.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence, Set
from typing import NamedTuple

import numpy as np

_N_WORDS = 624  # words that the generator makes at once
_WORD_MASK = 2**32 - 1
_BELOW_ONE = float(np.nextafter(1.0, 0.0))
_SINGLE_BELOW_ONE = np.nextafter(np.float32(1), np.float32(0))
_generator = np.random.RandomState(0)  # shared: to create one takes a hundred times as long as to seed it
_generator_lock = threading.Lock()


NO_TOKEN = -1  # instead of a drawn one: none is left


class Redraw(NamedTuple):
    """Draw once more, for the `n`-th time: another token than `tokens`, and another text than `texts`."""

    n: int
    tokens: Set[int]
    texts: Sequence[bytes]

    def begins(self, piece: bytes) -> bool:
        """Whether a token would begin one of the texts again."""
        return any(text.startswith(piece) or piece.startswith(text) for text in self.texts)

    def goes_beyond(self, piece: bytes) -> bool:
        """Whether a token would complete one of the texts again."""
        return any(piece.startswith(text) for text in self.texts)


class Twister:
    """A Mersenne twister. Mutable: it keeps the words around the position read last."""

    def __init__(self, seed: int) -> None:
        self._seed = seed & _WORD_MASK
        self._block = -1
        self._doubles: list[float] = []  # of this block, once one is asked for

    def double(self, position: int) -> float:
        """Return draw `position` of a `std::uniform_real_distribution<double>`: two words."""
        block, offset = divmod(position, _N_WORDS // 2)
        if block != self._block:
            self._seek(block)
        if not self._doubles:
            words = self._words.astype(np.float64)
            self._doubles = np.minimum((words[::2] + words[1::2] * 2.0**32) * 2.0**-64, _BELOW_ONE).tolist()
        return self._doubles[offset]

    def single(self, position: int) -> float:
        """Return draw `position` of a `std::uniform_real_distribution<float>`: one word."""
        return float(min(np.float32(self._word(position)) * np.float32(2.0**-32), _SINGLE_BELOW_ONE))

    def _word(self, at: int) -> int:
        block, offset = divmod(at, _N_WORDS)
        if block != self._block:
            self._seek(block)
        return int(self._words[offset])

    def _seek(self, block: int) -> None:
        """Make the words of a block: all before it are made again, since reading and setting the state of
        numpy's generator takes as long as hundreds of blocks."""
        with _generator_lock:
            _generator.seed(self._seed)
            words = _generator.randint(0, 2**32, (block + 1) * _N_WORDS, dtype=np.uint32)
        self._words = words[-_N_WORDS:].copy()
        self._doubles = []
        self._block = block
