"""The last minute of the server: what its slots did, how fast, how long clients waited, how requests ended.

A watcher of the board and of all traffic, on the event loop: a token costs two lookups and an addition. What
it keeps is bounded. Times are those of `time.perf_counter`.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from time import perf_counter

from starlette.types import Scope

from corral.api.kv_use import kv_use
from corral.api.lane import Lanes, Phase, Segment, source_of
from corral.api.latency import Latency, Quantiles
from corral.api.service import Service
from corral.core.result import Admitted, Progress, TaskResult, Tokens
from corral.core.visit import Leg, Visit
from corral.link.keeper import EngineState

SAMPLE_S = 0.5
HISTORY_S = 60.0
MAX_REQUESTS = 100
SHARES = (0.5, 0.95)  # of all durations, that quantiles are about
_MAX_RESTARTS = 20
_RECENT_S = 5.0  # that the latencies of a sample are about
_LOST = (EngineState.RESTARTING, EngineState.FAILED, EngineState.SLEEPING)
_N_SAMPLES, _N_RECENT = int(HISTORY_S / SAMPLE_S), int(_RECENT_S / SAMPLE_S)


@dataclass(frozen=True, slots=True)
class Sample:
    """What has happened since the one before, and how things are."""

    at: float
    seconds: float
    n_prompt: int  # tokens that were evaluated
    n_generated: int
    cached: dict[str, int]  # tokens of prompts that were not, by where they came from
    n_waiting: int
    n_running: int
    n_busy: int  # slots
    n_held: int
    first: Quantiles | None
    between: Quantiles | None


@dataclass(frozen=True, slots=True)
class Ended:
    """A request that has been answered, or given up."""

    number: int
    path: str
    visit: Visit


@dataclass(slots=True)
class EngineLife:
    """Mutable: how the engine is, since when, and when it was replaced."""

    state: EngineState
    since: float
    n_restarts: int = 0
    restarts: collections.deque[float] = field(
        default_factory=lambda: collections.deque(maxlen=_MAX_RESTARTS)
    )

    def look(self, state: EngineState, n_restarts: int, now: float) -> None:
        if state is not self.state:
            self.state, self.since = state, now
        if n_restarts != self.n_restarts:
            self.restarts.extend([now] * (n_restarts - self.n_restarts))
            self.n_restarts = n_restarts


class History:
    """Mutable. A `Watcher` and a `Listener`; `look` has to be called every `SAMPLE_S`."""

    def __init__(self, service: Service) -> None:
        now = perf_counter()
        self._service = service
        self.lanes = Lanes()
        self.first, self.between = Latency(_N_SAMPLES, _N_RECENT), Latency(_N_SAMPLES, _N_RECENT)
        self.samples: collections.deque[Sample] = collections.deque(maxlen=_N_SAMPLES)
        self.requests: collections.deque[Ended] = collections.deque(maxlen=MAX_REQUESTS)
        self.n_requests = 0
        self.admitted: dict[int, Admitted] = {}  # into each slot, last
        self.life = EngineLife(EngineState.LOADING, now)
        self._looked_at = now
        self._cached: dict[str, int] = {}
        self._n_prompt = self._n_generated = 0  # of the board's sums, what is in the samples

    def note(self, visit: Visit, leg: Leg, result: TaskResult) -> None:
        if isinstance(result, Tokens):
            self._note_tokens(visit, leg, result)
        elif isinstance(result, Progress):
            if segment := self.lanes.find(leg):
                segment.n_done = result.n_past
        elif isinstance(result, Admitted):
            self.lanes.admit(visit, leg, result, perf_counter())
            self.admitted[result.id_slot] = result
            if result.n_cached:
                source = source_of(result)
                self._cached[source] = self._cached.get(source, 0) + result.n_cached

    def leave(self, visit: Visit, leg: Leg) -> None:  # noqa: ARG002
        self.lanes.leave(leg, perf_counter())

    def end(self, scope: Scope, visit: Visit) -> None:
        """A request that had no work for the model counts only if a route that does something refused it."""
        route = scope.get("route")
        is_refused = route is not None and scope["method"] == "POST" and visit.status >= 400
        if visit.legs or is_refused:
            self.n_requests += 1
            self.requests.append(Ended(self.n_requests, route.path if route is not None else "", visit))

    def look(self, now: float) -> list[Segment]:
        """Keep a sample of how things are; what has changed in the lanes since the last look."""
        engine = self._service.engine
        self.life.look(engine.state, engine.n_restarts, now)
        if engine.state in _LOST:
            self.lanes.lose_engine(now)
        self.first.roll()
        self.between.roll()
        self.samples.append(self._sample(now))
        self.lanes.forget(now - HISTORY_S)
        return self.lanes.news()

    def _note_tokens(self, visit: Visit, leg: Leg, result: Tokens) -> None:
        now = perf_counter()
        if not leg.first_at:
            self.first.add(now - visit.started_at)
        elif n := len(result.tokens):
            self.between.add((now - leg.last_at) / n, n)
        segment = self.lanes.find(leg)
        if segment is None:
            return
        if segment.phase is Phase.PREFILL:
            segment = self.lanes.answer(segment, now)
        segment.n_done = result.timings.predicted_n

    def _sample(self, now: float) -> Sample:
        board = self._service.engine.board
        tally, line = board.tally, board.line
        sample = Sample(
            at=now,
            seconds=max(1e-3, now - self._looked_at),
            n_prompt=tally.n_prompt - self._n_prompt,
            n_generated=tally.n_predicted - self._n_generated,
            cached=self._cached,
            n_waiting=line.n_waiting,
            n_running=line.n_running,
            n_busy=len(board.slots) - board.n_idle,
            n_held=kv_use(self._service)[0],
            first=self.first.recent(*SHARES),
            between=self.between.recent(*SHARES),
        )
        self._looked_at, self._cached = now, {}
        self._n_prompt, self._n_generated = tally.n_prompt, tally.n_predicted
        return sample
