"""Counts of tokens that follow short runs, in the file format of llama.cpp's lookup tools.

run: 4 x i32, -1 where it is shorter | n: i32 | n x (token: i32, count: i32)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from corral.core.atomic_file import atomic_write
from corral.core.errors import CorralError

N_MAX = 4  # tokens of the longest run
N_STATIC = 2  # the same in files that do not change
MAX_RUNS = 1 << 20  # a cache that learns drops its oldest runs beyond this number
_NOTHING = -1
_MAX_COUNT = 2**31 - 1
# Minimum count, and share of all occurrences, for a continuation of a run of 1, 2, 3, 4 tokens.
_MIN_COUNT = (4, 3, 2, 2)
_MIN_SHARE = (0.75, 0.66, 0.66, 0.66)
_MIN_COUNT_STATIC = 2
_MIN_SHARE_STATIC = 0.5

_head = struct.Struct("<4ii")
_entry = struct.Struct("<ii")

Run = tuple[int, ...]


class NgramCache:
    """Mutable."""

    def __init__(self) -> None:
        self._counts: dict[Run, dict[int, int]] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def learn(self, tokens: Sequence[int]) -> None:
        """Count which tokens follow which runs."""
        for i in range(1, len(tokens)):
            for n in range(1, min(N_MAX, i) + 1):
                counts = self._counts.setdefault(tuple(tokens[i - n : i]), {})
                counts[tokens[i]] = min(counts.get(tokens[i], 0) + 1, _MAX_COUNT)
        while len(self._counts) > MAX_RUNS:
            del self._counts[next(iter(self._counts))]

    def next(self, tokens: Sequence[int]) -> int | None:
        """Return the most probable next token, by the longest run with a clear continuation."""
        for n in range(min(N_MAX, len(tokens)), 0, -1):
            token = self._likely(tuple(tokens[-n:]), _MIN_COUNT[n - 1], _MIN_SHARE[n - 1])
            if token is not None:
                return token
        return None

    def next_static(self, tokens: Sequence[int]) -> int | None:
        """Return the same from a file of runs of two tokens."""
        return self._likely(tuple(tokens[-N_STATIC:]), _MIN_COUNT_STATIC, _MIN_SHARE_STATIC)

    def _likely(self, run: Run, min_count: int, min_share: float) -> int | None:
        counts = self._counts.get(run)
        if not counts:
            return None
        token, count = max(counts.items(), key=lambda item: item[1])
        return token if count >= min_count and count >= min_share * sum(counts.values()) else None

    def encode(self) -> bytes:
        """Encode as a file; from any thread, also while another one learns."""
        parts: list[bytes] = []
        for run, counts in list(self._counts.items()):
            padded, entries = run + (_NOTHING,) * (N_MAX - len(run)), list(counts.items())
            parts.append(_head.pack(*padded, len(entries)))
            parts += (_entry.pack(token, count) for token, count in entries)
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes, n_vocab: int) -> NgramCache:
        """Decode a file. ValueError: it is damaged, or of another vocabulary."""
        cache = cls()
        for run, counts in _records(data):
            if any(not 0 <= token < n_vocab for token in (*run, *counts)):
                raise ValueError("it contains token ids outside this model's vocabulary")
            cache._counts[run] = counts
        return cache


def read_cache(path: str, n_vocab: int, option: str, may_be_missing: bool = False) -> NgramCache:
    try:
        return NgramCache.decode(Path(path).read_bytes(), n_vocab)
    except FileNotFoundError as error:
        if may_be_missing:
            return NgramCache()
        raise CorralError(f"{option}: {error}") from None
    except OSError as error:
        raise CorralError(f"{option}: {error}") from None
    except ValueError as error:
        raise CorralError(f"{option}: '{path}' is not an n-gram cache for this model: {error}") from None


def write_cache(path: str, data: bytes) -> None:
    """Write the file atomically; OSError if it cannot be written."""
    with atomic_write(Path(path)) as file:
        file.write(data)


def _records(data: bytes) -> Iterator[tuple[Run, dict[int, int]]]:
    at = 0
    while at < len(data):
        if at + _head.size > len(data):
            raise ValueError("it is incomplete")
        *padded, n = _head.unpack_from(data, at)
        at += _head.size
        end = at + n * _entry.size
        if n < 1 or end > len(data):
            raise ValueError("it is damaged")
        counts = dict(_entry.iter_unpack(data[at:end]))
        if min(counts.values()) < 1:
            raise ValueError("it is damaged")
        yield tuple(token for token in padded if token != _NOTHING), counts
        at = end
