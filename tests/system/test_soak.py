"""The short form of `make soak`: the same traffic under the same faults, and the same promises."""

from __future__ import annotations

import pytest

from tests.soak.run import Plan, soak

SHORT = Plan(n_requests=400, faults_every_s=(0.3, 1.5), min_losses=3, seed=7)


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # asyncio's, of clients that leave
def test_nothing_is_lost_or_doubled_or_left_behind():
    report = soak(SHORT)
    assert report.problems() == [], report.text()
    counts = report.score.counts
    assert counts["requests"] >= SHORT.n_requests
    assert counts["engines killed"] >= 2
    assert counts["engines stopped"] >= 1
    assert counts["answered"] > SHORT.n_requests / 4
    assert counts["left before the end"] > SHORT.n_requests / 20
    assert counts["tokens compared"] > 500
    assert report.health.statuses.keys() <= {"200", "503"}
    assert report.health.statuses["200"] > 50
