"""What `/metrics` shows: llama-server's names first, then our own.

What the board knows is read from it when somebody asks; only what it forgets is collected (`OrderMetrics`).
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
from corral.api.kv_use import kv_use
from corral.api.order_metrics import OrderMetrics
from corral.api.service import Service
from corral.core.visit import Visit
from corral.link.supervisor import EngineState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "llamacpp:"
_OTHER = "other"  # whatever clients make up is one value
_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}


class Metrics:
    """Mutable, from the event loop."""

    def __init__(self, service: Service) -> None:
        # One more line for each of the others, that nobody asks for.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._orders = OrderMetrics(self.registry, service.model_name)
        server = service.settings.server
        if not (server.api_keys or server.api_key_file):
            self._orders.client("")
        service.engine.board.watchers.append(self._orders)
        self._board = _Board(service, self._orders)
        self.registry.register(self._board)
        ProcessCollector(registry=self.registry)
        labels = ("route", "method", "status")
        self._requests = Counter(
            "corral_http_requests", "HTTP requests that have ended.", labels, registry=self.registry
        )

    async def render(self) -> bytes:
        """Prometheus's text format."""
        self._board.look()
        # Many clients have many lines, which streams should not have to wait for.
        return await asyncio.to_thread(generate_latest, self.registry)

    def end(self, scope: Scope, visit: Visit) -> None:
        """A request has ended."""
        method = scope["method"] if scope["method"] in _METHODS else _OTHER
        route = scope.get("route")
        self._requests.labels(route.path if route is not None else _OTHER, method, str(visit.status)).inc()
        if visit.legs:
            self._orders.end(visit)

    def watch_connections(self, count: Callable[[], int]) -> None:
        """Show also how many clients are connected."""
        Gauge("corral_connections", "Connections that are open.", registry=self.registry).set_function(count)


class _Board:
    """A collector: what the engine has done so far, and does now. It looks at that on the event loop, and may
    be asked in any thread for what it saw."""

    def __init__(self, service: Service, orders: OrderMetrics) -> None:
        self._service = service
        self._orders = orders
        self._seen: list[Metric] = []

    def describe(self) -> list[Metric]:
        return []  # nobody else has these names

    def collect(self) -> list[Metric]:
        return self._seen

    def look(self) -> None:
        self._seen = [*self._work(), *self._state()]

    def _work(self) -> Iterator[Metric]:
        """Under the names of llama-server."""
        tally, line = self._service.engine.board.tally, self._service.engine.board.line
        prompt_s, predicted_s = tally.prompt_ms / 1e3, tally.predicted_ms / 1e3
        yield _counter(
            "prompt_tokens", "Prompt tokens evaluated, without those from a cache.", tally.n_prompt
        )
        yield _counter("prompt_tokens_cached", "Prompt tokens from a cache.", self._orders.n_cached)
        yield _counter("prompt_seconds", "Seconds spent on prompts.", prompt_s)
        yield _counter("tokens_predicted", "Tokens generated.", tally.n_predicted)
        yield _counter("tokens_predicted_seconds", "Seconds spent generating.", predicted_s)
        yield _gauge("prompt_tokens_seconds", "Prompt tokens per second.", _rate(tally.n_prompt, prompt_s))
        yield _gauge(
            "predicted_tokens_seconds", "Generated tokens per second.", _rate(tally.n_predicted, predicted_s)
        )
        n_held, n_room = kv_use(self._service)
        yield _gauge("kv_cache_usage_ratio", "KV cache in use; 1 is all of it.", _rate(n_held, n_room))
        yield _gauge("kv_cache_tokens", "Tokens in the KV cache.", n_held)
        yield _gauge("requests_processing", "Requests that are being worked on.", line.n_running)
        yield _gauge("requests_deferred", "Requests that wait for a slot.", line.n_waiting)
        yield _gauge("n_tokens_max", "Tokens of the longest prompt and its answer.", self._orders.n_most)
        yield _counter(
            "spec_decode_num_draft_tokens", "Tokens evaluated ahead, in drafts.", self._orders.n_drafted
        )
        yield _counter(
            "spec_decode_num_accepted_tokens", "Tokens of drafts that came.", self._orders.n_accepted
        )

    def _state(self) -> Iterator[Metric]:
        """Under our own names."""
        engine, sessions = self._service.engine, self._service.sessions
        build = GaugeMetricFamily("corral_build_info", "Always 1.", labels=["version", "build", "model"])
        build.add_metric([__version__, BUILD_INFO, self._service.model_name], 1)
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
        n_idle, n_slots = engine.board.n_idle, len(engine.board.slots)
        slots = GaugeMetricFamily("corral_slots", "Slots by what they do.", labels=["state"])
        slots.add_metric(["idle"], n_idle)
        slots.add_metric(["busy"], n_slots - n_idle)
        yield slots
        yield GaugeMetricFamily(
            "corral_queue_length", "Orders that wait for a slot.", engine.board.line.n_waiting
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
