"""Decide which request gets a slot, and what its prompt starts from. Owns the queue and the slots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import msgspec
import numpy as np

from corral.core.chunk import TokenArray
from corral.core.result import Admitted, CacheEvent, CacheReport, Queue, Tier
from corral.engine.coroutine import NO_RESERVATIONS, Reservations
from corral.engine.fair_queue import FairQueue
from corral.engine.kv import KvStore
from corral.engine.prefix import Prefix, PrefixOrigin, choose_slot, plan_prefix
from corral.engine.report import slot_of, tier_of, whole_report
from corral.engine.reporter import Reporter
from corral.engine.request import Request, RequestPhase
from corral.engine.reuse import Move, plan_reuse
from corral.engine.saved import SavedState
from corral.engine.slot import Slot

_NOTHING = np.zeros(0, np.int32)
_QUEUE_S = 0.5  # minimum time between two events about the queue


class Scheduler:
    """`slots` has the slots for requests, then those for negatives, once there are any."""

    def __init__(self, n_slots: int, n_ctx: int, kv: KvStore, similarity: float, reporter: Reporter) -> None:
        self.slots = [Slot(id, n_ctx) for id in range(n_slots)]
        self._busy: dict[int, Slot] = {}  # by id
        self._n_public = n_slots
        self._reserved = NO_RESERVATIONS
        self._queue = FairQueue()
        self._kv = kv
        self._similarity = similarity
        self.reporter = reporter
        self._clock = 0
        self._queue_sent = -_QUEUE_S
        self._has_freed_room = True
        self._yielded: list[Request] = []

    @property
    def public(self) -> list[Slot]:
        """The slots that clients can see."""
        return self.slots[: self._n_public]

    def public_id(self, id: int) -> int:
        """Return the number of a slot that clients see; -1: none."""
        return id if id < self._n_public else -1

    @property
    def has_work(self) -> bool:
        return bool(self._queue or self._yielded) or self._n_busy > 0

    @property
    def has_due(self) -> bool:
        """Whether cached tokens are about to be used by a coroutine."""
        return bool(self._reserved.due)

    def running(self, phase: RequestPhase) -> list[tuple[Slot, Request]]:
        """Return the slots in a phase, in order of their requests' arrival."""
        return sorted(self._in(phase), key=_arrival)

    def requests(self, phase: RequestPhase) -> list[Request]:
        """Return the running requests in a phase, in any order."""
        return [request for _, request in self._in(phase)]

    def _in(self, phase: RequestPhase) -> list[tuple[Slot, Request]]:
        return [
            (slot, request)
            for slot in self._busy.values()
            if (request := slot.request) is not None
            and request.phase is phase
            and request.swapped is None
            and not request.is_paused
        ]

    @property
    def evictable(self) -> list[Slot]:
        """Return slots whose tokens are only a cache and not about to be used; least recently used first."""
        unused = [s for s in self.slots if s.request is None or s.request.phase is RequestPhase.WAITING]
        cached = [s for s in unused if len(s.tokens) and s.id not in self._reserved.due]
        return sorted(cached, key=lambda slot: slot.last_used)

    def add(self, request: Request) -> None:
        self._queue.add(request)

    def remove(self, task_id: int) -> Request | None:
        """Remove a request wherever it is; its slot is free at once."""
        waiting = self._queue.remove(task_id)
        if waiting is not None:
            return waiting
        for slot in self._busy.values():
            if slot.request is not None and slot.request.id == task_id:
                request = slot.request
                self.release(slot)
                return request
        return None

    def slot_of(self, request: Request) -> Slot:
        return next(slot for slot in self._busy.values() if slot.request is request)

    def add_negatives(self, n_ctx: int) -> None:
        """Add a second slot to every slot, for the negative of its request."""
        if len(self.slots) == self._n_public:
            self.slots += [Slot(self._n_public + id, n_ctx) for id in range(self._n_public)]

    def release(self, slot: Slot) -> list[Slot]:
        """Free the slot of a request that is done, and that of its pair; return the free slots."""
        freed = self._pair(slot)
        for other in freed:
            if other.request is not None:
                other.n_evaluated = len(other.request.prompt) - other.request.n_cached
                self._drop_half(other, other.request)
                self._queue.end(other.request)
                self.reporter.on_release(other)
            other.request = None
            self._busy.pop(other.id, None)
            self.touch(other)
        self._has_freed_room = True
        return freed

    def _drop_half(self, slot: Slot, request: Request) -> None:
        """Drop an incomplete image from the end of a slot, unless it is being evaluated."""
        segment = request.segment
        if segment is not None and segment.run is not None and request.swapped is None:
            self._kv.trim(slot, min(len(slot.tokens), segment.run.start))

    def _pair(self, slot: Slot) -> list[Slot]:
        """Return the slots of a request and of its negative."""
        positive = slot.request and (slot.request.positive or slot.request)
        if positive is None or positive.negative is None:
            return [slot]
        return [other for other in self._busy.values() if other.request in (positive, positive.negative)]

    def touch(self, slot: Slot) -> None:
        """Mark a slot as the most recently used one."""
        self._clock += 1
        slot.last_used = self._clock

    def preempt(self, slot: Slot) -> bool:
        """Swap a running request out to host memory; it keeps its slot, and continues when there is room."""
        out: list[Slot] = []
        for other in self._pair(slot):
            assert other.request is not None
            other.request.swapped = self._kv.swap_out(other)
            if other.request.swapped is None:
                self._load_all(out)
                return False
            out.append(other)
        self._has_freed_room = False
        return True

    def admit(
        self, now: float, reserved: Reservations = NO_RESERVATIONS
    ) -> list[Admitted | Queue | CacheEvent]:
        """Give free slots to waiting requests, then decide what their prompts start from."""
        self._reserved = reserved
        self._queue.tick(now)
        if self._bring_back() and self._queue and self._has_free_slot:
            for request in list(self._queue):
                if request.is_paused:
                    continue
                slot = self._find_slot(request) or self._take_slot(request)
                if slot is not None:
                    self._queue.start(request)
                    self._assign(slot, request)
                    if request.negative is not None:
                        self._assign(self._find_negative_slot(request.negative), request.negative)
        admitted = list(self._place_prompts(now))
        events: list[Admitted | Queue | CacheEvent] = [*self._kv.take_news(), *admitted]
        if self._queue and now - self._queue_sent >= _QUEUE_S:
            self._queue_sent = now
            events.append(Queue([request.id for request in self._queue]))
        return events

    @property
    def _has_free_slot(self) -> bool:
        return any(slot.is_idle or slot.is_yielding for slot in self.public)

    def fetch(self, request: Request) -> Future[SavedState | None] | None:
        """Start reading the prefix of a prompt from disk, if no slot or host memory has it."""
        if not request.task.params.cache_prompt or not self._kv.has_disk:
            return None
        held = [
            self._kv.holding(slot, request.reuse_key_of(slot.id), request.accepts_shifted_of(slot.id))
            for slot in self.slots
        ]
        live = max(holding.usable(request.prompt) for holding in held)
        return self._kv.fetch(request, max(live, self._kv.stored(request)[0]))

    def same_prompt_waiters(self, slot: Slot, request: Request) -> list[tuple[Slot, Request]]:
        """Return requests that wait for the same prompt and may reuse its slot's content."""
        waiting = self.running(RequestPhase.WAITING)
        return [pair for pair in waiting if self._wants(pair[1], slot, request.prompt)]

    def _wants(self, request: Request, slot: Slot, prompt: TokenArray) -> bool:
        is_fit = slot.reuse_key.can_serve(request.reuse_key) and (
            slot.shifted_from >= len(prompt) or request.accepts_shifted
        )
        return is_fit and request.task.params.cache_prompt and np.array_equal(request.prompt, prompt)

    def take_stuck(self) -> list[Request]:
        """Return preempted requests that could not continue although nothing else is running."""
        absent = self._absent()
        if self.has_due or sum(map(len, absent)) < self._n_busy:
            return []
        stuck = [slots[0].request for slots in absent]
        for slots in absent:
            self.release(slots[0])
        return [request for request in stuck if request is not None]

    def _find_slot(self, request: Request) -> Slot | None:
        pinned = request.task.params.id_slot
        turn = request.arrival
        free = [s for s in self.public if s.is_idle and turn <= self._reserved.arrivals.get(s.id, turn)]
        idle = [s for s in free if pinned in (-1, s.id)]
        return self._choose(idle, request) if idle else None

    def _take_slot(self, request: Request) -> Slot | None:
        """Take the slot of the newest line of a batch for a request that is none."""
        if request.is_batch:
            return None
        pinned, turn = request.task.params.id_slot, request.arrival
        found = [
            (slot, slot.request)
            for slot in self.public
            if slot.request is not None and slot.request.can_yield and pinned in (-1, slot.id)
            if turn <= self._reserved.arrivals.get(slot.id, turn)
        ]
        if not found:
            return None
        slot, _ = max(found, key=_arrival)
        self.evict(slot)
        return slot

    def evict(self, slot: Slot) -> None:
        """Take a request from its slot; `take_yielded` returns it, to be queued again."""
        assert slot.request is not None
        self._yielded.append(slot.request)
        self.release(slot)

    def requeue(self, request: Request) -> None:
        """Have a request that has no slot any more repeated."""
        self._yielded.append(request)

    def take_yielded(self) -> list[Request]:
        yielded, self._yielded = self._yielded, []
        return yielded

    def _find_negative_slot(self, negative: Request) -> Slot:
        """Find a slot for a negative; there are as many of them as other slots."""
        return self._choose([slot for slot in self.slots[self._n_public :] if slot.is_idle], negative)

    def _assign(self, slot: Slot, request: Request) -> None:
        request.phase = RequestPhase.WAITING
        slot.request = request
        self._busy[slot.id] = slot
        slot.affinity = request.affinity

    def _choose(self, idle: Sequence[Slot], request: Request) -> Slot:
        alike = [s.tokens.view if s.reuse_key.can_serve(request.reuse_key) else _NOTHING for s in idle]
        views = [(s.id, tokens, s.last_used) for s, tokens in zip(idle, alike, strict=True)]
        akin = [s.id for s in idle if request.affinity is not None and s.affinity == request.affinity]
        return self.slots[choose_slot(views, request.prompt, self._similarity, akin)]

    @property
    def _n_busy(self) -> int:
        return len(self._busy)

    def _absent(self) -> list[list[Slot]]:
        """Return the slots of preempted requests, each with that of its negative, in order of arrival."""
        away = [
            (s, s.request)
            for s in self._busy.values()
            if s.id < self._n_public and s.request is not None and s.request.swapped is not None
        ]
        return [self._pair(slot) for slot, _ in sorted(away, key=_arrival)]

    def _bring_back(self) -> bool:
        """Restore preempted requests once there is room; cached sequences are evicted for them. False: one of
        them must still wait, and so must all later requests."""
        absent = self._absent()
        for i, slots in enumerate(absent):
            is_alone = sum(map(len, absent[i:])) == self._n_busy
            if not (self._has_freed_room or is_alone):
                return False
            self._has_freed_room = False
            for other in self.evictable:
                self._kv.evict(other)
            if not self._load_all(slots):
                return False
        return True

    def _load_all(self, slots: Sequence[Slot]) -> bool:
        """Restore what was swapped out of the slots of a request; all of it or nothing."""
        requests = [slot.request for slot in slots if slot.request is not None]
        for slot, request in zip(slots, requests, strict=True):
            assert request.swapped is not None
            if not self._kv.load(slot, request.swapped):
                for other in slots:
                    self._kv.trim(other, 0)
                return False
        for request in requests:
            request.swapped = None
        return True

    def _place_prompts(self, now: float) -> Iterator[Admitted]:
        for slot, request in self.running(RequestPhase.WAITING):
            if request.handed_over is not None and self._take_over(slot, request, request.handed_over):
                request.continue_from(now, request.task.n_past)
                report = whole_report(-1, request.n_cached)
                yield Admitted(request.id, slot.id, request.n_cached, report, Tier.LIVE)
                continue
            placed = self._place_prompt(slot, request)
            if placed is not None:
                request.start(now, placed.n_cached)
                n_cached = min(placed.n_cached, request.n_prompt)
                if request.positive is None:
                    yield msgspec.structs.replace(placed, n_cached=n_cached)

    def _take_over(self, slot: Slot, request: Request, state: SavedState) -> bool:
        """Bring a request's own state into its slot. False: it is of no use, and the slot is empty."""
        request.handed_over = None
        self._kv.stash(slot, 0)
        is_loaded = self._kv.load(slot, state)
        slot.reuse_key, slot.n_system = request.reuse_key, request.task.params.n_system
        request.truncated = is_loaded and len(state.tokens) < request.task.n_past
        return is_loaded

    def _place_prompt(self, slot: Slot, request: Request) -> Admitted | None:
        """Bring the longest available prefix of the prompt into the slot; None: better to wait."""
        params, prompt = request.task.params, request.prompt
        if not params.cache_prompt:
            self._kv.stash(slot, 0)
            self._kv.trim(slot, 0)
            slot.reuse_key, slot.n_system = request.reuse_key, params.n_system
            return Admitted(request.id, slot.id, 0, self._report(request, Prefix(PrefixOrigin.OWN, 0), slot))
        own = self._kv.holding(slot, request.reuse_key_of(slot.id), request.accepts_shifted_of(slot.id))
        neighbours = [
            self._kv.holding(s, request.reuse_key, request.accepts_shifted)
            for s in self.slots
            if s is not slot and not s.is_behind(request)
        ]
        n_stored, stored = self._kv.stored(request)
        prefix = plan_prefix(prompt, own, neighbours, n_stored)
        if prefix.origin is PrefixOrigin.WAIT:
            return None
        moves = self._plan_moves(prefix, slot, stored, request)
        report = self._report(request, prefix, slot, stored, moves)
        request.fetched = None
        started = self.reporter.clock()
        n = self._apply(prefix, slot, stored, moves)
        is_imported = n > 0 and slot.reuse_key.is_imported
        slot.reuse_key = request.reuse_key._replace(is_imported=is_imported)
        slot.n_system = params.n_system
        report = report.as_miss() if n < report.n_cached else report
        report = msgspec.structs.replace(report, restore_ms=(self.reporter.clock() - started) * 1e3)
        tier = tier_of(prefix, stored, n)
        id_source = self.public_id(slot_of(prefix, tier, slot.id))
        return Admitted(request.id, slot.id, n, report, tier, id_source)

    def _report(
        self,
        request: Request,
        prefix: Prefix,
        slot: Slot,
        stored: SavedState | None = None,
        moves: Sequence[Move] = (),
    ) -> CacheReport:
        report = self.reporter.report(request, prefix, slot, self.slots, stored, moves)
        return msgspec.structs.replace(report, id_slot=self.public_id(report.id_slot))

    def _plan_moves(
        self, prefix: Prefix, slot: Slot, stored: SavedState | None, request: Request
    ) -> list[Move]:
        n_min, is_own = request.task.params.n_cache_reuse, prefix.origin is PrefixOrigin.OWN
        if not n_min or not self._kv.can_shift or prefix.origin is PrefixOrigin.SLOT:
            return []
        if is_own and self._kv.can_cut(slot) and slot.reuse_key.can_serve(request.reuse_key_of(slot.id)):
            return plan_reuse(slot.tokens.view, request.prompt, n_min)
        if not is_own and stored is not None and not self._kv.n_fixed_saved(len(stored.tokens)):
            return plan_reuse(stored.tokens, request.prompt, n_min)
        return []

    def _apply(self, prefix: Prefix, slot: Slot, stored: SavedState | None, moves: list[Move]) -> int:
        n = moves[-1].end if moves else prefix.n
        self._kv.stash(slot, n if prefix.origin is PrefixOrigin.OWN else 0)
        if prefix.origin is PrefixOrigin.SLOT:
            return self._kv.copy(self.slots[prefix.slot], slot, prefix.n)
        if prefix.origin is PrefixOrigin.STORE and stored is not None and not self._kv.load(slot, stored):
            return 0
        if moves:
            self._kv.reuse(slot, moves)
        return self._kv.trim(slot, n)


def _arrival(pair: tuple[Slot, Request]) -> int:
    return pair[1].arrival
