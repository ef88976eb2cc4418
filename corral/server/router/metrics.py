"""One scrape for all models: the metrics of each, with a label that names it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from corral.server.router.model import ServedModel
from corral.telemetry.prometheus import Metrics

# Of the process, not of a model.
_COMMON = ("process", "corral_connections", "corral_loop")


class _Fixed:
    """A collector of metrics that were read before."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = list(found)

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> list[Metric]:
        return self._found


async def render_metrics(hub: Metrics, models: Iterable[ServedModel]) -> bytes:
    found = {each.name: each for each in await hub.collect() if _is_common(each) or _is_http(each)}
    for model in models:
        metrics: Metrics | None = model.front.app.state.metrics if model.front is not None else None
        for each in await metrics.collect() if metrics is not None else ():
            if not _is_common(each):
                _add(found, each, model.name)
    registry = CollectorRegistry()
    registry.register(_Fixed(found.values()))
    return await asyncio.to_thread(generate_latest, registry)


def _is_common(metric: Metric) -> bool:
    return metric.name.startswith(_COMMON)


def _is_http(metric: Metric) -> bool:
    return metric.name == "corral_http_requests"


def _add(found: dict[str, Metric], metric: Metric, model: str) -> None:
    family = found.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
    for sample in metric.samples:
        family.samples.append(sample._replace(labels={**sample.labels, "model": model}))
