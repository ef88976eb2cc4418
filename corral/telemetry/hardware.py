"""CPU time and memory of the server's processes, and the memory of GPUs, with their peaks since the start.

Read in a thread of the loop's pool: all of it comes from files of the system.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import Any

import psutil

from corral.core.control_group import ROOT, memory_limits
from corral.telemetry.gpu_memory import Gpu, GpuMemory

LOOK_S = 2.0  # between two readings
_LIST_S = 10.0  # between two looks for new processes
_FRESH_S = 0.5  # a reading is not repeated so soon


@dataclass(frozen=True, slots=True)
class Reading:
    """`cpu`: the share of all cores that the server's processes use, `machine_cpu` all processes."""

    n_cores: int
    cpu: float
    machine_cpu: float
    memory: int  # bytes that the server's processes hold
    available: int
    total: int
    gpus: list[Gpu]


class HardwareMeter:
    """Mutable, on the event loop: the last reading, and the peaks of all."""

    def __init__(self, sensor: Sensor | None = None) -> None:
        self._sensor = sensor or Sensor()
        self._last: Reading | None = None
        self._read_at = 0.0
        self._reading: asyncio.Future[Reading] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._peak_cpu = 0.0
        self._peak_memory = 0
        self._peak_gpus: dict[int, int] = {}

    def start(self) -> None:
        """Read again and again from now on; call it on the event loop."""
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look_again)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def render(self) -> dict[str, Any]:
        """Return a reading of now, with the peaks so far, as JSON."""
        found = self._last
        if found is None or time.monotonic() - self._read_at > _FRESH_S:
            found = await asyncio.shield(self._look())
        peaks = self._peak_gpus
        return {
            "cpu": {
                "share": round(found.cpu, 4),
                "peak": round(self._peak_cpu, 4),
                "machine": round(found.machine_cpu, 4),
                "cores": found.n_cores,
            },
            "memory": {
                "used": found.memory,
                "peak": self._peak_memory,
                "available": found.available,
                "total": found.total,
            },
            "gpus": [
                {"name": gpu.name, "used": gpu.used, "peak": peaks[i], "total": gpu.total}
                for i, gpu in enumerate(found.gpus)
            ],
        }

    def _look_again(self) -> None:
        self._look()
        self.start()

    def _look(self) -> asyncio.Future[Reading]:
        """Read in a thread, unless a reading is under way."""
        if self._reading is None:
            self._reading = asyncio.get_running_loop().run_in_executor(None, self._sensor.read)
            self._reading.add_done_callback(self._take)
        return self._reading

    def _take(self, reading: asyncio.Future[Reading]) -> None:
        self._reading = None
        if reading.cancelled() or reading.exception() is not None:
            return
        found = self._last = reading.result()
        self._read_at = time.monotonic()
        self._peak_cpu = max(self._peak_cpu, found.cpu)
        self._peak_memory = max(self._peak_memory, found.memory)
        for i, gpu in enumerate(found.gpus):
            self._peak_gpus[i] = max(self._peak_gpus.get(i, 0), gpu.used)


@dataclass(slots=True)
class Sensor:
    """Mutable: what two readings are compared by. Used by one thread at a time."""

    gpus: GpuMemory = field(default_factory=GpuMemory)
    _processes: dict[int, psutil.Process] = field(default_factory=dict)
    _cpu_s: dict[int, float] = field(default_factory=dict)  # by process, at the last reading
    _listed_at: float = -_LIST_S
    _read_at: float = 0.0

    def read(self) -> Reading:
        now = time.monotonic()
        if now - self._listed_at >= _LIST_S:
            self._list(now)
        cpu_s, memory = self._measure()
        spent = sum(s - self._cpu_s.get(pid, s) for pid, s in cpu_s.items())
        n_cores, passed = psutil.cpu_count() or 1, now - self._read_at
        share = spent / passed / n_cores if self._read_at and passed > 0 else 0.0
        self._cpu_s, self._read_at = cpu_s, now
        system = psutil.virtual_memory()
        limits = [limit for limit, _ in memory_limits(ROOT)]
        return Reading(
            n_cores=n_cores,
            cpu=min(1.0, max(0.0, share)),
            machine_cpu=psutil.cpu_percent(None) / 100,
            memory=memory,
            available=int(system.available),
            total=min([int(system.total), *limits]),
            gpus=self.gpus.read(),
        )

    def _list(self, now: float) -> None:
        own = psutil.Process()
        self._processes = {each.pid: each for each in (own, *own.children(recursive=True))}
        self._listed_at = now

    def _measure(self) -> tuple[dict[int, float], int]:
        """Return the CPU time of each process so far, and the memory of all."""
        cpu_s, memory = dict[int, float](), 0
        for pid, process in list(self._processes.items()):
            with contextlib.suppress(psutil.Error):
                with process.oneshot():
                    times, size = process.cpu_times(), process.memory_info().rss
                cpu_s[pid] = times.user + times.system
                memory += int(size)
                continue
            del self._processes[pid]  # it has ended; another one may have its place
            self._listed_at = -_LIST_S
        return cpu_s, memory
