"""States of sequences that had to yield their slot, in host memory within a byte budget."""

from __future__ import annotations

import collections

from corral.core.chunk import State, TokenArray
from corral.engine.prefix import reusable
from corral.engine.slot import common_prefix


class RamCache:
    """Mutable; least recently used goes first. Entries that another one continues are dropped.

    Unless `can_cut`, an entry serves only prompts that begin with all of it.
    """

    def __init__(self, budget_bytes: int, can_cut: bool = True) -> None:
        self._budget = budget_bytes
        self._can_cut = can_cut
        self._entries: collections.OrderedDict[int, tuple[TokenArray, State]] = collections.OrderedDict()
        self._n_bytes = 0
        self._next_key = 0

    @property
    def is_enabled(self) -> bool:
        return self._budget > 0

    @property
    def n_bytes(self) -> int:
        return self._n_bytes

    def longest(self, prompt: TokenArray) -> int:
        """How many tokens of `prompt` the best entry can give."""
        return self._best(prompt)[0]

    def get(self, prompt: TokenArray) -> tuple[TokenArray, State] | None:
        """The entry that gives most of `prompt`; it counts as used."""
        n, key = self._best(prompt)
        if not n:
            return None
        self._entries.move_to_end(key)
        return self._entries[key]

    def put(self, tokens: TokenArray, state: State) -> None:
        if len(state) > self._budget:
            return
        covered = [k for k, (t, _) in self._entries.items() if common_prefix(t, tokens) == len(t)]
        for key in covered:
            self._drop(key)
        while self._n_bytes + len(state) > self._budget:
            self._drop(next(iter(self._entries)))
        self._entries[self._next_key] = (tokens.copy(), state)
        self._next_key += 1
        self._n_bytes += len(state)

    def _best(self, prompt: TokenArray) -> tuple[int, int]:
        entries = self._entries.items()
        matches = ((reusable(tokens, prompt, self._can_cut), key) for key, (tokens, _) in entries)
        return max(matches, default=(0, -1))

    def _drop(self, key: int) -> None:
        self._n_bytes -= len(self._entries.pop(key)[1])
