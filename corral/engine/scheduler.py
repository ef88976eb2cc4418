"""Who gets a slot, and what its prompt starts from. Owns the queue and the slots."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from corral.core.chunk import State, TokenArray
from corral.core.result import Admitted
from corral.engine.kv import KvStore
from corral.engine.prefix import Holding, Origin, Prefix, choose_slot, plan_prefix
from corral.engine.request import Phase, Request
from corral.engine.slot import Slot


class Scheduler:
    def __init__(self, n_slots: int, n_ctx: int, kv: KvStore, similarity: float, can_cut: bool) -> None:
        self.slots = [Slot(id, n_ctx, can_cut) for id in range(n_slots)]
        self._queue: list[Request] = []
        self._kv = kv
        self._similarity = similarity
        self._clock = 0
        self._has_freed_room = True

    @property
    def has_work(self) -> bool:
        return bool(self._queue) or any(slot.request for slot in self.slots)

    def running(self, phase: Phase) -> list[tuple[Slot, Request]]:
        """Slots in a phase, by the order in which their requests arrived."""
        pairs = [(slot, slot.request) for slot in self.slots if slot.request and slot.request.phase is phase]
        return sorted(pairs, key=lambda pair: pair[1].order)

    def add(self, request: Request) -> None:
        self._queue.append(request)

    def remove(self, task_id: int) -> Request | None:
        """Forget a request wherever it is; its slot is free at once."""
        for i, request in enumerate(self._queue):
            if request.id == task_id:
                return self._queue.pop(i)
        for slot in self.slots:
            if slot.request is not None and slot.request.id == task_id:
                request = slot.request
                self.release(slot)
                return request
        return None

    def release(self, slot: Slot) -> None:
        self._clock += 1
        slot.last_used = self._clock
        slot.request = None
        self._has_freed_room = True

    def preempt(self, slot: Slot) -> bool:
        """Swap a running request out to host memory; it goes on when there is room again."""
        request = slot.request
        assert request is not None
        request.swapped = self._kv.swap_out(slot)
        if request.swapped is None:
            return False
        slot.request = None
        self._queue.insert(0, request)
        self._has_freed_room = False
        return True

    def admit(self, now: float) -> list[Admitted]:
        """Give free slots to waiting requests, then settle what their prompts start from."""
        admitted: list[Admitted] = []
        for request in list(self._queue):
            slot = self._find_slot(request)
            if slot is None:
                continue
            if request.swapped is None:
                request.phase = Phase.WAITING
            elif self._swap_in(slot, request.swapped):
                request.swapped = None
                admitted.append(Admitted(request.id, slot.id, request.n_cached))
            else:
                break
            self._queue.remove(request)
            slot.request = request
        return [*admitted, *self._settle_all(now)]

    def twins(self, request: Request) -> list[tuple[Slot, Request]]:
        """Those who wait for the same prompt."""
        waiting = self.running(Phase.WAITING)
        return [pair for pair in waiting if self._wants(pair[1], request.prompt)]

    def _wants(self, request: Request, prompt: TokenArray) -> bool:
        return request.task.params.cache_prompt and np.array_equal(request.prompt, prompt)

    def take_stuck(self) -> list[Request]:
        """Preempted requests that could not come back although nobody else is running."""
        if any(not slot.is_idle for slot in self.slots):
            return []
        stuck = [request for request in self._queue if request.swapped is not None]
        self._queue = [request for request in self._queue if request.swapped is None]
        return stuck

    def _find_slot(self, request: Request) -> Slot | None:
        pinned = request.task.params.id_slot
        idle = [s for s in self.slots if s.is_idle and pinned in (-1, s.id)]
        if not idle:
            return None
        views = [(slot.id, slot.tokens.view, slot.last_used) for slot in idle]
        return self.slots[choose_slot(views, request.prompt, self._similarity)]

    def _swap_in(self, slot: Slot, swapped: tuple[TokenArray, State]) -> bool:
        """Put a preempted request back once room was freed; cached sequences give way to it."""
        is_alone = all(s.is_idle for s in self.slots)
        if not (self._has_freed_room or is_alone):
            return False
        self._has_freed_room = False
        for other in self.slots:
            if other.is_idle:
                self._kv.evict(other)
        return self._kv.swap_in(slot, *swapped)

    def _settle_all(self, now: float) -> Iterator[Admitted]:
        for slot, request in self.running(Phase.WAITING):
            n_cached = self._settle(slot, request)
            if n_cached is not None:
                request.start(now, n_cached)
                yield Admitted(request.id, slot.id, n_cached)

    def _settle(self, slot: Slot, request: Request) -> int | None:
        """Bring as much of the prompt into the slot as exists anywhere; None: better to wait."""
        prompt = request.prompt
        if not request.task.params.cache_prompt:
            self._kv.stash(slot, 0)
            return self._kv.trim(slot, 0)
        neighbours = [_holding(other) for other in self.slots if other is not slot]
        prefix = plan_prefix(prompt, _holding(slot), neighbours, self._kv.n_in_ram(prompt))
        if prefix.origin is Origin.WAIT:
            return None
        return self._apply(prefix, slot, request)

    def _apply(self, prefix: Prefix, slot: Slot, request: Request) -> int:
        self._kv.stash(slot, prefix.n if prefix.origin is Origin.OWN else 0)
        if prefix.origin is Origin.SLOT:
            return self._kv.copy(self.slots[prefix.slot], slot, prefix.n)
        if prefix.origin is Origin.RAM:
            self._kv.restore(slot, request.prompt)
        return self._kv.trim(slot, prefix.n)


def _holding(slot: Slot) -> Holding:
    request = slot.request
    coming = request.prompt if request is not None and request.phase is Phase.PREFILL else None
    return Holding(slot.id, slot.tokens.view, slot.can_cut, coming)
