"""The KV sequences of all slots: every change is made here, and `slot.tokens` mirrors the backend."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

from corral.core.chunk import Memory, TokenArray
from corral.core.errors import CorralError
from corral.core.media import cell_positions, n_positions
from corral.core.result import CacheEvent
from corral.core.settings import EngineSettings
from corral.engine.checkpoint import Checkpoint, CheckpointRule, add_checkpoint
from corral.engine.copy_cost import CopyCost
from corral.engine.disk_cache import DiskCache
from corral.engine.grouping import Grouping
from corral.engine.ports import Backend
from corral.engine.prefix import MIN_REUSE, CachedPrefix, usable
from corral.engine.ram_cache import RamCache
from corral.engine.request import Request, RequestPhase
from corral.engine.reuse import Move
from corral.engine.reuse_key import ReuseKey
from corral.engine.saved import NEVER, SavedState
from corral.engine.ses1 import Ses1
from corral.engine.slot import Slot
from corral.engine.state_journal import StateJournal


class KvStore:
    def __init__(
        self,
        backend: Backend,
        settings: EngineSettings,
        ses1: Ses1,
        grouping: Grouping,
        copy_cost: CopyCost,
    ) -> None:
        self._backend = backend
        self._copy_cost = copy_cost
        self._grouping = grouping
        if self._grouping.is_active and not (backend.can_shift and backend.can_cut):
            raise CorralError("--grp-attn-n: this model does not support self-extend")
        if self._grouping.is_active and backend.projector is not None:
            raise CorralError("--grp-attn-n cannot be combined with --mmproj")
        self._disk: DiskCache | None = None
        if settings.cache_disk:
            n_bytes = int(settings.cache_disk_gib * 2**30)
            self._disk = DiskCache(settings.cache_disk, n_bytes, ses1, backend.n_ctx, self.n_fixed_saved)
        n_bytes = settings.cache_ram_mib << 20 if settings.cache_ram_mib >= 0 else sys.maxsize
        self._journal = StateJournal(settings.reports_states)
        on_evict = self._disk.put if self._disk else lambda _: None
        self._ram = RamCache(n_bytes, self.n_fixed_saved, on_evict, self._journal.drop)
        self._keeps = n_bytes > 0 or self._disk is not None
        self._checkpoint_bytes = n_bytes or sys.maxsize
        can_cut = backend.can_cut_states or grouping.is_active
        n_max, ends = 0 if can_cut else settings.n_ctx_checkpoints, () if can_cut else backend.message_ends
        self._rule = CheckpointRule(n_max, settings.checkpoint_min_step, backend.n_ubatch, ends)

    @property
    def can_shift(self) -> bool:
        """Whether tokens in the middle of a context can be discarded and later ones moved down."""
        return self._backend.can_shift and self._backend.can_cut and not self._grouping.is_active

    @property
    def shares_room(self) -> bool:
        """Whether slots share KV cells, so that one slot's tokens leave less room for the others."""
        return self._backend.mixes_batches

    @property
    def takes_checkpoints(self) -> bool:
        """Whether there is a part of the memory that cannot be cut, or not everywhere."""
        return self._rule.n_max > 0

    def places(self, request: Request) -> tuple[int, ...]:
        """Return where to take checkpoints while the prompt of a request is evaluated."""
        if not self.takes_checkpoints or request.phase is not RequestPhase.PREFILL:
            return ()
        n = request.n_cached
        if request.n_planned != n:
            request.places = self._rule.plan(request.prompt, n, request.task.params.n_system)
            request.n_planned = n
        return request.places

    @property
    def has_disk(self) -> bool:
        return self._disk is not None

    def n_fixed_saved(self, n_tokens: int) -> int:
        """Return how many tokens of a saved state of `n_tokens` can be used only together."""
        return self._grouping.n_grouped(n_tokens) if self._backend.can_cut_states else n_tokens

    def position(self, slot: Slot, n: int | None = None) -> int:
        """Return the position of the slot's next token, or of the one after its first `n`."""
        if n is None and not self._backend.has_planes:
            return self._grouping.position(len(slot.tokens))
        return self._position(slot.tokens.view if n is None else slot.tokens.view[:n])

    def _position(self, tokens: TokenArray) -> int:
        return n_positions(tokens) if self._backend.has_planes else self._grouping.position(len(tokens))

    def room(self, slot: Slot) -> int:
        """Return how many tokens a slot can take at once."""
        return self._grouping.room(len(slot.tokens))

    def holding(self, slot: Slot, reuse_key: ReuseKey, accepts_shifted: bool) -> CachedPrefix:
        """Return what a slot has for requests with this key; of another tenant's tokens only the system
        prompt."""
        cuts, n_fixed = [checkpoint.n for checkpoint in slot.checkpoints], self.n_fixed(slot)
        if not slot.reuse_key.can_serve(reuse_key):
            is_alike = slot.reuse_key.lora_key == reuse_key.lora_key and not slot.reuse_key.is_imported
            tokens = slot.tokens.view[: slot.n_system if is_alike else 0]
            return CachedPrefix(slot.id, tokens, n_fixed, cuts=cuts)
        request, can_cut = slot.request, self.can_cut(slot)
        in_flight = request.prompt if request is not None and request.is_evaluating_prompt else None
        planned = self.places(request) if request is not None and in_flight is not None else ()
        return CachedPrefix(
            slot.id,
            slot.tokens.view if accepts_shifted else slot.tokens.view[: slot.shifted_from],
            n_fixed,
            in_flight,
            can_cut and not (in_flight is not None and self._grouping.n_grouped(len(in_flight))),
            cuts,
            planned,
        )

    def n_fixed(self, slot: Slot) -> int:
        """Return how many tokens of a slot can be used only together."""
        n = len(slot.tokens)
        if self.can_cut(slot):
            return self._grouping.n_grouped(n)
        return min(n, self._backend.first_cut(slot.id)) if self._keeps_window else n

    def can_cut(self, slot: Slot) -> bool:
        return self._backend.can_cut and self._backend.is_whole(slot.id)

    def can_rewind(self, slot: Slot) -> bool:
        """Whether the tokens that were evaluated last, in one batch, can be dropped again."""
        return not self._grouping.is_active and (self.can_cut(slot) or self._keeps_window)

    def set_mark(self, slot: Slot) -> bool:
        """Keep what cannot be cut, to take a draft back. False: something is pending there."""
        state = self._backend.save_partial(slot.id)
        slot.mark = Checkpoint(len(slot.tokens), state) if state is not None else None
        return slot.mark is not None

    def return_to_mark(self, slot: Slot) -> bool:
        """Drop all tokens since the mark. False: that failed, and the slot is empty."""
        mark, slot.mark = slot.mark, None
        assert mark is not None
        is_back = self._backend.load_partial(slot.id, mark.state, self.position(slot, mark.n))
        slot.tokens.truncate(mark.n if is_back else 0)
        self._trimmed(slot)
        return is_back

    @property
    def needs_mark(self) -> bool:
        """Whether a draft can be taken back only to a mark."""
        return not (self._backend.can_cut or self._backend.has_planes or self._grouping.is_active)

    @property
    def _keeps_window(self) -> bool:
        """Whether a sequence without its beginning can be cut after a sliding window that is still there."""
        return self._backend.can_cut and not (self._backend.has_planes or self._grouping.is_active)

    def can_shift_to(self, slot: Slot, n_tail: int) -> bool:
        """Whether the last `n_tail` tokens can move: if older ones are gone, they must fill the window."""
        return self.can_cut(slot) or n_tail >= self._backend.n_window

    def extend(self, slot: Slot, tokens: TokenArray) -> None:
        """Record tokens that the backend has evaluated."""
        slot.tokens.extend(tokens)
        if self._grouping.is_active and not len(slot.tokens) % self._grouping.width:
            run = len(slot.tokens) // self._grouping.width - 1
            self._backend.compress(slot.id, run, self._grouping.width, self._grouping.n)

    def trim(self, slot: Slot, n: int) -> int:
        """Keep up to `n` tokens; return how many stayed: fewer if the model cannot cut there, and up to a
        checkpoint if there is one."""
        if len(slot.tokens) > n:
            is_cut = n >= self.n_fixed(slot) or not n
            if not is_cut and slot.checkpoints and slot.checkpoints[0].n <= n:
                return self._go_back(slot, n)
            position = self.position(slot, n) if is_cut else 0
            slot.tokens.truncate(n if self._backend.trim(slot.id, position) and is_cut else 0)
        return self._trimmed(slot)

    def _go_back(self, slot: Slot, n: int) -> int:
        """Go back to the last checkpoint within the first `n` tokens."""
        checkpoint = next(found for found in reversed(slot.checkpoints) if found.n <= n)
        position = self.position(slot, checkpoint.n)
        is_back = self._backend.load_partial(slot.id, checkpoint.state, position)
        slot.tokens.truncate(checkpoint.n if is_back else 0)
        return self._trimmed(slot)

    def take_checkpoint(self, slot: Slot) -> None:
        """Take a checkpoint after the tokens that a slot has, unless something is pending there."""
        state = self._backend.save_partial(slot.id)
        if state is not None:
            new = Checkpoint(len(slot.tokens), state)
            slot.checkpoints = add_checkpoint(slot.checkpoints, new, self._rule.n_max)

    def fit_checkpoints(self, slots: Sequence[Slot]) -> None:
        """Count the checkpoints of the slots in the budget of host memory: saved states make room for them,
        and the first ones of the least recently used slots go first."""
        n_bytes = sum(checkpoint.n_bytes for slot in slots for checkpoint in slot.checkpoints)
        for slot in sorted(slots, key=lambda slot: (not slot.is_idle, slot.last_used)):
            while n_bytes > self._checkpoint_bytes and slot.checkpoints:
                n_bytes -= slot.checkpoints.pop(0).n_bytes
        self._ram.reserve(n_bytes)

    def rewind(self, slot: Slot, goes_back: bool) -> bool:
        """Drop what an aborted decode left. False: the model cannot, and the slot is empty now, or back at a
        checkpoint if `goes_back`."""
        if slot.mark is not None and slot.mark.n == len(slot.tokens):
            return self.return_to_mark(slot)
        if goes_back and not self._backend.can_cut and slot.checkpoints:
            self._go_back(slot, len(slot.tokens))
            return False
        is_kept = self._backend.trim(slot.id, self.position(slot))
        if not is_kept:
            slot.tokens.truncate(0)
            self._trimmed(slot)
        return is_kept

    def copy(self, src: Slot, dst: Slot, n: int) -> int:
        """Give `dst` the first `n` tokens of `src`."""
        is_cut = n >= self.n_fixed(src)
        n_shared = n if is_cut else len(src.tokens)
        shared = self._backend.share_prefix(src.id, dst.id, self.position(src, n_shared))
        dst.tokens.assign(src.tokens.view[: n_shared if shared else 0])
        dst.checkpoints, dst.mark = list(src.checkpoints), None
        dst.shifted_from = src.shifted_from
        dst.reuse_key = src.reuse_key
        dst.n_system = src.n_system
        return self._trimmed(dst) if is_cut or not shared else self.trim(dst, n)

    def stash(self, slot: Slot, n_kept: int) -> None:
        """Save a slot's tokens in host memory before it loses more than half of them, if that pays."""
        n = len(slot.tokens)
        if (
            self.is_worth_keeping(slot)
            and n - n_kept >= MIN_REUSE
            and n_kept < n / 2
            and self._copy_cost.pays
        ):
            with self._copy_cost.measure(n):
                saved = self._save(slot)
            if saved is not None:
                self.keep(saved, slot)

    def evict(self, slot: Slot) -> None:
        """Empty a slot, and keep its tokens in host memory."""
        self.stash(slot, 0)
        self.trim(slot, 0)

    def erase(self, slot: Slot, tenant: bytes | None = None) -> int:
        """Empty a slot, and drop every cached copy of its tokens; only those of a tenant if one is given."""
        n, tokens = len(slot.tokens), slot.tokens.view.copy()
        self.trim(slot, 0)
        self._ram.forget(tokens, tenant)
        if self._disk is not None:
            self._disk.forget(tokens, tenant)
        return n

    def stored(self, request: Request) -> tuple[int, SavedState | None]:
        """Return the saved state with the longest prefix of a request's prompt, and its usable length."""
        found = (self._ram.get(request), request.fetched)
        counted = [(usable(s, request, self.n_fixed_saved), s) for s in found if s is not None]
        return max(counted, key=lambda pair: pair[0], default=(0, None))

    def fetch(self, request: Request, n_at_hand: int) -> Future[SavedState | None] | None:
        """Start reading a longer prefix of the prompt than is at hand from disk, if there is one."""
        if self._disk is None:
            return None
        return self._disk.fetch(request, n_at_hand)

    def stored_near(self, request: Request, with_disk: bool = True) -> Iterator[TokenArray]:
        """Yield the tokens of the tenant's states in host memory and on disk that can serve a request, among
        them those with the longest common prefix."""
        yield from self._ram.near(request.prompt, lambda key: key == request.reuse_key)
        if self._disk is not None and with_disk:
            yield from self._disk.runs(request.reuse_key)

    def stored_for_all(self, request: Request) -> Iterator[TokenArray]:
        """Yield the same for states in host memory of the server itself."""
        own = request.reuse_key
        return self._ram.near(request.prompt, lambda key: key != own and key.can_serve(own))

    def stored_for_other_adapters(self, request: Request) -> Iterator[TokenArray]:
        """Yield the same for states in host memory of the same owner."""
        return self._ram.near(request.prompt, lambda key: key.is_other_adapters(request.reuse_key))

    def shift(self, slot: Slot, n_keep: int, n_discard: int) -> None:
        """Discard tokens after `n_keep` and move the rest down (drawn in `context_shift.py`)."""
        n = len(slot.tokens)
        if slot.shifted_from < NEVER:
            slot.shifted_from = min(slot.shifted_from, max(n_keep, slot.shifted_from - n_discard))
        self._move(slot, [Move(n_keep + n_discard, n_keep, n - n_keep - n_discard)])

    def reuse(self, slot: Slot, moves: Sequence[Move]) -> None:
        """Move runs of tokens down and discard everything else after the first one's destination (see
        `reuse.py`)."""
        self._move(slot, moves)
        slot.shifted_from = min(slot.shifted_from, moves[0].to)

    def state_bytes(self, slot: Slot) -> int:
        return self._backend.state_bytes(slot.id)

    def save(self, slot: Slot, memory: Memory | None = None) -> SavedState | None:
        """Copy the content of a slot, also right after a copy or shift. None: it cannot be read now."""
        return self._save(slot, memory) if self._backend.flush_pending(slot.id) else None

    def is_worth_keeping(self, slot: Slot) -> bool:
        """Whether to save a slot's tokens for later requests, which an imported state may not serve."""
        return self._keeps and len(slot.tokens) >= MIN_REUSE and not slot.reuse_key.is_imported

    def keep(self, saved: SavedState, slot: Slot) -> None:
        """Save the content of a slot that is about to be replaced."""
        self._journal.stash(slot.id, self._ram.put(saved))

    def take_news(self) -> list[CacheEvent]:
        """Return what came into host memory and left it since the last call."""
        return self._journal.take()

    def load(self, slot: Slot, saved: SavedState) -> bool:
        """Replace the content of a slot. False: there is no room for it now, and the slot is empty."""
        n = len(saved.tokens)
        self._backend.trim(slot.id, 0)
        self._backend.flush_pending(slot.id)
        is_loaded = self._backend.load(slot.id, saved.state, self._end(saved.tokens)) if n else False
        slot.tokens.assign(saved.tokens[: n if is_loaded else 0])
        slot.checkpoints, slot.mark = list(saved.checkpoints), None
        slot.shifted_from = saved.shifted_from
        slot.reuse_key = saved.reuse_key
        slot.n_system = 0
        self._trimmed(slot)
        return is_loaded or not n

    def swap_out(self, slot: Slot) -> SavedState | None:
        """Move the content of a slot to host memory, to be restored later."""
        saved = self._save(slot)
        if saved is not None:
            self.trim(slot, 0)
        return saved

    @contextlib.contextmanager
    def emptied(self, slot: Slot) -> Iterator[None]:
        """Use the sequence of a slot for something else, and restore its content afterwards if possible."""
        saved, n_system = self.save(slot) if len(slot.tokens) else None, slot.n_system
        self.trim(slot, 0)
        try:
            yield
        finally:
            if saved is not None and self.load(slot, saved):
                slot.n_system = n_system

    def flush(self, slots: Sequence[Slot]) -> None:
        """Write everything in host memory to disk."""
        if self._disk is not None:
            live = [self.save(slot) for slot in slots if len(slot.tokens)]
            for saved in [*self._ram, *live]:
                if saved is not None:
                    self._disk.put(saved, is_last=True)
            self._disk.close()

    def _save(self, slot: Slot, memory: Memory | None = None) -> SavedState | None:
        state = self._backend.save(slot.id, memory)
        if state is None:
            return None
        lora_key, tenant, is_imported = slot.reuse_key
        return SavedState(
            slot.tokens.view.copy(),
            state,
            slot.shifted_from,
            lora_key=lora_key,
            tenant=tenant,
            is_imported=is_imported,
            checkpoints=tuple(slot.checkpoints),
        )

    def _end(self, tokens: TokenArray) -> int:
        """Return the position after the last token; a flat image has one position, where it begins."""
        return int(cell_positions(tokens)[-1]) + 1 if self._backend.has_planes else self._position(tokens)

    def _move(self, slot: Slot, moves: Sequence[Move]) -> None:
        slot.checkpoints = [checkpoint for checkpoint in slot.checkpoints if checkpoint.n <= moves[0].to]
        for move in moves:
            self._backend.move(slot.id, move.start, move.start + move.n, move.to)
            slot.tokens.move(move.start, move.start + move.n, move.to)
        self.trim(slot, moves[-1].end)
        self._backend.flush_pending(slot.id)

    def _trimmed(self, slot: Slot) -> int:
        """Adjust marks that refer to tokens that are gone; return how many tokens are left."""
        n = len(slot.tokens)
        slot.checkpoints = [checkpoint for checkpoint in slot.checkpoints if checkpoint.n <= n]
        if slot.mark is not None and slot.mark.n > n:
            slot.mark = None
        if n <= slot.shifted_from:
            slot.shifted_from = NEVER
        return n
