"""Quantiles of durations that are not kept."""

from __future__ import annotations

import random

import pytest

from corral.telemetry.quantiles import Latency


def test_nothing_has_no_quantiles():
    latency = Latency(4, 2)
    assert latency.all(0.5) is None
    latency.roll()
    assert latency.recent(0.5) is None


@pytest.mark.parametrize("scale", [0.0002, 0.01, 3.0, 100.0])
def test_quantiles_are_right_within_a_few_percent(scale):
    chance = random.Random(1)
    values = [chance.lognormvariate(0, 1) * scale for _ in range(5000)]
    latency = Latency(4, 2)
    for value in values:
        latency.add(value)
    latency.roll()
    values.sort()
    for share, found in zip((0.5, 0.95), latency.all(0.5, 0.95), strict=True):
        assert found == pytest.approx(values[int(share * len(values))], rel=0.08)


def test_old_rounds_are_forgotten():
    latency = Latency(4, 2)
    latency.add(1.0, 100)
    latency.roll()
    latency.add(0.001, 1)
    for n_rounds in range(1, 6):
        latency.roll()
        assert (latency.recent(0.5) is None) is (n_rounds > 2), n_rounds
        (median,) = latency.all(0.5) or (0.0,)
        assert median == pytest.approx({1: 1, 2: 1, 3: 1, 4: 0.001, 5: 0.0}[n_rounds], rel=0.12), n_rounds


def test_what_is_too_short_or_too_long_is_still_counted():
    latency = Latency(1, 1)
    latency.add(0.0)
    latency.add(1e9)
    latency.roll()
    low, high = latency.all(0.25, 1.0)
    assert 0 <= low <= 1e-4
    assert high > 1000


def test_several_at_once_count_each():
    one, many = Latency(1, 1), Latency(1, 1)
    for _ in range(7):
        one.add(0.02)
    many.add(0.02, 7)
    one.add(2.0)
    many.add(2.0)
    one.roll()
    many.roll()
    assert one.all(0.1, 0.5, 0.9) == many.all(0.1, 0.5, 0.9)
