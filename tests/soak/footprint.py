"""What the two processes hold when nothing is going on: memory, descriptors, threads; slots and cells."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass
from typing import Any

import psutil

from tests.soak.fault import engine_of, is_healthy
from tests.soak.traffic import N_SLOTS
from tests.soak.wire import Received, Wire, encode

QUIET_S = 2.0


@dataclass(frozen=True, slots=True)
class Footprint:
    rss_mib: float
    n_fds: int
    n_threads: int

    @classmethod
    def of(cls, process: psutil.Process) -> Footprint:
        with process.oneshot():
            return cls(
                round(process.memory_info().rss / (1 << 20), 1), process.num_fds(), process.num_threads()
            )


@dataclass(frozen=True, slots=True)
class Mark:
    """Both processes at one moment; `leftovers` says what should not be there any more."""

    name: str
    n_requests: int
    front: Footprint
    engine: Footprint
    leftovers: list[str]


async def take_mark(
    name: str, n_requests: int, front: psutil.Process, address: tuple[str, int], patience_s: float
) -> Mark:
    """Once everything has come to its end; sessions and what slots hold are removed first."""
    wire, deadline = Wire(address), time.monotonic() + patience_s
    while not await is_healthy(address) and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    for session in (await _get(wire, "/sessions")).json():
        await wire.exchange(encode("POST", f"/sessions/{session['id']}?action=remove", {}))
    for slot in range(N_SLOTS):
        await wire.exchange(encode("POST", f"/slots/{slot}?action=erase", {}))
    while (leftovers := await _leftovers(wire)) and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    await asyncio.sleep(QUIET_S)
    wire.close()
    await asyncio.sleep(0.2)
    engine = engine_of(front)
    assert engine is not None, "the engine is gone although nothing was done to it"
    return Mark(name, n_requests, Footprint.of(front), Footprint.of(engine), leftovers)


async def _leftovers(wire: Wire) -> list[str]:
    """What is still going on, or still held."""
    left = []
    slots: list[dict[str, Any]] = (await _get(wire, "/slots")).json()
    if busy := [slot["id"] for slot in slots if slot["is_processing"]]:
        left.append(f"slots {busy} are processing")
    metrics = (await _get(wire, "/metrics")).body.decode()
    for name in ("requests_processing", "requests_deferred", "kv_cache_tokens"):
        found = re.search(rf"^llamacpp:{name} ([\d.e+]+)$", metrics, re.MULTILINE)
        if found is None or float(found[1]):
            left.append(f"{name} is {found and found[1]}")
    return left


async def _get(wire: Wire, path: str) -> Received:
    received = await wire.exchange(encode("GET", path))
    assert received.status == 200, (path, bytes(received.body))
    return received
