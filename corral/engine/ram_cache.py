"""States of sequences that lost their slot, in host memory with a byte budget."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from corral.core.chunk import TokenArray, common_prefix
from corral.core.media import has_media
from corral.engine.prefix import replaces, usable
from corral.engine.request import Request
from corral.engine.reuse_key import ReuseKey
from corral.engine.saved import NEVER, SavedState
from corral.engine.token_index import TokenIndex


class RamCache:
    """Mutable; evicts the least recently used to `on_evict`, and drops states that are a prefix of another
    one.

    States that can be cut anywhere are found by an index, also among many thousands; others are compared one
    by one. `n_fixed(n)`: how many tokens of a saved state of `n` can be used only together.
    """

    def __init__(
        self,
        budget_bytes: int,
        n_fixed: Callable[[int], int] = lambda _: 0,
        on_evict: Callable[[SavedState], None] = lambda _: None,
        on_drop: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`on_drop`: called with the number of every state that is gone."""
        self.n_bytes = 0
        self._room = self._budget = budget_bytes
        self._n_fixed = n_fixed
        self._on_evict = on_evict
        self._on_drop = on_drop
        self._states: dict[int, SavedState] = {}  # the least recently used first
        self._indexes: defaultdict[ReuseKey, TokenIndex] = defaultdict(TokenIndex)
        self._others: dict[int, SavedState] = {}
        self._keys = itertools.count()

    def __iter__(self) -> Iterator[SavedState]:
        """Iterate, the least recently used first."""
        return iter(self._states.values())

    def reserve(self, n_bytes: int) -> None:
        """Leave this part of the budget to others from now on."""
        self._room = self._budget - n_bytes
        self._make_room(0)

    def get(self, request: Request) -> SavedState | None:
        """Return the state with the longest prefix of a prompt; it counts as used."""
        keys: Iterable[int] = self._states
        if not has_media(request.prompt):  # else also counts what follows the common prefix
            keys = self._near(request.prompt, lambda key: key.can_serve(request.reuse_key))
        matches = ((usable(self._states[key], request, self._n_fixed), key) for key in keys)
        n, key = max(matches, default=(0, -1))
        if not n:
            return None
        saved = self._states[key] = self._states.pop(key)
        return saved

    def near(self, prompt: TokenArray, can_serve: Callable[[ReuseKey], bool]) -> Iterator[TokenArray]:
        """Yield the tokens of some states, among them those with the longest common prefix with a prompt."""
        return (self._states[key].tokens for key in self._near(prompt, can_serve))

    def put(self, saved: SavedState) -> int:
        """Keep a state, or pass it on at once if it exceeds the budget; return its number, -1: not kept."""
        if saved.n_bytes > self._room:
            self._on_evict(saved)
            return -1
        index = self._indexes.get(saved.reuse_key, TokenIndex())
        old = [*self._others, *index.prefixes_of(saved.tokens)]
        self._drop(key for key in old if replaces(saved, self._states[key], self._n_fixed))
        self._make_room(saved.n_bytes)
        key = next(self._keys)
        self._add(key, saved)
        return key

    def forget(self, tokens: TokenArray, tenant: bytes | None = None) -> None:
        """Drop all states that are a prefix of `tokens`; only those of a tenant if one is given."""
        indexed = [key for index in self._indexes.values() for key in index.prefixes_of(tokens)]
        others = [key for key, old in self._others.items() if _is_prefix(old.tokens, tokens)]
        self._drop(key for key in [*indexed, *others] if tenant in (None, self._states[key].tenant))

    def _near(self, prompt: TokenArray, can_serve: Callable[[ReuseKey], bool]) -> Iterator[int]:
        yield from (key for key, saved in self._others.items() if can_serve(saved.reuse_key))
        for reuse_key, index in self._indexes.items():
            if can_serve(reuse_key):
                yield index.nearest(prompt)[1]

    def _add(self, key: int, saved: SavedState) -> None:
        self._states[key] = saved
        self.n_bytes += saved.n_bytes
        if self._can_be_cut(saved):
            self._indexes[saved.reuse_key].add(key, saved.tokens)
        else:
            self._others[key] = saved

    def _remove(self, key: int) -> SavedState:
        saved = self._states.pop(key)
        self.n_bytes -= saved.n_bytes
        if self._others.pop(key, None) is None:
            index = self._indexes[saved.reuse_key]
            index.remove(key, saved.tokens)
            if not index:
                del self._indexes[saved.reuse_key]
        return saved

    def _can_be_cut(self, saved: SavedState) -> bool:
        """Whether any prefix of it can be used by any request with its key."""
        return saved.shifted_from == NEVER and not saved.checkpoints and not self._n_fixed(len(saved.tokens))

    def _make_room(self, n_bytes: int) -> None:
        while self._states and self.n_bytes + n_bytes > self._room:
            key = next(iter(self._states))
            self._on_evict(self._remove(key))
            self._on_drop(key)

    def _drop(self, keys: Iterable[int]) -> None:
        for key in list(keys):
            self._remove(key)
            self._on_drop(key)


def _is_prefix(tokens: TokenArray, of: TokenArray) -> bool:
    return common_prefix(tokens, of) == len(tokens)
