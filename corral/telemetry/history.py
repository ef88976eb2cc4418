"""The last minute of the server: slots, throughput, latency, and how requests ended.

On the event loop: a token costs two lookups and an addition. Memory is bounded. Times are those of
`time.perf_counter`.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from time import perf_counter

from corral.core.result import Admitted, Progress, TaskResult, Tokens
from corral.link.engine_state import EngineState
from corral.telemetry.quantiles import Latency, Quantiles
from corral.telemetry.record import RequestRecord, TaskRecord
from corral.telemetry.request_observer import Asked
from corral.telemetry.sources import ServerSource, kv_use
from corral.telemetry.timeline import SlotPhase, SlotTimeline, Span, source_of

SAMPLE_S = 0.5
HISTORY_S = 60.0
MAX_REQUESTS = 100
SHARES = (0.5, 0.95)  # the quantiles shown
_MAX_RESTARTS = 20
_RECENT_S = 5.0  # window of a sample's latencies
_LOST = (EngineState.RESTARTING, EngineState.FAILED, EngineState.SLEEPING)
_N_SAMPLES, _N_RECENT = int(HISTORY_S / SAMPLE_S), int(_RECENT_S / SAMPLE_S)


@dataclass(frozen=True, slots=True)
class Sample:
    """What has happened since the previous sample, and the state at its end."""

    at: float
    seconds: float
    n_prompt: int  # evaluated tokens
    n_generated: int
    cached: dict[str, int]  # cached prompt tokens by source
    n_waiting: int
    n_running: int
    n_busy: int  # slots
    n_held: int
    first: Quantiles | None
    between: Quantiles | None


@dataclass(frozen=True, slots=True)
class Ended:
    number: int
    path: str
    record: RequestRecord


@dataclass(slots=True)
class EngineLife:
    """The engine's state, since when, and its restarts."""

    state: EngineState
    since: float
    n_restarts: int = 0
    restarts: collections.deque[float] = field(
        default_factory=lambda: collections.deque(maxlen=_MAX_RESTARTS)
    )
    # When it was not ready, ended ones.
    away: collections.deque[tuple[float, float]] = field(
        default_factory=lambda: collections.deque(maxlen=_MAX_RESTARTS)
    )
    _left_at: float = 0.0

    def away_s(self, start: float, end: float) -> float:
        """Return how long the engine was not ready in a span of time, to half a second."""
        return sum(max(0.0, min(end, back) - max(start, left)) for left, back in self.away)

    def age_s(self, moment: float) -> float | None:
        """Return how long before this moment, when it worked, the engine was last loaded; None: not known.
        What samples have not shown yet was just before."""
        if self.state is not EngineState.READY and self._gone_at <= moment:
            return 0.0
        return next((max(0.0, moment - back) for left, back in reversed(self.away) if left <= moment), None)

    @property
    def _gone_at(self) -> float:
        return self._left_at or self.since

    def update(self, state: EngineState, n_restarts: int, now: float) -> None:
        if state is not self.state:
            if self.state is EngineState.READY:
                self._left_at = now
            elif state is EngineState.READY:
                self.away.append((self._gone_at, now))
            self.state, self.since = state, now
        if n_restarts != self.n_restarts:
            self.restarts.extend([now] * (n_restarts - self.n_restarts))
            self.n_restarts = n_restarts


class History:
    """A `RecordObserver` and a `RequestObserver`; call `take_sample` every `SAMPLE_S`."""

    def __init__(self, server: ServerSource) -> None:
        now = perf_counter()
        self._server = server
        self.timeline = SlotTimeline()
        self.first, self.between = Latency(_N_SAMPLES, _N_RECENT), Latency(_N_SAMPLES, _N_RECENT)
        self.samples: collections.deque[Sample] = collections.deque(maxlen=_N_SAMPLES)
        self.requests: collections.deque[Ended] = collections.deque(maxlen=MAX_REQUESTS)
        self.n_requests = 0
        self.admitted: dict[int, Admitted] = {}  # last, by slot
        self.life = EngineLife(EngineState.LOADING, now)
        self._sampled_at = now
        self._cached: dict[str, int] = {}
        self._n_prompt = self._n_generated = 0  # of the counters, already in samples

    def on_result(self, record: RequestRecord, task: TaskRecord, result: TaskResult) -> None:
        if isinstance(result, Tokens):
            self._add_tokens(task, result)
        elif isinstance(result, Progress):
            if span := self.timeline.find(task):
                span.n_done = result.n_past
        elif isinstance(result, Admitted):
            self.timeline.admit(record, task, result, task.running_since)
            self.admitted[result.id_slot] = result
            if result.n_cached:
                source = source_of(result)
                self._cached[source] = self._cached.get(source, 0) + result.n_cached

    def on_end(self, record: RequestRecord, task: TaskRecord) -> None:  # noqa: ARG002
        self.timeline.end(task, task.ended_at)

    def on_request_end(self, asked: Asked, record: RequestRecord) -> None:
        """Keep requests that had tasks, and POST requests that a route refused."""
        is_refused = bool(asked.route) and asked.method == "POST" and record.status >= 400
        if record.tasks or is_refused:
            self.n_requests += 1
            self.requests.append(Ended(self.n_requests, asked.route, record))

    def find(self, number: int) -> Ended | None:
        return next((each for each in self.requests if each.number == number), None)

    def take_sample(self, now: float) -> list[Span]:
        """Add a sample; returns the spans that have changed since the last one."""
        engine = self._server.engine
        self.life.update(engine.state, engine.n_restarts, now)
        if engine.state in _LOST:
            self.timeline.lose_engine(now)
        self.first.roll()
        self.between.roll()
        self.samples.append(self._sample(now))
        self.timeline.forget(now - HISTORY_S)
        return self.timeline.drain_changes()

    def _add_tokens(self, task: TaskRecord, result: Tokens) -> None:
        if task.n_outputs == 1:
            self.first.add(task.ttft_s)
        elif n := len(result.tokens):
            self.between.add(task.gap_s, n)
        span = self.timeline.find(task)
        if span is None:
            return
        if span.phase is SlotPhase.PREFILL:
            span = self.timeline.start_decode(span, task.last_at)
        span.n_done = result.timings.predicted_n

    def _sample(self, now: float) -> Sample:
        telemetry = self._server.telemetry
        counters, queue, slots = telemetry.counters, telemetry.queue, telemetry.slots
        sample = Sample(
            at=now,
            seconds=max(1e-3, now - self._sampled_at),
            n_prompt=counters.n_prompt - self._n_prompt,
            n_generated=counters.n_predicted - self._n_generated,
            cached=self._cached,
            n_waiting=queue.n_waiting,
            n_running=queue.n_running,
            n_busy=slots.n_busy,
            n_held=kv_use(self._server)[0],
            first=self.first.recent(*SHARES),
            between=self.between.recent(*SHARES),
        )
        self._sampled_at, self._cached = now, {}
        self._n_prompt, self._n_generated = counters.n_prompt, counters.n_predicted
        return sample
