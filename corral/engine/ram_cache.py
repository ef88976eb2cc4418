"""States of sequences that had to yield their slot, in host memory within a byte budget."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator

from corral.core.chunk import TokenArray, common_prefix
from corral.engine.prefix import Wish, replaces, usable
from corral.engine.saved import Saved


class RamCache:
    """Mutable; least recently used goes first, to `on_evict`. Entries that another one continues are dropped.

    `n_fixed(n)`: of a saved state of `n` tokens, how many can be used only together.
    """

    def __init__(
        self,
        budget_bytes: int,
        n_fixed: Callable[[int], int] = lambda _: 0,
        on_evict: Callable[[Saved], None] | None = None,
    ) -> None:
        self._budget = budget_bytes
        self._n_fixed = n_fixed
        self._on_evict = on_evict or (lambda _: None)
        self._entries: collections.OrderedDict[int, Saved] = collections.OrderedDict()
        self._n_bytes = 0
        self._next_key = 0

    def __iter__(self) -> Iterator[Saved]:
        return iter(self._entries.values())

    @property
    def n_bytes(self) -> int:
        return self._n_bytes

    def get(self, wish: Wish) -> Saved | None:
        """The entry that gives most of a prompt; it counts as used."""
        entries = self._entries.items()
        matches = ((usable(saved, wish, self._n_fixed), key) for key, saved in entries)
        n, key = max(matches, default=(0, -1))
        if not n:
            return None
        self._entries.move_to_end(key)
        return self._entries[key]

    def put(self, saved: Saved) -> None:
        """Keep a state, or hand it on at once if it is larger than everything."""
        if saved.n_bytes > self._budget:
            self._on_evict(saved)
            return
        self._drop_all(lambda old: replaces(saved, old, self._n_fixed))
        while self._n_bytes + saved.n_bytes > self._budget:
            self._on_evict(self._drop(next(iter(self._entries))))
        self._entries[self._next_key] = saved
        self._next_key += 1
        self._n_bytes += saved.n_bytes

    def forget(self, tokens: TokenArray) -> None:
        """Drop everything that `tokens` begin with."""
        self._drop_all(lambda old: common_prefix(old.tokens, tokens) == len(old.tokens))

    def _drop_all(self, condition: Callable[[Saved], bool]) -> None:
        for key in [key for key, saved in self._entries.items() if condition(saved)]:
            self._drop(key)

    def _drop(self, key: int) -> Saved:
        saved = self._entries.pop(key)
        self._n_bytes -= saved.n_bytes
        return saved
