"""States of sequences that lost their slot, in host memory with a byte budget."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from cachetools import LRUCache

from corral.core.chunk import TokenArray, common_prefix
from corral.engine.prefix import replaces, usable
from corral.engine.request import Request
from corral.engine.saved import Saved


class _States(LRUCache[int, Saved]):
    def __init__(
        self, n_bytes: int, on_evict: Callable[[Saved], None], on_drop: Callable[[int], None]
    ) -> None:
        super().__init__(n_bytes, getsizeof=lambda saved: saved.n_bytes)
        self.on_evict = on_evict
        self.on_drop = on_drop
        self.n_reserved = 0

    @property
    def room(self) -> int:
        return int(self.maxsize) - self.n_reserved

    def fit(self) -> None:
        """Evict until there is room for what is reserved."""
        while self and self.currsize > self.room:
            self.popitem()

    def popitem(self) -> tuple[int, Saved]:
        key, saved = super().popitem()
        self.on_evict(saved)
        self.on_drop(key)
        return key, saved


class RamCache:
    """Mutable; evicts the least recently used to `on_evict`, and drops states that are a prefix of another
    one.

    `n_fixed(n)`: how many tokens of a saved state of `n` can be used only together.
    """

    def __init__(
        self,
        budget_bytes: int,
        n_fixed: Callable[[int], int] = lambda _: 0,
        on_evict: Callable[[Saved], None] = lambda _: None,
        on_drop: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`on_drop`: called with the number of every state that is gone."""
        self._n_fixed = n_fixed
        self._states = _States(budget_bytes, on_evict, on_drop)
        self._keys = itertools.count()

    def __iter__(self) -> Iterator[Saved]:
        """Iterate, the least recently used first."""
        return iter(self._states.values())

    @property
    def n_bytes(self) -> int:
        return int(self._states.currsize)

    def reserve(self, n_bytes: int) -> None:
        """Leave this part of the budget to others from now on."""
        self._states.n_reserved = n_bytes
        self._states.fit()

    def get(self, request: Request) -> Saved | None:
        """Return the state with the longest prefix of a prompt; it counts as used."""
        matches = ((usable(saved, request, self._n_fixed), key) for key, saved in self._states.items())
        n, key = max(matches, default=(0, -1))
        if not n:
            return None
        saved = self._states[key] = self._states.pop(key)
        return saved

    def put(self, saved: Saved) -> int:
        """Keep a state, or pass it on at once if it exceeds the budget; return its number, -1: not kept."""
        if saved.n_bytes > self._states.room:
            self._states.on_evict(saved)
            return -1
        self._drop(lambda old: replaces(saved, old, self._n_fixed))
        key = next(self._keys)
        self._states[key] = saved
        self._states.fit()
        return key

    def forget(self, tokens: TokenArray) -> None:
        """Drop all states that are a prefix of `tokens`."""
        self._drop(lambda old: common_prefix(old.tokens, tokens) == len(old.tokens))

    def _drop(self, condition: Callable[[Saved], bool]) -> None:
        for key in [key for key, saved in self._states.items() if condition(saved)]:
            del self._states[key]
            self._states.on_drop(key)
