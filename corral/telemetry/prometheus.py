"""What `/metrics` shows: llama-server's names first, then our own.

Gauges and sums are read from `Telemetry` at each scrape; only histograms are collected (`TaskMetrics`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.types import Scope

from corral import BUILD_INFO, __version__
from corral.link.lifecycle import EngineState
from corral.telemetry.facts import ServerFacts, kv_use
from corral.telemetry.record import RequestRecord
from corral.telemetry.task_metrics import TaskMetrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "llamacpp:"
_OTHER = "other"  # one label value for everything that clients make up
_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}


class Metrics:
    def __init__(self, facts: ServerFacts, model_name: str) -> None:
        # They double the lines of every counter and histogram.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._tasks = TaskMetrics(self.registry, model_name)
        server = facts.settings.server
        if not (server.api_keys or server.api_key_file):
            self._tasks.client("")
        facts.telemetry.observers.append(self._tasks)
        self._state = _StateCollector(facts, self._tasks, model_name)
        self.registry.register(self._state)
        ProcessCollector(registry=self.registry)
        labels = ("route", "method", "status")
        self._requests = Counter(
            "corral_http_requests", "HTTP requests that have ended.", labels, registry=self.registry
        )

    async def render(self) -> bytes:
        self._state.read()
        # Many clients make many lines: not on the event loop.
        return await asyncio.to_thread(generate_latest, self.registry)

    def on_request_end(self, scope: Scope, record: RequestRecord) -> None:
        method = scope["method"] if scope["method"] in _METHODS else _OTHER
        route = scope.get("route")
        self._requests.labels(route.path if route is not None else _OTHER, method, str(record.status)).inc()
        if record.tasks:
            self._tasks.on_request_end(record)

    def watch_tokenizer(self, n_restarts: Callable[[], int]) -> None:
        """Show how often the tokenizer process was lost."""
        self._state.n_tokenizer_restarts = n_restarts

    def watch_connections(self, count: Callable[[], int]) -> None:
        """Show the number of open connections too."""
        Gauge("corral_connections", "Connections that are open.", registry=self.registry).set_function(count)


class _StateCollector:
    """Counters and gauges: `read` takes them on the event loop, `collect` returns them in any thread."""

    def __init__(self, facts: ServerFacts, tasks: TaskMetrics, model_name: str) -> None:
        self._facts = facts
        self._tasks = tasks
        self._model_name = model_name
        self._seen: list[Metric] = []
        self.n_tokenizer_restarts: Callable[[], int] = lambda: 0

    def describe(self) -> list[Metric]:
        return []  # no other collector has these names

    def collect(self) -> list[Metric]:
        return self._seen

    def read(self) -> None:
        self._seen = [*self._work(), *self._state()]

    def _work(self) -> Iterator[Metric]:
        """Under the names of llama-server."""
        counters, queue = self._facts.telemetry.counters, self._facts.telemetry.queue
        prompt_s, predicted_s = counters.prompt_ms / 1e3, counters.predicted_ms / 1e3
        prompt_rate, rate = _rate(counters.n_prompt, prompt_s), _rate(counters.n_predicted, predicted_s)
        yield _counter(
            "prompt_tokens", "Prompt tokens evaluated, without those from a cache.", counters.n_prompt
        )
        yield _counter("prompt_tokens_cached", "Prompt tokens from a cache.", self._tasks.n_cached)
        yield _counter("prompt_seconds", "Seconds spent on prompts.", prompt_s)
        yield _counter("tokens_predicted", "Tokens generated.", counters.n_predicted)
        yield _counter("tokens_predicted_seconds", "Seconds spent generating.", predicted_s)
        yield _gauge("prompt_tokens_seconds", "Prompt tokens per second.", prompt_rate)
        yield _gauge("predicted_tokens_seconds", "Generated tokens per second.", rate)
        n_held, capacity = kv_use(self._facts)
        yield _gauge("kv_cache_usage_ratio", "KV cache in use; 1 is all of it.", _rate(n_held, capacity))
        yield _gauge("kv_cache_tokens", "Tokens in the KV cache.", n_held)
        yield _gauge("requests_processing", "Requests that are being worked on.", queue.n_running)
        yield _gauge("requests_deferred", "Requests that wait for a slot.", queue.n_waiting)
        yield _gauge("n_tokens_max", "Tokens of the longest prompt and its answer.", self._tasks.n_most)
        yield _counter(
            "spec_decode_num_draft_tokens", "Tokens evaluated ahead, in drafts.", self._tasks.n_drafted
        )
        yield _counter(
            "spec_decode_num_accepted_tokens", "Tokens of drafts that came.", self._tasks.n_accepted
        )

    def _state(self) -> Iterator[Metric]:
        """Under our own names."""
        engine, sessions, telemetry = self._facts.engine, self._facts.sessions, self._facts.telemetry
        build = GaugeMetricFamily("corral_build_info", "Always 1.", labels=["version", "build", "model"])
        build.add_metric([__version__, BUILD_INFO, self._model_name], 1)
        yield build
        state = GaugeMetricFamily("corral_engine_state", "1 for the state that it is in.", labels=["state"])
        for each in EngineState:
            state.add_metric([each.value], each is engine.state)
        yield state
        yield CounterMetricFamily(
            "corral_engine_restarts",
            "Engines that were lost, and followed by another one.",
            engine.n_restarts,
        )
        yield CounterMetricFamily(
            "corral_tokenizer_restarts",
            "Tokenizer processes that were lost, and followed by another one.",
            self.n_tokenizer_restarts(),
        )
        slots = GaugeMetricFamily("corral_slots", "Slots by what they do.", labels=["state"])
        slots.add_metric(["idle"], telemetry.slots.n_idle)
        slots.add_metric(["busy"], telemetry.slots.n_busy)
        yield slots
        yield GaugeMetricFamily(
            "corral_queue_length", "Tasks that wait for a slot.", telemetry.queue.n_waiting
        )
        yield GaugeMetricFamily(
            "corral_sessions_bytes", "Memory that sessions take.", sessions.resident_bytes
        )


def _counter(name: str, text: str, value: float) -> Metric:
    """`name` without its `_total`, which is always added."""
    return CounterMetricFamily(_PREFIX + name, text, value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, text, value)


def _rate(n: float, per: float) -> float:
    return n / per if per else 0.0
