"""The metrics of `/metrics`: llama-server's names first, then our own.

Gauges and sums are read from `Telemetry` at each scrape; only histograms are collected (`TaskMetrics`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from corral import __version__
from corral.core.libllama import BUILD_INFO
from corral.link.engine_state import EngineState
from corral.telemetry.ledger import DAY_S
from corral.telemetry.loop_meter import LoopMeter
from corral.telemetry.record import RequestRecord
from corral.telemetry.request_observer import Asked
from corral.telemetry.sources import ServerSource, kv_use
from corral.telemetry.task_metrics import TaskMetrics

if TYPE_CHECKING:
    from corral.fleet.member import Member

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FamilyT = TypeVar("FamilyT", CounterMetricFamily, GaugeMetricFamily)

_PREFIX = "llamacpp:"
_REQUESTS = "corral_http_requests"
_OTHER = "other"  # one label value for arbitrary values of clients
_PAUSE_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}


class Metrics:
    """Of a model. The pauses of the event loop are among them, which a server with many shows once."""

    def __init__(self, source: ServerSource, model_name: str) -> None:
        self.name = model_name
        self.registry = CollectorRegistry()
        self._tasks = TaskMetrics(self.registry, model_name)
        server = source.settings.server
        if not (server.api_keys or server.api_key_file):
            self._tasks.client("")
        source.telemetry.observers.append(self._tasks)
        self._state = _StateCollector(source, self._tasks, model_name)
        self.registry.register(self._state)
        self.requests = CollectorRegistry()  # shown only beside those of the server
        self._requests = _count_requests(self.requests)

    def read(self) -> None:
        """Take the counters and gauges, on the event loop, for the next look at the registry."""
        self._state.read()

    def on_request_end(self, asked: Asked, record: RequestRecord) -> None:
        _note_request(self._requests, asked, record)
        if record.tasks:
            self._tasks.on_request_end(record)

    def watch_tokenizer(self, n_restarts: Callable[[], int]) -> None:
        """Show how often the tokenizer process was lost."""
        self._state.n_tokenizer_restarts = n_restarts


class ServerMetrics:
    """Of the process, whatever models it serves: requests, connections, the event loop."""

    def __init__(self, loop: LoopMeter) -> None:
        # These would double the lines of every counter and histogram.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.loop = loop
        ProcessCollector(registry=self.registry)
        self._requests = _count_requests(self.registry)
        lag = Histogram(
            "corral_loop_lag_seconds",
            "How late timers of the event loop come.",
            buckets=_PAUSE_S,
            registry=self.registry,
        )
        loop.observe = lag.observe

    def on_request_end(self, asked: Asked, record: RequestRecord) -> None:
        _note_request(self._requests, asked, record)

    def watch_connections(self, count: Callable[[], int]) -> None:
        """Show the number of open connections too."""
        Gauge("corral_connections", "Open connections.", registry=self.registry).set_function(count)


async def render_metrics(server: ServerMetrics, model: Metrics) -> bytes:
    """Render the metrics of a server, and of its only model or the one that is asked for."""
    model.read()
    # Many clients make many lines, so do not block the event loop.
    text = await asyncio.to_thread(lambda: generate_latest(model.registry) + generate_latest(server.registry))
    # compat: /metrics: a counter whose name does not end in `_total`, which the library would add.
    return text.replace(b"# TYPE llamacpp:n_tokens_max gauge", b"# TYPE llamacpp:n_tokens_max counter")


async def render_labelled(server: ServerMetrics, models: Sequence[Metrics]) -> bytes:
    """Render the metrics of a server and of many models, with a label that names the model."""
    pause = _pause_family(server.loop)
    for model in models:
        model.read()
    return await asyncio.to_thread(_render_labelled, [pause, *server.registry.collect()], models)


def _render_labelled(found: Iterable[Metric], models: Iterable[Metrics]) -> bytes:
    families = {each.name: each for each in found}
    of_process = families.keys() - {_REQUESTS}
    for model in models:
        for each in (*model.registry.collect(), *model.requests.collect()):
            if each.name not in of_process:
                family = families.setdefault(each.name, Metric(each.name, each.documentation, each.type))
                for sample in each.samples:
                    family.samples.append(sample._replace(labels={**sample.labels, "model": model.name}))
    registry = CollectorRegistry()
    registry.register(_Fixed(families.values()))
    return generate_latest(registry)


class _Fixed:
    """A collector of metrics that were read before."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = list(found)

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> list[Metric]:
        return self._found


def _count_requests(registry: CollectorRegistry) -> Counter:
    return Counter(_REQUESTS, "HTTP requests completed.", ("route", "method", "status"), registry=registry)


def _note_request(counter: Counter, asked: Asked, record: RequestRecord) -> None:
    method = asked.method if asked.method in _METHODS else _OTHER
    counter.labels(asked.route or _OTHER, method, str(record.status)).inc()


def _pause_family(loop: LoopMeter) -> Metric:
    longest = loop.take()
    family = GaugeMetricFamily(
        "corral_loop_pause_seconds",
        "Longest pause of the event loop since the last scrape; cpu: the part in which it computed.",
        labels=["clock"],
    )
    return _filled(family, {"wall": longest.wall_s, "cpu": longest.cpu_s})


class _StateCollector:
    """Counters and gauges. `read` takes them on the event loop, `collect` returns them in any thread."""

    def __init__(self, source: ServerSource, tasks: TaskMetrics, model_name: str) -> None:
        self._server = source
        self._tasks = tasks
        self._model_name = model_name
        self._seen: list[Metric] = []
        self._prompt_window, self._window = _Window(), _Window()
        self.n_tokenizer_restarts: Callable[[], int] = lambda: 0

    def describe(self) -> list[Metric]:
        return []  # no other collector has these names

    def collect(self) -> list[Metric]:
        return self._seen

    def read(self) -> None:
        self._seen = [*self._work(), *self._state()]

    def _work(self) -> Iterator[Metric]:
        """Yield the metrics with llama-server's names."""
        counters, queue = self._server.telemetry.counters, self._server.telemetry.queue
        prompt_s, predicted_s = counters.prompt_ms / 1e3, counters.predicted_ms / 1e3
        # compat: /metrics: rates since the last scrape; the first token of an answer took no step of its own.
        prompt_rate = self._prompt_window.rate(counters.n_prompt, prompt_s)
        rate = self._window.rate(counters.n_steps, predicted_s)
        yield _counter("prompt_tokens", "Prompt tokens evaluated, excluding cached ones.", counters.n_prompt)
        yield _counter("prompt_tokens_cached", "Prompt tokens reused from a cache.", self._tasks.n_cached)
        yield _counter("prompt_seconds", "Time spent on prompts, in seconds.", prompt_s)
        yield _counter("tokens_predicted", "Tokens generated.", counters.n_predicted)
        yield _counter("tokens_predicted_seconds", "Time spent generating, in seconds.", predicted_s)
        yield _gauge("prompt_tokens_seconds", "Prompt tokens per second.", prompt_rate)
        yield _gauge("predicted_tokens_seconds", "Generated tokens per second.", rate)
        n_held, capacity = kv_use(self._server)
        if self._server.engine.state is EngineState.SLEEPING:  # its idle cache must not look empty
            n_held = min(self._server.telemetry.slots.n_held_before, capacity)
        yield _gauge("kv_cache_usage_ratio", "KV cache usage; 1 means full.", _rate(n_held, capacity))
        yield _gauge("kv_cache_tokens", "Tokens in the KV cache.", n_held)
        yield _gauge("requests_processing", "Requests being processed.", queue.n_running)
        yield _gauge("requests_deferred", "Requests waiting for a slot.", queue.n_waiting)
        busy = _rate(counters.n_busy, counters.n_decodes)
        yield _gauge("n_busy_slots_per_decode", "Average number of sequences in a batch.", busy)
        yield _counter("n_decode", "Batches evaluated.", counters.n_decodes)
        yield _gauge("n_tokens_max", "Most tokens of one sequence.", self._tasks.n_most)
        yield _counter("spec_decode_num_draft_tokens", "Drafted tokens.", self._tasks.n_drafted)
        yield _counter(
            "spec_decode_num_accepted_tokens", "Drafted tokens that were accepted.", self._tasks.n_accepted
        )
        yield _counter("spec_decode_num_drafts", "Drafts that were verified.", self._tasks.n_drafts)
        if self._tasks.accepted_per_pos:
            name = f"{_PREFIX}spec_decode_num_accepted_tokens_per_pos"
            by_position = {str(position): n for position, n in sorted(self._tasks.accepted_per_pos.items())}
            family = CounterMetricFamily(
                name, "Accepted tokens by their place in a draft.", labels=["position"]
            )
            yield _filled(family, by_position)

    def _state(self) -> Iterator[Metric]:
        """Yield the metrics with our own names."""
        engine, sessions, telemetry = self._server.engine, self._server.sessions, self._server.telemetry
        build = GaugeMetricFamily("corral_build_info", "Always 1.", labels=["version", "build", "model"])
        build.add_metric([__version__, BUILD_INFO, self._model_name], 1)
        yield build
        state = GaugeMetricFamily("corral_engine_state", "1 for the current state.", labels=["state"])
        yield _filled(state, {each.value: each is engine.state for each in EngineState})
        yield CounterMetricFamily(
            "corral_engine_restarts",
            "Engine processes lost and replaced.",
            engine.n_restarts,
        )
        if engine.engines:
            yield from engine_metrics(engine.engines)
        yield CounterMetricFamily(
            "corral_tokenizer_restarts",
            "Tokenizer processes lost and replaced.",
            self.n_tokenizer_restarts(),
        )
        yield _pause_family(telemetry.loop)
        slots = GaugeMetricFamily("corral_slots", "Slots by state.", labels=["state"])
        yield _filled(slots, {"idle": telemetry.slots.n_idle, "busy": telemetry.slots.n_busy})
        yield from self._usage()
        yield GaugeMetricFamily("corral_queue_length", "Tasks waiting for a slot.", telemetry.queue.n_waiting)
        yield GaugeMetricFamily("corral_sessions_bytes", "Memory used by sessions.", sessions.resident_bytes)

    def _usage(self) -> Iterator[Metric]:
        """Yield what keys have used today, as the ledger has it."""
        today = self._server.telemetry.ledger.entries(int(time.time()) // DAY_S).values()
        used = GaugeMetricFamily(
            "corral_used_tokens_today", "Tokens of a key since midnight, UTC.", labels=["key", "kind"]
        )
        refused = GaugeMetricFamily(
            "corral_refused_requests_today", "Requests beyond the limits of a key.", labels=["key"]
        )
        for entry in today:
            for kind in ("input", "cached", "output"):
                used.add_metric([entry.name, kind], getattr(entry, kind))
            refused.add_metric([entry.name], entry.refused)
        yield used
        yield refused


def engine_metrics(engines: Sequence[Member]) -> Iterator[Metric]:
    """Yield what each engine of several has, and does."""
    ready = GaugeMetricFamily("corral_engine_ready", "1 if the engine serves.", labels=["engine", "node"])
    lost = CounterMetricFamily(
        "corral_engine_lost", "Processes of the engine that were lost and replaced.", labels=["engine"]
    )
    slots = GaugeMetricFamily("corral_engine_slots", "Slots of the engine.", labels=["engine", "state"])
    tokens = CounterMetricFamily("corral_engine_tokens", "Tokens the engine generated.", labels=["engine"])
    for engine in engines:
        name, load = str(engine.index), engine.load_now
        node = engine.place.node if engine.place is not None else ""
        ready.add_metric([name, node], engine.is_serving)
        lost.add_metric([name], engine.lifecycle.n_restarts)
        slots.add_metric([name, "busy"], load.n_running)
        slots.add_metric([name, "idle"], load.n_slots - load.n_running)
        tokens.add_metric([name], engine.n_generated)
    yield from (ready, lost, slots, tokens)


def _filled(family: FamilyT, values: Mapping[str, float]) -> FamilyT:
    """Return a family of metrics with these values, by the values of its only label."""
    for label, value in values.items():
        family.add_metric([label], value)
    return family


def _counter(name: str, text: str, value: float) -> Metric:
    """Return a counter; the library adds `_total` to `name`."""
    return CounterMetricFamily(_PREFIX + name, text, value)


class _Window:
    """A rate between two scrapes. Mutable: the sums at the last one."""

    def __init__(self) -> None:
        self._n = 0.0
        self._seconds = 0.0

    def rate(self, n: float, seconds: float) -> float:
        found = _rate(n - self._n, seconds - self._seconds)
        self._n, self._seconds = n, seconds
        return found


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, text, value)


def _rate(n: float, per: float) -> float:
    return n / per if per else 0.0
