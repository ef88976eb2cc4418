"""Actions on slots, as coroutines: save, restore, erase, tokens, shift, fork.

Each waits for its turn; files are read and written in another thread. Unless an action `sees_all`, slots and
states of other tenants are refused.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from corral.core.chunk import Memory
from corral.core.errors import (
    Conflict,
    CorralError,
    Forbidden,
    ForeignSlot,
    InvalidRequest,
    NoSuchSlot,
    NotSupported,
    Unavailable,
)
from corral.core.file import file_error
from corral.core.media import NO_TOKEN, span_around
from corral.core.result import SlotReport
from corral.core.task import Busy, Command, SlotAction, Verb
from corral.engine.coroutine import Coroutine, Coroutines, WaitForSlots
from corral.engine.kv import KvStore
from corral.engine.saved import SavedState
from corral.engine.scheduler import Scheduler
from corral.engine.ses1 import Ses1, seal_tenant
from corral.engine.slot import Slot
from corral.engine.worker import Worker

_PAGE_BYTES = 4096


class Actions(Worker):
    handles = (SlotAction,)

    def __init__(
        self,
        scheduler: Scheduler,
        kv: KvStore,
        ses1: Ses1,
        coroutines: Coroutines,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._scheduler = scheduler
        self._kv = kv
        self._ses1 = ses1
        self._coroutines = coroutines
        self._clock = clock
        self._files = ThreadPoolExecutor(2, "state")
        self._writing: set[int] = set()  # slots whose state is being written to a file
        self._verbs = {
            Verb.SAVE: self._save,
            Verb.RESTORE: self._restore,
            Verb.ERASE: self._erase,
            Verb.TOKENS: self._tokens,
            Verb.SHIFT: self._shift,
            Verb.FORK: self._fork,
        }

    def handle(self, action: Command, _arrival: int) -> Coroutine:
        """Start an action; the file that came with it is closed at its end."""
        assert isinstance(action, SlotAction)
        if action.fd < 0 and action.verb in (Verb.SAVE, Verb.RESTORE):
            raise Unavailable("too many open files")
        try:
            return (yield from self._verbs[action.verb](action))
        finally:
            if action.fd >= 0:
                os.close(action.fd)

    def _save(self, action: SlotAction) -> Coroutine:
        # One state of a slot at a time is written: `exclusive` is held until it is done.
        if action.busy is Busy.REFUSE and action.slot in self._writing:
            raise Conflict(f"another state of slot {action.slot} is being written")
        (slot,) = yield from self._turn(action, action.slot, exclusive=action.slot)
        started = self._clock()
        saved = yield from self._copy_out(slot, exclusive=slot.id)
        if saved is None:
            raise CorralError("the slot's state cannot be read now: no slot has room to prepare it")
        self._writing.add(slot.id)
        try:
            writing = self._files.submit(self._write, action, replace(saved, tenant=_sealed_tenant(action)))
            yield WaitForSlots(frozenset(), after=writing, exclusive=slot.id)
        finally:
            self._writing.discard(slot.id)
        return self._report(action, len(saved.tokens), started, writing.result())

    def _restore(self, action: SlotAction) -> Coroutine:
        (slot,) = yield from self._turn(action, action.slot)
        started = self._clock()
        reading = self._files.submit(self._ses1.read, action.fd, action.is_ours, action.secret)
        yield WaitForSlots(frozenset((slot.id,)), after=reading)
        saved = _take_over(reading.result(), action)
        before = yield from self._copy_out(slot)
        if before is not None and self._kv.is_worth_keeping(slot):
            self._kv.keep(before, slot)
        self._load(slot, saved, before)
        self._scheduler.touch(slot)
        slot.n_evaluated = 0
        return self._report(action, len(slot.tokens), started, os.fstat(action.fd).st_size)

    def _erase(self, action: SlotAction) -> Coroutine:
        (slot,) = yield from self._turn(action, action.slot)
        n_erased = self._kv.erase(slot, None if action.sees_all else action.tenant)
        return self._report(action, n_erased, self._clock())

    def _tokens(self, action: SlotAction) -> Coroutine:
        (slot,) = yield from self._turn(action, action.slot)
        return SlotReport(
            task_id=action.id,
            id_slot=slot.id,
            n_tokens=len(slot.tokens),
            n_evaluated=slot.n_evaluated,
            tokens=np.maximum(slot.tokens.view, NO_TOKEN).tolist(),
        )

    def _shift(self, action: SlotAction) -> Coroutine:
        (slot,) = yield from self._turn(action, action.slot)
        n, n_keep, n_discard = len(slot.tokens), action.n_keep, action.n_discard
        started = self._clock()
        if n_keep + n_discard > n:
            raise InvalidRequest(
                f"n_keep ({n_keep}) + n_discard ({n_discard}) exceed the slot's {n} tokens",
                field="n_discard",
            )
        if not self._kv.can_shift:
            raise NotSupported("the context cannot be shifted with this model, or with --grp-attn-n")
        if not self._kv.can_shift_to(slot, n - n_keep - n_discard):
            raise NotSupported("the slot has only a sliding window left, of which more must be kept")
        for at in (n_keep, n_keep + n_discard):
            span = span_around(slot.tokens.view, at)
            if span is not None:
                raise InvalidRequest(
                    f"a cut after {at} tokens would split the image or audio clip at tokens "
                    f"{span.start} to {span.end - 1}",
                    field="n_discard",
                )
        self._kv.shift(slot, n_keep, n_discard)
        return self._report(action, len(slot.tokens), started)

    def _fork(self, action: SlotAction) -> Coroutine:
        if action.source == action.slot:
            raise InvalidRequest("a slot cannot be forked to itself", field="slot")
        slot, source = yield from self._turn(action, action.slot, action.source)
        started = self._clock()
        yield from self._keep(slot, source)
        n = len(source.tokens)
        if self._kv.copy(source, slot, n) < n:
            raise NotSupported("this model does not support copying sequences")
        slot.reuse_key = source.reuse_key._replace(tenant=action.tenant)
        self._scheduler.touch(slot)
        slot.n_evaluated = 0
        return self._report(action, n, started)

    def _load(self, slot: Slot, saved: SavedState, before: SavedState | None) -> None:
        """Load a state into a slot, which has the state `before` again if that fails; evict cached sequences
        if slots share the KV cells."""
        others = [s for s in self._scheduler.evictable if s is not slot] if self._kv.shares_room else []
        n_system = slot.n_system
        while not self._kv.load(slot, saved):
            if not others:
                if before is not None and self._kv.load(slot, before):
                    slot.n_system = n_system
                raise InvalidRequest("the state does not fit into the context, or belongs to another model")
            self._kv.evict(others.pop(0))

    def _keep(self, slot: Slot, *others: Slot) -> Generator[WaitForSlots, None, None]:
        """Save what an idle slot is about to lose in the cache, and keep the other slots idle meanwhile."""
        if self._kv.is_worth_keeping(slot):
            saved = yield from self._copy_out(slot, *others)
            if saved is not None:
                self._kv.keep(saved, slot)

    def _copy_out(
        self, slot: Slot, *others: Slot, exclusive: int | None = None
    ) -> Generator[WaitForSlots, None, SavedState | None]:
        """Return the content of an idle slot. Fresh memory costs more than the copy: another thread allocates
        it."""
        memory = self._files.submit(_touch, self._kv.state_bytes(slot))
        yield WaitForSlots(frozenset(s.id for s in (slot, *others)), memory, exclusive)
        return self._kv.save(slot, memory.result())

    def _turn(
        self, action: SlotAction, *ids: int, exclusive: int | None = None
    ) -> Generator[WaitForSlots, None, list[Slot]]:
        """Wait until the action's slots are idle, and return them. Raises ForeignSlot, without waiting if it
        is known by then."""
        slots, reserved = self._scheduler.public, self._coroutines.reserved
        for id in ids:
            if not 0 <= id < len(slots):
                raise NoSuchSlot(id, len(slots))
            _check_tenant(slots[id], action)
            if action.busy is Busy.REFUSE and (id in reserved or not slots[id].is_idle):
                raise Conflict(f"slot {id} is busy")
        if action.busy is not Busy.IGNORE:
            yield WaitForSlots(frozenset(ids), exclusive=exclusive)
        for id in ids:
            _check_tenant(slots[id], action)
        return [slots[id] for id in ids]

    def _write(self, action: SlotAction, saved: SavedState) -> int:
        try:
            if action.is_ggsq:
                return self._ses1.write_ggsq(action.fd, saved)
            return self._ses1.write(action.fd, saved, action.secret)
        except OSError as error:
            raise file_error("the state cannot be written", error) from None

    def _report(self, action: SlotAction, n_tokens: int, started: float, n_bytes: int = 0) -> SlotReport:
        return SlotReport(
            task_id=action.id,
            id_slot=action.slot,
            n_tokens=n_tokens,
            n_bytes=n_bytes,
            ms=(self._clock() - started) * 1e3,
        )


def _check_tenant(slot: Slot, action: SlotAction) -> None:
    """Raise ForeignSlot if a slot works for another tenant, or has its tokens. The server's own have none."""
    owners = {b"", action.tenant}
    is_own = not len(slot.tokens) or slot.reuse_key.tenant in owners
    serves_own = slot.request is None or slot.request.task.tenant in owners
    if not (action.sees_all or (is_own and serves_own)):
        raise ForeignSlot(slot.id)


def _sealed_tenant(action: SlotAction) -> bytes:
    """Return the tenant of the states that an action saves, as in the file: none if they are for all."""
    return b"" if action.sees_all else seal_tenant(action.tenant, action.secret)


def _take_over(saved: SavedState, action: SlotAction) -> SavedState:
    """Return a state from a file as the tenant of the action has it. A state that was saved for all counts as
    imported where tenants are separate: nobody knows whose it was."""
    tenant = _sealed_tenant(action)
    if not action.sees_all and saved.tenant not in (b"", tenant):
        raise Forbidden("the state was saved for another API key, or by a server with another secret")
    is_of_all = saved.tenant != tenant and not action.sees_all
    return replace(saved, tenant=action.tenant, is_imported=saved.is_imported or is_of_all)


def _touch(n_bytes: int) -> Memory:
    memory = np.empty(n_bytes, np.uint8)
    memory[::_PAGE_BYTES] = 0
    return memory
