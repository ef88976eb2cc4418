"""The meter of the event loop: what a callback costs all others."""

from __future__ import annotations

import asyncio
import time

from corral.telemetry.loop_meter import LoopMeter, Pause


def compute(seconds: float) -> None:
    """Take this much CPU time, however slow the machine."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def test_a_callback_that_computes_is_a_pause_of_both_clocks():
    meter = LoopMeter(beat_s=0.001)
    meter.start()
    compute(0.1)
    await asyncio.sleep(0)
    pause = meter.take()
    assert pause.wall_s >= pause.cpu_s >= 0.09
    meter.stop()


async def test_a_callback_that_sleeps_computes_nothing():
    meter = LoopMeter(beat_s=0.001)
    meter.start()
    time.sleep(0.3)
    pause = meter.take()
    assert pause.wall_s >= 0.29
    assert pause.cpu_s < pause.wall_s / 2
    meter.stop()


async def test_it_is_the_longest_since_it_was_read():
    meter, seen = LoopMeter(beat_s=0.001), []
    meter.observe = seen.append
    meter.start()
    for seconds in (0.02, 0.2, 0.02):
        compute(seconds)
        await asyncio.sleep(0.005)
    assert meter.take().wall_s >= 0.19
    assert max(seen) >= 0.19
    assert len(seen) >= 3
    meter.stop()
    assert meter.take().cpu_s <= meter.take().wall_s


async def test_it_looks_less_often_while_nothing_happens():
    meter, seen = LoopMeter(beat_s=0.001, idle_beat_s=60), []
    meter.observe = seen.append
    meter.start(is_busy=lambda: False)
    await asyncio.sleep(0.05)
    assert not seen
    meter.stop()


def test_without_a_loop_there_is_no_pause():
    assert LoopMeter().take() == Pause(0.0, 0.0)
