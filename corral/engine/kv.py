"""The KV sequences of all slots: every change goes through here, and `slot.tokens` mirrors the backend."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

from corral.core.chunk import Memory, TokenArray
from corral.core.errors import CorralError
from corral.core.media import cell_positions, n_positions
from corral.core.settings import EngineSettings
from corral.engine.disk_cache import DiskCache
from corral.engine.grouping import Grouping
from corral.engine.ports import Backend
from corral.engine.prefix import MIN_REUSE, CachedPrefix, usable
from corral.engine.ram_cache import RamCache
from corral.engine.request import Request
from corral.engine.reuse import Move
from corral.engine.reuse_key import ReuseKey
from corral.engine.saved import NEVER, Saved
from corral.engine.ses1 import Ses1
from corral.engine.slot import Slot


class KvStore:
    def __init__(self, backend: Backend, settings: EngineSettings, ses1: Ses1, grouping: Grouping) -> None:
        self._backend = backend
        self._grouping = grouping
        if self._grouping.is_active and not (backend.can_shift and backend.can_cut):
            raise CorralError("--grp-attn-n: the context of this model cannot be grouped")
        if self._grouping.is_active and backend.projector is not None:
            raise CorralError("--grp-attn-n cannot be combined with --mmproj")
        self._disk: DiskCache | None = None
        if settings.cache_disk:
            n_bytes = int(settings.cache_disk_gib * 2**30)
            self._disk = DiskCache(settings.cache_disk, n_bytes, ses1, backend.n_ctx, self.n_fixed_saved)
        n_bytes = settings.cache_ram_mib << 20 if settings.cache_ram_mib >= 0 else sys.maxsize
        self._ram = RamCache(n_bytes, self.n_fixed_saved, self._disk.put if self._disk else lambda _: None)
        self._keeps = n_bytes > 0 or self._disk is not None

    @property
    def can_shift(self) -> bool:
        """Whether tokens in the middle of a context can go, and those behind them move down."""
        return self._backend.can_shift and self._backend.can_cut and not self._grouping.is_active

    @property
    def shares_room(self) -> bool:
        """Whether what one slot holds leaves less room for the others."""
        return self._backend.mixes_batches

    @property
    def has_disk(self) -> bool:
        return self._disk is not None

    def n_fixed_saved(self, n_tokens: int) -> int:
        """Of a saved state of `n_tokens`, how many can be used only together."""
        return self._grouping.n_grouped(n_tokens) if self._backend.can_cut_states else n_tokens

    def position(self, slot: Slot, n: int | None = None) -> int:
        """Where the slot's next token goes, or the one after its first `n`."""
        return self._position(slot.tokens.view if n is None else slot.tokens.view[:n])

    def _position(self, tokens: TokenArray) -> int:
        return n_positions(tokens) if self._backend.has_planes else self._grouping.position(len(tokens))

    def room(self, slot: Slot) -> int:
        """How many tokens a slot can take at once."""
        return self._grouping.room(len(slot.tokens))

    def holding(self, slot: Slot, reuse_key: ReuseKey, accepts_shifted: bool) -> CachedPrefix:
        """What a slot has for such requests: of those of others, only what the server says to all."""
        if not slot.reuse_key.can_serve(reuse_key):
            is_alike = slot.reuse_key.lora_key == reuse_key.lora_key and self.can_cut(slot)
            return CachedPrefix(slot.id, slot.tokens.view[: slot.n_system if is_alike else 0])
        n, request, can_cut = len(slot.tokens), slot.request, self.can_cut(slot)
        in_flight = request.prompt if request is not None and request.is_evaluating_prompt else None
        return CachedPrefix(
            slot.id,
            slot.tokens.view if accepts_shifted else slot.tokens.view[: slot.shifted_from],
            self._grouping.n_grouped(n) if can_cut else n,
            in_flight,
            can_cut and not (in_flight is not None and self._grouping.n_grouped(len(in_flight))),
        )

    def can_cut(self, slot: Slot) -> bool:
        return self._backend.can_cut and self._backend.is_whole(slot.id)

    def can_rewind(self, slot: Slot) -> bool:
        """Whether a few tokens that were evaluated last can be dropped again."""
        return self.can_cut(slot) and not self._grouping.is_active

    def can_shift_to(self, slot: Slot, n_tail: int) -> bool:
        """Whether the last `n_tail` tokens can move: they must fill a window that has nothing behind it."""
        return self.can_cut(slot) or n_tail >= self._backend.n_window

    def extend(self, slot: Slot, tokens: TokenArray) -> None:
        """The backend has evaluated these."""
        slot.tokens.extend(tokens)
        n = len(slot.tokens)
        if self._grouping.is_active and not n % self._grouping.width:
            run = n // self._grouping.width - 1
            self._backend.compress(slot.id, run, self._grouping.width, self._grouping.n)

    def trim(self, slot: Slot, n: int) -> int:
        """Keep up to `n` tokens; returns how many stayed (0 where the model cannot cut)."""
        if len(slot.tokens) > n:
            is_cut = n >= self._grouping.n_grouped(len(slot.tokens)) or not n
            position = self.position(slot, n) if is_cut else 0
            slot.tokens.truncate(n if self._backend.trim(slot.id, position) and is_cut else 0)
        return self._trimmed(slot)

    def rewind(self, slot: Slot) -> bool:
        """Drop what an unfinished decode left behind. False: the model cannot, and the slot is empty now."""
        is_kept = self._backend.trim(slot.id, self.position(slot))
        if not is_kept:
            slot.tokens.truncate(0)
            self._trimmed(slot)
        return is_kept

    def copy(self, src: Slot, dst: Slot, n: int) -> int:
        """Give `dst` the first `n` tokens of `src`."""
        shared = self._backend.share_prefix(src.id, dst.id, self.position(src, n))
        dst.tokens.assign(src.tokens.view[: n if shared else 0])
        dst.shifted_from = src.shifted_from
        dst.reuse_key = src.reuse_key
        dst.n_system = src.n_system
        return self._trimmed(dst)

    def stash(self, slot: Slot, n_kept: int) -> None:
        """Before a slot loses more than half of its tokens, keep them in host memory."""
        n = len(slot.tokens)
        if self._keeps and n - n_kept >= MIN_REUSE and n_kept < n / 2:
            saved = self._save(slot)
            if saved is not None:
                self.keep(saved)

    def evict(self, slot: Slot) -> None:
        """Empty a slot, keeping its tokens in host memory."""
        self.stash(slot, 0)
        self.trim(slot, 0)

    def erase(self, slot: Slot) -> int:
        """Empty a slot and forget everything that is kept of its tokens."""
        n, tokens = len(slot.tokens), slot.tokens.view.copy()
        self.trim(slot, 0)
        self._ram.forget(tokens)
        if self._disk is not None:
            self._disk.forget(tokens)
        return n

    def stored(self, request: Request) -> tuple[int, Saved | None]:
        """The saved state that gives most of a request's prompt, and how much."""
        found = (self._ram.get(request), request.fetched)
        counted = [(usable(s, request, self.n_fixed_saved), s) for s in found if s is not None]
        return max(counted, key=lambda pair: pair[0], default=(0, None))

    def fetch(self, request: Request, n_at_hand: int) -> Future[Saved | None] | None:
        """Begin to read more of a prompt than is at hand from disk, if it is there."""
        if self._disk is None:
            return None
        return self._disk.fetch(request, n_at_hand)

    def all_stored(self, reuse_key: ReuseKey) -> Iterator[TokenArray]:
        """The tokens of everything in host memory and on disk that serves such requests."""
        yield from (saved.tokens for saved in self._ram if saved.reuse_key.can_serve(reuse_key))
        if self._disk is not None:
            yield from self._disk.runs(reuse_key)

    def shift(self, slot: Slot, n_keep: int, n_discard: int) -> None:
        """Forget tokens in the middle and move the rest down."""
        n = len(slot.tokens)
        if slot.shifted_from < NEVER:
            slot.shifted_from = min(slot.shifted_from, max(n_keep, slot.shifted_from - n_discard))
        self._move(slot, [Move(n_keep + n_discard, n_keep, n - n_keep - n_discard)])

    def reuse(self, slot: Slot, moves: Sequence[Move]) -> None:
        """Move runs of tokens down and forget everything else behind the first one's place."""
        self._move(slot, moves)
        slot.shifted_from = min(slot.shifted_from, moves[0].to)

    def state_bytes(self, slot: Slot) -> int:
        return self._backend.state_bytes(slot.id)

    def save(self, slot: Slot, memory: Memory | None = None) -> Saved | None:
        """The content of a slot, also right after it was copied or shifted. None: it cannot be read now."""
        return self._save(slot, memory) if self._backend.flush_pending(slot.id) else None

    def is_worth_keeping(self, slot: Slot) -> bool:
        return self._keeps and len(slot.tokens) >= MIN_REUSE

    def keep(self, saved: Saved) -> None:
        """Hold on to the content of a slot that is about to get another one."""
        self._ram.put(saved)

    def load(self, slot: Slot, saved: Saved) -> bool:
        """Replace the content of a slot. False: there is no room for it now, and the slot is empty."""
        n = len(saved.tokens)
        self._backend.trim(slot.id, 0)
        self._backend.flush_pending(slot.id)
        is_loaded = self._backend.load(slot.id, saved.state, self._end(saved.tokens)) if n else False
        slot.tokens.assign(saved.tokens[: n if is_loaded else 0])
        slot.shifted_from = saved.shifted_from
        slot.reuse_key = saved.reuse_key
        slot.n_system = 0
        self._trimmed(slot)
        return is_loaded or not n

    def swap_out(self, slot: Slot) -> Saved | None:
        """Take everything out of a slot, to be put back later."""
        saved = self._save(slot)
        if saved is not None:
            self.trim(slot, 0)
        return saved

    def flush(self, slots: Sequence[Slot]) -> None:
        """Bring everything that is kept to disk."""
        if self._disk is not None:
            live = [self.save(slot) for slot in slots if len(slot.tokens)]
            for saved in [*self._ram, *live]:
                if saved is not None:
                    self._disk.put(saved, is_last=True)
            self._disk.close()

    def _save(self, slot: Slot, memory: Memory | None = None) -> Saved | None:
        state = self._backend.save(slot.id, memory)
        if state is None:
            return None
        lora_key, tenant = slot.reuse_key
        return Saved(slot.tokens.view.copy(), state, slot.shifted_from, lora_key=lora_key, tenant=tenant)

    def _end(self, tokens: TokenArray) -> int:
        """The position behind that of the last token; that of a flat image is where it begins."""
        return int(cell_positions(tokens)[-1]) + 1 if self._backend.has_planes else self._position(tokens)

    def _move(self, slot: Slot, moves: Sequence[Move]) -> None:
        for move in moves:
            self._backend.move(slot.id, move.start, move.start + move.n, move.to)
            slot.tokens.move(move.start, move.start + move.n, move.to)
        self.trim(slot, moves[-1].end)
        self._backend.flush_pending(slot.id)

    def _trimmed(self, slot: Slot) -> int:
        """Adjust what was true of tokens that are gone; returns how many are left."""
        n = len(slot.tokens)
        if n <= slot.shifted_from:
            slot.shifted_from = NEVER
        return n
