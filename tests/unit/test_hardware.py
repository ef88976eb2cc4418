"""Readings of the machine: shares of CPU time, memory, peaks."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import psutil

from corral.telemetry.gpu_memory import Gpu, GpuMemory
from corral.telemetry.hardware import HardwareMeter, Reading, Sensor


class Replay(Sensor):
    def __init__(self, *readings: Reading) -> None:
        self._readings = iter(readings)

    def read(self) -> Reading:
        return next(self._readings)


def reading(cpu: float, memory: int, gpu: int) -> Reading:
    return Reading(4, cpu, 0.5, memory, 900, 1000, [Gpu("A", gpu, 100)])


async def test_peaks_stay_when_the_values_fall(monkeypatch):
    monkeypatch.setattr("corral.telemetry.hardware._FRESH_S", -1.0)
    meter = HardwareMeter(Replay(reading(0.2, 300, 10), reading(0.9, 500, 70), reading(0.1, 100, 5)))
    for _ in range(2):
        await meter.render()
    assert await meter.render() == {
        "cpu": {"share": 0.1, "peak": 0.9, "machine": 0.5, "cores": 4},
        "memory": {"used": 100, "peak": 500, "available": 900, "total": 1000},
        "gpus": [{"name": "A", "used": 5, "peak": 70, "total": 100}],
    }


async def test_a_reading_serves_all_who_ask_at_once():
    meter = HardwareMeter(Replay(reading(0.2, 300, 10)))
    first, second = await meter.render(), await meter.render()
    assert first == second


async def test_nothing_is_read_when_it_has_stopped(monkeypatch):
    monkeypatch.setattr("corral.telemetry.hardware.LOOK_S", 0.0)
    readings = [reading(0.2, 300, 10)] * 1000
    meter = HardwareMeter(Replay(*readings))
    meter.start()
    while meter._last is None:
        await asyncio.sleep(0)
    meter.stop()
    while meter._reading is not None:  # began before
        await asyncio.sleep(0)
    at = meter._read_at
    await asyncio.sleep(0.05)
    assert meter._read_at == at


def test_processes_of_the_server_count_as_long_as_they_live():
    alone = Sensor(GpuMemory("libnone.so")).read()
    own = psutil.Process().memory_info().rss
    assert 0.5 * own < alone.memory
    assert 0 < alone.available <= alone.total
    with subprocess.Popen(
        [sys.executable, "-c", "x = bytearray(64 << 20); input()"], stdin=-1, stdout=-1
    ) as child:
        sensor = Sensor(GpuMemory("libnone.so"))
        sensor.read()
        assert sensor._processes.keys() >= {psutil.Process().pid, child.pid}
        child.communicate(b"\n")
    sensor.read()
    assert child.pid not in sensor._processes


def test_memory_of_amd_cards_is_in_files(tmp_path):
    for name, used in (("card0", "7\n"), ("card1", None), ("card0-DP-1", None)):
        device = tmp_path / name / "device"
        device.mkdir(parents=True)
        if used:
            (device / "mem_info_vram_total").write_text("100\n")
            (device / "mem_info_vram_used").write_text(used)
    assert GpuMemory("libnone.so", tmp_path).read() == [Gpu("AMD card0", 7, 100)]
