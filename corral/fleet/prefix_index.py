"""Which beginnings of prompts an engine has cached: blocks of 64 tokens, each hashed with all before it.

Pure bookkeeping. `CacheView` feeds it with what the engine reports; `placement` reads it.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Hashable, Sequence

import xxhash

BLOCK = 64  # tokens
MAX_BLOCKS = 1 << 18  # of an engine: 16 million tokens


def hash_blocks(tokens: Sequence[int], key: bytes) -> list[int]:
    """Return a hash for each whole block; equal hashes mean equal tokens from the start, and equal keys."""
    data, found = memoryview(array("i", tokens)).cast("B"), []
    width, last = BLOCK * 4, xxhash.xxh3_64_intdigest(key)
    for start in range(0, len(tokens) // BLOCK * width, width):
        last = xxhash.xxh3_64_intdigest(data[start : start + width], seed=last)
        found.append(last)
    return found


class HeldBlocks:
    """Mutable: which engines have a block, for all engines."""

    def __init__(self) -> None:
        self._holders: dict[int, int | set[int]] = {}  # most have one

    def add(self, block: int, engine: int) -> None:
        holders = self._holders.setdefault(block, engine)
        if isinstance(holders, set):
            holders.add(engine)
        elif holders != engine:
            self._holders[block] = {holders, engine}

    def remove(self, block: int, engine: int) -> None:
        holders = self._holders[block]
        if not isinstance(holders, set):
            del self._holders[block]
            return
        holders.discard(engine)
        if len(holders) == 1:
            self._holders[block] = holders.pop()

    def n_cached(self, blocks: Sequence[int]) -> dict[int, int]:
        """Return how many of the first tokens are cached, by engine, for those that have any."""
        found: dict[int, int] = {}
        start = 0
        while start < len(blocks) and (n := self._count(blocks[start])):
            low, high = start, len(blocks) - 1
            while low < high:  # fewer engines have later blocks, and those have the earlier ones
                middle = (low + high + 1) // 2
                low, high = (middle, high) if self._count(blocks[middle]) == n else (low, middle - 1)
            holders = self._holders[blocks[low]]
            found |= dict.fromkeys(holders if isinstance(holders, set) else (holders,), (low + 1) * BLOCK)
            start = low + 1
        return found

    def _count(self, block: int) -> int:
        holders = self._holders.get(block)
        return 0 if holders is None else len(holders) if isinstance(holders, set) else 1


class PrefixIndex:
    """Mutable: runs of blocks by name. Beyond `max_blocks` the oldest runs are forgotten. `held`: has the
    same of all engines, of which this is number `engine`."""

    def __init__(
        self, max_blocks: int = MAX_BLOCKS, held: HeldBlocks | None = None, engine: int = -1
    ) -> None:
        self._max_blocks = max_blocks
        self._held = held or HeldBlocks()
        self._engine = engine
        self._runs: dict[Hashable, tuple[int, ...]] = {}  # the oldest first
        self._n_holders: Counter[int] = Counter()
        self.n_blocks = 0  # of all runs, shared ones counted again

    def __contains__(self, name: Hashable) -> bool:
        return name in self._runs

    def run(self, name: Hashable) -> tuple[int, ...]:
        return self._runs.get(name, ())

    def put(self, name: Hashable, blocks: Sequence[int]) -> None:
        """Replace a run; one without blocks is removed."""
        self.drop(name)
        if not blocks or len(blocks) > self._max_blocks:
            return
        self._runs[name] = tuple(blocks)
        for block in blocks:
            if block not in self._n_holders:
                self._held.add(block, self._engine)
        self._n_holders.update(blocks)
        self.n_blocks += len(blocks)
        while self.n_blocks > self._max_blocks:
            self.drop(next(iter(self._runs)))

    def drop(self, name: Hashable) -> None:
        blocks = self._runs.pop(name, ())
        self.n_blocks -= len(blocks)
        for block in blocks:
            if self._n_holders[block] > 1:
                self._n_holders[block] -= 1
            else:
                del self._n_holders[block]
                self._held.remove(block, self._engine)

    def clear(self) -> None:
        for block in self._n_holders:
            self._held.remove(block, self._engine)
        self._runs.clear()
        self._n_holders.clear()
        self.n_blocks = 0

    def n_cached(self, blocks: Sequence[int]) -> int:
        """Return how many of the first tokens are cached."""
        low, high = 0, len(blocks)
        while low < high:  # a cached block means that all before it are cached
            middle = (low + high + 1) // 2
            if blocks[middle - 1] in self._n_holders:
                low = middle
            else:
                high = middle - 1
        return low * BLOCK
