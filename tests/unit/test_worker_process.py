"""Signs of life of a process, as they are seen from outside."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import psutil
import pytest

from corral.link.worker_process import LOOK_S, Pulse
from tests.tools.wait import wait_until


@pytest.fixture
def child():
    """A process that works for ever if it gets a line, and otherwise waits for one."""
    program = "input(); print(1, flush=True)\nwhile True: pass"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        yield child
        child.kill()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += LOOK_S
        return self.now


def begin(child) -> None:
    child.stdin.write("\n")
    child.stdin.flush()
    child.stdout.readline()


def has_used_more(process: psutil.Process, seconds: float) -> bool:
    return process.cpu_times().user > seconds


def test_a_process_that_works_is_not_silent(child):
    begin(child)
    pulse, process = Pulse(child.pid, Clock()), psutil.Process(child.pid)
    for _ in range(4):
        pulse.look(is_asked=True)
        assert pulse.silent_s == 0
        wait_until(partial(has_used_more, process, process.cpu_times().user))


def test_a_process_that_is_not_asked_may_wait(child):
    wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_SLEEPING)
    pulse = Pulse(child.pid, Clock())
    for _ in range(5):
        pulse.look(is_asked=False)
    assert pulse.silent_s == 0


def test_a_process_that_waits_although_it_is_asked_is_silent(child):
    wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_SLEEPING)
    pulse = Pulse(child.pid, Clock())
    wait_until(lambda: pulse.look(is_asked=True) or pulse.silent_s >= 3 * LOOK_S)


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_stopped_process_is_silent_until_it_continues(child, is_asked):
    begin(child)
    pulse, process = Pulse(child.pid, Clock()), psutil.Process(child.pid)
    process.suspend()
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
    for _ in range(3):
        pulse.look(is_asked)
    assert pulse.silent_s >= 2 * LOOK_S
    process.resume()
    wait_until(lambda: pulse.look(is_asked) or pulse.silent_s == 0)


def test_time_in_which_the_front_stood_still_does_not_count(child):
    clock = Clock()
    pulse, process = Pulse(child.pid, clock), psutil.Process(child.pid)
    process.suspend()
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
    clock.now += 1000
    pulse.look(is_asked=False)
    assert pulse.silent_s <= 2 * LOOK_S
