"""Quantiles of recent durations, from histograms with exponential buckets."""

from __future__ import annotations

import collections
import itertools
from bisect import bisect_right
from collections.abc import Iterable, Sequence

_PER_OCTAVE = 6  # quantiles are exact within a few percent
# From 0.1 ms to half an hour; one more bucket counts longer ones.
_EDGES = tuple(1e-4 * 2 ** (i / _PER_OCTAVE) for i in range(24 * _PER_OCTAVE))
_NOTHING = (0,) * (len(_EDGES) + 1)

Quantiles = tuple[float, ...]


class Latency:
    """Durations in rounds of time; `roll` ends a round."""

    def __init__(self, n_rounds: int, n_recent: int) -> None:
        """Keep `n_rounds`, of which the last `n_recent` count as recent."""
        self._current = list(_NOTHING)
        self._rounds: collections.deque[Sequence[int]] = collections.deque([_NOTHING] * n_rounds, n_rounds)
        self._recent: collections.deque[Sequence[int]] = collections.deque([_NOTHING] * n_recent, n_recent)

    def add(self, seconds: float, n: int = 1) -> None:
        self._current[bisect_right(_EDGES, seconds)] += n

    def roll(self) -> None:
        counts: Sequence[int] = _NOTHING
        if any(self._current):
            counts, self._current = self._current, list(_NOTHING)
        self._rounds.append(counts)
        self._recent.append(counts)

    def recent(self, *shares: float) -> Quantiles | None:
        """Return the quantiles at `shares` of the recent rounds; None without durations."""
        return _quantiles(_sum(self._recent), shares)

    def all(self, *shares: float) -> Quantiles | None:
        """Return the quantiles over all rounds."""
        return _quantiles(_sum(self._rounds), shares)


def _sum(rounds: Iterable[Sequence[int]]) -> list[int]:
    busy = [counts for counts in rounds if counts is not _NOTHING]
    return [sum(column) for column in zip(*busy, strict=True)]


def _quantiles(counts: Sequence[int], shares: Sequence[float]) -> Quantiles | None:
    total = sum(counts)
    return tuple(_find(counts, share * total) for share in shares) if total else None


def _find(counts: Sequence[int], rank: float) -> float:
    """Return the duration at this rank, interpolated within its bucket."""
    sums = list(itertools.accumulate(counts))
    i = next(i for i, n in enumerate(sums) if n >= rank and counts[i])
    low, high = (_EDGES[i - 1] if i else 0.0), _EDGES[min(i, len(_EDGES) - 1)]
    return low + (high - low) * (rank - sums[i] + counts[i]) / counts[i]
