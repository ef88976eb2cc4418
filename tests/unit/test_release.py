"""Memory goes back after large requests, once for those that end together."""

from __future__ import annotations

import threading

import pytest

from corral.server import memory_trim as release
from corral.server.memory_trim import MemoryRelease
from corral.telemetry.record import RequestRecord
from corral.telemetry.request_observer import Asked
from tests.tools.wait import wait_until_async


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(release, "_DELAY_S", 0.0)


async def test_only_large_requests_count_and_those_that_end_together_once():
    calls: list[str] = []
    observer = MemoryRelease(lambda: calls.append(threading.current_thread().name))
    for is_large in (True, False, True, True):
        observer.on_request_end(Asked("GET", "/", "/"), RequestRecord(is_large=is_large))
    await wait_until_async(lambda: calls)
    assert len(calls) == 1
    assert calls[0] != threading.main_thread().name
    observer.on_request_end(Asked("GET", "/", "/"), RequestRecord(is_large=True))
    await wait_until_async(lambda: len(calls) == 2)


async def test_small_ones_cost_nothing():
    observer = MemoryRelease(lambda: None)
    observer.on_request_end(Asked("GET", "/", "/"), RequestRecord())
    assert observer._timer is None
