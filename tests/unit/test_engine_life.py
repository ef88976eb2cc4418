"""The life of an engine as samples show it: they may be late."""

from __future__ import annotations

from corral.link.engine_state import EngineState
from corral.telemetry.history import EngineLife


def test_its_age_when_a_request_ran():
    life = EngineLife(EngineState.LOADING, 10.0)
    assert life.age_s(12.0) == 0.0  # it works, although no sample has shown that
    life.update(EngineState.READY, 0, 12.5)
    assert life.age_s(12.0) == 0.0
    assert life.age_s(20.0) == 7.5
    life.update(EngineState.RESTARTING, 1, 30.0)
    assert life.age_s(20.0) == 7.5
    assert life.age_s(31.0) == 0.0
    life.update(EngineState.READY, 1, 32.0)
    assert life.age_s(31.0) == 0.0
    assert life.age_s(40.0) == 8.0
    assert life.age_s(5.0) is None
