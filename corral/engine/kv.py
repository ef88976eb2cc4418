"""The KV sequences of all slots: every change goes through here, and `slot.tokens` mirrors the backend."""

from __future__ import annotations

from corral.core.chunk import State, TokenArray
from corral.engine.ports import Backend
from corral.engine.prefix import GAIN, reusable
from corral.engine.ram_cache import RamCache
from corral.engine.slot import Slot


class KvStore:
    def __init__(self, backend: Backend, ram: RamCache) -> None:
        self._backend = backend
        self._ram = ram

    def n_in_ram(self, prompt: TokenArray) -> int:
        return self._ram.longest(prompt)

    def trim(self, slot: Slot, n: int) -> int:
        """Keep up to `n` tokens; returns how many stayed (0 where the model cannot cut)."""
        if len(slot.tokens) > n:
            slot.tokens.truncate(n if self._backend.trim(slot.id, n) else 0)
        if not len(slot.tokens):
            slot.can_cut = self._backend.can_cut
        return len(slot.tokens)

    def rewind(self, slot: Slot) -> bool:
        """Drop what an unfinished decode left behind. False: the model cannot, and the slot is empty now."""
        is_kept = self._backend.trim(slot.id, len(slot.tokens))
        if not is_kept:
            slot.tokens.truncate(0)
            slot.can_cut = self._backend.can_cut
        return is_kept

    def copy(self, src: Slot, dst: Slot, n: int) -> int:
        """Give `dst` the first `n` tokens of `src`."""
        shared = self._backend.share_prefix(src.id, dst.id, n)
        dst.tokens.assign(src.tokens.view[: n if shared else 0])
        dst.can_cut = src.can_cut if shared else self._backend.can_cut
        return len(dst.tokens)

    def stash(self, slot: Slot, n_kept: int) -> None:
        """Before a slot loses more than half of its tokens, keep them in host memory."""
        n = len(slot.tokens)
        if self._ram.is_enabled and n - n_kept >= GAIN and n_kept < n / 2:
            state = self._backend.save(slot.id)
            if state is not None:
                self._ram.put(slot.tokens.view, state)

    def evict(self, slot: Slot) -> None:
        """Empty a slot, keeping its tokens in host memory."""
        self.stash(slot, 0)
        self.trim(slot, 0)

    def restore(self, slot: Slot, prompt: TokenArray) -> int:
        """Fill a slot from host memory with as much of `prompt` as there is."""
        entry = self._ram.get(prompt)
        if entry is None or not self.swap_in(slot, *entry):
            return self.trim(slot, 0)
        return self.trim(slot, reusable(slot.tokens.view, prompt, slot.can_cut))

    def shift(self, slot: Slot, n_keep: int, n_discard: int) -> None:
        self._backend.shift(slot.id, n_keep, n_discard)
        slot.tokens.remove(n_keep, n_discard)

    def swap_out(self, slot: Slot) -> tuple[TokenArray, State] | None:
        """Take everything out of a slot, to be put back later."""
        state = self._backend.save(slot.id)
        if state is None:
            return None
        tokens = slot.tokens.view.copy()
        self.trim(slot, 0)
        return tokens, state

    def swap_in(self, slot: Slot, tokens: TokenArray, state: State) -> bool:
        loaded = self._backend.load(slot.id, state)
        slot.tokens.assign(tokens if loaded else tokens[:0])
        slot.can_cut = self._backend.can_cut_states if loaded else self._backend.can_cut
        return loaded
