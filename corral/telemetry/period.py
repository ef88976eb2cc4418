"""Sums of what happened in a span of time, which can be added up, and kept in a file."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from corral.telemetry.quantiles import bucket_of
from corral.telemetry.usage import Usage


class Period(msgspec.Struct, array_like=True):
    """Mutable. `first` and `between`: histograms of the time to first token, and between tokens."""

    n_requests: int = 0
    n_failed: int = 0
    n_evaluated: int = 0  # prompt tokens
    n_cached: int = 0
    n_generated: int = 0
    seconds: float = 0.0  # in slots
    n_waiting: int = 0  # at most, at a time
    n_busy: int = 0
    first: dict[int, int] = {}
    between: dict[int, int] = {}

    def add_first(self, seconds: float) -> None:
        _count(self.first, seconds, 1)

    def add_between(self, seconds: float, n: int) -> None:
        _count(self.between, seconds, n)

    def add_usage(self, usage: Usage, seconds: float) -> None:
        self.n_evaluated += usage.n_input - usage.n_cached
        self.n_cached += usage.n_cached
        self.n_generated += usage.n_output
        self.seconds += seconds

    def add_request(self, status: int) -> None:
        self.n_requests += 1
        self.n_failed += status >= 400

    def add_load(self, n_waiting: int, n_busy: int) -> None:
        self.n_waiting, self.n_busy = max(self.n_waiting, n_waiting), max(self.n_busy, n_busy)


def total(periods: Iterable[Period]) -> Period:
    found = Period()
    for each in periods:
        found.n_requests += each.n_requests
        found.n_failed += each.n_failed
        found.n_evaluated += each.n_evaluated
        found.n_cached += each.n_cached
        found.n_generated += each.n_generated
        found.seconds += each.seconds
        found.add_load(each.n_waiting, each.n_busy)
        for histogram, more in ((found.first, each.first), (found.between, each.between)):
            for bucket, n in more.items():
                histogram[bucket] = histogram.get(bucket, 0) + n
    return found


def _count(histogram: dict[int, int], seconds: float, n: int) -> None:
    bucket = bucket_of(seconds)
    histogram[bucket] = histogram.get(bucket, 0) + n
