"""A simulated engine: slots, prompts one after another, streams that share its steps, an LRU cache."""

from __future__ import annotations

import collections
import heapq

from bench.fleet.workload import Scale, Turn
from corral.fleet.placement import SERVICE_MS, EngineCost, EngineLoad
from corral.fleet.prefix_index import BLOCK, HeldBlocks, PrefixIndex

TOKEN_MS = 0.5  # to evaluate a prompt token
STEP_MS, STREAM_MS = 20.0, 2.0  # a decode step, and each stream in it


class SimulatedEngine:
    """Mutable. `index` is exact: what it has in slots and host memory, and prompts on their way."""

    def __init__(self, number: int, scale: Scale, cost: EngineCost, held: HeldBlocks) -> None:
        self.number = number
        self.is_changed = True  # since it was placed among last
        self.index = PrefixIndex(1 << 30, held, number)
        self.busy_s = 0.0
        self.cost = cost
        self.held = held  # the blocks of all engines
        self._n_slots, self._n_cached_blocks = scale.n_slots, scale.n_cached_blocks
        self._held: collections.OrderedDict[int, int] = collections.OrderedDict()  # blocks of users, LRU
        self._n_held = 0
        self._waiting: collections.deque[Turn] = collections.deque()
        self._prefill: collections.deque[Turn] = collections.deque()
        self._streams: list[tuple[float, int, Turn]] = []  # by the step of their end
        self._steps = self._now_s = 0.0
        self._prefill_ends_s = float("inf")

    @property
    def n_running(self) -> int:
        return len(self._prefill) + len(self._streams)

    @property
    def n_tasks(self) -> int:
        return self.n_running + len(self._waiting)

    @property
    def load(self) -> EngineLoad:
        n_ahead = sum(turn.n_evaluated for turn in (*self._prefill, *self._waiting))
        service_ms = self.cost.service_ms or SERVICE_MS
        n_waiting = len(self._waiting)
        return EngineLoad(
            self._n_slots,
            self.n_running,
            n_waiting,
            n_ahead,
            self.cost.token_ms or TOKEN_MS,
            service_ms,
            self._n_held,
        )

    def add(self, turn: Turn) -> None:
        """Take a turn that arrives now."""
        self.is_changed = True
        turn.engine, turn.n_evaluated = self.number, self._n_missing(turn)
        self.index.put(("task", turn.id), turn.blocks)
        self._waiting.append(turn)
        self._admit()

    @property
    def next_s(self) -> float:
        """When something ends here."""
        if not self._streams:
            return self._prefill_ends_s
        n_steps = max(0.0, self._streams[0][0] - self._steps)
        return min(self._prefill_ends_s, self._now_s + n_steps * self._step_s)

    def advance(self, now_s: float) -> list[Turn]:
        """Come to this time; return the turns that are done."""
        self.is_changed = True
        done = []
        while self.next_s <= now_s:
            self._move_to(self.next_s)
            if self._prefill and self._now_s >= self._prefill_ends_s:
                self._start_stream(self._prefill.popleft())
                self._start_prefill()
            while self._streams and self._streams[0][0] <= self._steps + 1e-6:
                done.append(self._end(heapq.heappop(self._streams)[2]))
            self._admit()
        self._move_to(now_s)
        return done

    @property
    def _step_s(self) -> float:
        return (STEP_MS + STREAM_MS * len(self._streams)) / 1e3

    def _move_to(self, now_s: float) -> None:
        seconds = max(0.0, now_s - self._now_s)
        if self._streams:
            self._steps += seconds / self._step_s
        if self.n_running:
            self.busy_s += seconds
        self._now_s = max(self._now_s, now_s)

    def _admit(self) -> None:
        while self._waiting and self.n_running < self._n_slots:
            turn = self._waiting.popleft()
            self.index.drop(("task", turn.id))
            turn.n_evaluated = self._n_missing(turn)
            self._keep(turn)
            self._prefill.append(turn)
            if len(self._prefill) == 1:
                self._start_prefill()

    def _start_prefill(self) -> None:
        if self._prefill:
            self._prefill_ends_s = self._now_s + self._prefill[0].n_evaluated * TOKEN_MS / 1e3
        else:
            self._prefill_ends_s = float("inf")

    def _start_stream(self, turn: Turn) -> None:
        turn.began_s = self._now_s
        heapq.heappush(self._streams, (self._steps + turn.n_answer, turn.id, turn))

    def _end(self, turn: Turn) -> Turn:
        service_ms = (self._now_s - turn.began_s) * 1e3
        self.cost.observe(turn.n_evaluated, turn.n_evaluated * TOKEN_MS, service_ms)
        return turn

    def _n_missing(self, turn: Turn) -> int:
        """Return the tokens to evaluate: at least one block."""
        return max(BLOCK, turn.n_prompt - self.index.n_cached(turn.blocks))

    def _keep(self, turn: Turn) -> None:
        """Keep a prompt, and drop the least recently used ones beyond the capacity."""
        self._n_held += len(turn.blocks) - self._held.pop(turn.user.id, 0)
        self._held[turn.user.id] = len(turn.blocks)
        self.index.put(turn.user.id, turn.blocks)
        while self._n_held > self._n_cached_blocks and len(self._held) > self._n_slots:
            user, n = self._held.popitem(last=False)
            self._n_held -= n
            self.index.drop(user)
