"""Runs of tokens in lexicographic order: neighbours share the longest prefixes. Pure bookkeeping."""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from collections.abc import Iterator

import numpy as np

from corral.core.chunk import TokenArray, common_prefix

_TOKEN = np.dtype(">u4")  # as bytes in the order of the tokens


class TokenIndex:
    """Mutable: numbered runs. The cost of a search grows with the logarithm of their number."""

    def __init__(self) -> None:
        self._runs: list[tuple[bytes, int]] = []

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, number: int, tokens: TokenArray) -> None:
        insort(self._runs, (_bytes(tokens), number))

    def remove(self, number: int, tokens: TokenArray) -> None:
        del self._runs[bisect_left(self._runs, (_bytes(tokens), number))]

    def nearest(self, tokens: TokenArray) -> tuple[int, int]:
        """Return how many tokens the run with the longest common prefix shares, and its number; -1: none."""
        data = _bytes(tokens)
        at = bisect_left(self._runs, (data,))
        neighbours = self._runs[max(at - 1, 0) : at + 1]
        return max(((_n_common(run, data), number) for run, number in neighbours), default=(0, -1))

    def prefixes_of(self, tokens: TokenArray) -> Iterator[int]:
        """Yield the numbers of the runs that are a prefix of `tokens`, the longest first."""
        data = _bytes(tokens)
        at = bisect_left(self._runs, (data, sys.maxsize))
        while at:
            run, number = self._runs[at - 1]
            n = _n_common(run, data) * _TOKEN.itemsize
            if n == len(run):
                yield number
                at -= 1
            else:  # whatever is between them shares no more than these tokens
                at = bisect_left(self._runs, (data[:n], sys.maxsize), 0, at - 1)


def _bytes(tokens: TokenArray) -> bytes:
    return tokens.astype(_TOKEN).tobytes()


def _n_common(a: bytes, b: bytes) -> int:
    return common_prefix(np.frombuffer(a, _TOKEN), np.frombuffer(b, _TOKEN))
