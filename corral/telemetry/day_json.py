"""Render the last 24 hours as JSON: durations in milliseconds, times in milliseconds since 1970."""

from __future__ import annotations

from typing import Any

from corral.core.client import Client
from corral.telemetry.day import MINUTE_S, DayHistory, KeySeries
from corral.telemetry.history import SHARES
from corral.telemetry.live_json import render_quantiles
from corral.telemetry.period import Period, total
from corral.telemetry.quantiles import quantiles_of


def render_minutes(minutes: dict[int, Period]) -> list[dict[str, Any]]:
    return [_minute(at, period) for at, period in sorted(minutes.items())]


def render_keys(day: DayHistory, reader: Client, models: set[str] | None) -> list[dict[str, Any]]:
    """Render what the reader may see of keys: itself, or all as an administrator. `models`: those that it may
    see; None: all."""
    found = [each for each in day.series() if reader.is_admin or each.key == reader.id]
    rows = [_key(each) for each in found if models is None or each.model in models]
    return sorted(rows, key=lambda row: (row["model"], row["key"]))


def _minute(at: int, period: Period) -> dict[str, Any]:
    return {
        "t": at * MINUTE_S * 1000,
        "n_requests": period.n_requests,
        "n_failed": period.n_failed,
        "n_prompt": period.n_evaluated,
        "n_cached": period.n_cached,
        "n_generated": period.n_generated,
        "n_waiting": period.n_waiting,
        "n_busy": period.n_busy,
        **_latencies(period),
    }


def _key(series: KeySeries) -> dict[str, Any]:
    period = total(series.hours.values())
    return {
        "model": series.model,
        "key": series.name,
        "n_requests": period.n_requests,
        "n_failed": period.n_failed,
        "n_prompt": period.n_evaluated + period.n_cached,
        "n_cached": period.n_cached,
        "n_generated": period.n_generated,
        "seconds": round(period.seconds, 3),
        **_latencies(period),
    }


def _latencies(period: Period) -> dict[str, Any]:
    return {
        "ttft_ms": render_quantiles(quantiles_of(period.first, *SHARES)),
        "itl_ms": render_quantiles(quantiles_of(period.between, *SHARES)),
    }
