"""States of sequences that had to yield their slot, in host memory within a byte budget."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from cachetools import LRUCache

from corral.core.chunk import TokenArray, common_prefix
from corral.engine.prefix import replaces, usable
from corral.engine.request import Request
from corral.engine.saved import Saved


class _States(LRUCache[int, Saved]):
    def __init__(self, n_bytes: int, on_evict: Callable[[Saved], None]) -> None:
        super().__init__(n_bytes, getsizeof=lambda saved: saved.n_bytes)
        self.on_evict = on_evict

    def popitem(self) -> tuple[int, Saved]:
        key, saved = super().popitem()
        self.on_evict(saved)
        return key, saved


class RamCache:
    """Mutable; the least recently used goes first, to `on_evict`. One that another one continues is dropped.

    `n_fixed(n)`: of a saved state of `n` tokens, how many can be used only together.
    """

    def __init__(
        self,
        budget_bytes: int,
        n_fixed: Callable[[int], int] = lambda _: 0,
        on_evict: Callable[[Saved], None] = lambda _: None,
    ) -> None:
        self._n_fixed = n_fixed
        self._states = _States(budget_bytes, on_evict)
        self._keys = itertools.count()

    def __iter__(self) -> Iterator[Saved]:
        """The least recently used first."""
        return iter(self._states.values())

    @property
    def n_bytes(self) -> int:
        return int(self._states.currsize)

    def get(self, request: Request) -> Saved | None:
        """The state that gives most of a prompt; it counts as used."""
        matches = ((usable(saved, request, self._n_fixed), key) for key, saved in self._states.items())
        n, key = max(matches, default=(0, -1))
        if not n:
            return None
        saved = self._states[key] = self._states.pop(key)
        return saved

    def put(self, saved: Saved) -> None:
        """Keep a state, or hand it on at once if it is larger than everything."""
        if saved.n_bytes > self._states.maxsize:
            self._states.on_evict(saved)
            return
        self._drop(lambda old: replaces(saved, old, self._n_fixed))
        self._states[next(self._keys)] = saved

    def forget(self, tokens: TokenArray) -> None:
        """Drop everything that `tokens` begin with."""
        self._drop(lambda old: common_prefix(old.tokens, tokens) == len(old.tokens))

    def _drop(self, condition: Callable[[Saved], bool]) -> None:
        for key in [key for key, saved in self._states.items() if condition(saved)]:
            del self._states[key]
