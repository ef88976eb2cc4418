"""What `/metrics` shows, under llama-server's names: read from the board when somebody asks, never collected.

Whatever else is to be shown is registered in `Metrics.registry`.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from corral.api.service import Service

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "llamacpp:"


class Metrics:
    def __init__(self, service: Service) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Work(service))

    def render(self) -> bytes:
        """Prometheus's text format."""
        return generate_latest(self.registry)


class _Work:
    """A collector: what the engine has done so far, and does now."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def describe(self) -> list[Metric]:
        return []  # nobody else has these names

    def collect(self) -> Iterator[Metric]:
        tally = self._service.engine.board.tally
        prompt_s, predicted_s = tally.prompt_ms / 1e3, tally.predicted_ms / 1e3
        yield _counter(
            "prompt_tokens", "Prompt tokens evaluated, without those from a cache.", tally.n_prompt
        )
        yield _counter("prompt_seconds", "Seconds spent on prompts.", prompt_s)
        yield _counter("tokens_predicted", "Tokens generated.", tally.n_predicted)
        yield _counter("tokens_predicted_seconds", "Seconds spent generating.", predicted_s)
        yield _gauge("prompt_tokens_seconds", "Prompt tokens per second.", _rate(tally.n_prompt, prompt_s))
        yield _gauge(
            "predicted_tokens_seconds", "Generated tokens per second.", _rate(tally.n_predicted, predicted_s)
        )
        n_held, n_room = self._kv_cache()
        yield _gauge("kv_cache_usage_ratio", "KV cache in use; 1 is all of it.", _rate(n_held, n_room))
        yield _gauge("kv_cache_tokens", "Tokens in the KV cache.", n_held)
        yield _gauge("requests_processing", "Requests that are being worked on.", tally.n_running)
        yield _gauge("requests_deferred", "Requests that wait for a slot.", tally.n_waiting)

    def _kv_cache(self) -> tuple[int, int]:
        """Tokens in it, and how many it has room for."""
        info, board = self._service.engine.info, self._service.engine.board
        if info is None:
            return 0, 0
        n_room = info.n_ctx * (1 if self._service.settings.engine.kv_unified else info.n_slots)
        return min(board.n_held, n_room), n_room


def _counter(name: str, text: str, value: float) -> Metric:
    """`name` without its `_total`, which is always added."""
    return CounterMetricFamily(_PREFIX + name, text, value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, text, value)


def _rate(n: float, per: float) -> float:
    return n / per if per else 0.0
