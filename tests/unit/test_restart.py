"""When a lost engine gets a successor, who is to blame, when one is silent, and when one sleeps."""

from __future__ import annotations

import pytest

from corral.core.params import GenerationParams
from corral.core.result import Heartbeat
from corral.core.task import Task
from corral.link.heartbeat import LOOK_S, HeartbeatMonitor
from corral.link.idle import Idle
from corral.link.pending_task import MAX_CRASHES, MAX_LOST, PendingTask, charge_crash, suspects
from corral.link.restart import SOUND_S, EngineExit, RestartPolicy
from corral.link.stream import TaskStream

NEVER_READY = EngineExit(ready_s=None)
FELL_OVER = EngineExit(ready_s=1.0)
TAKEN_DOWN = EngineExit(ready_s=1.0, has_suspects=True)
GOOD = EngineExit(ready_s=1.0, has_completed=True)


# --- the policy


@pytest.mark.parametrize("life", [NEVER_READY, FELL_OVER])
def test_engines_that_fail_are_waited_for_longer_each_time_until_there_are_too_many(life):
    policy = RestartPolicy(8)
    assert [policy.end(life) for _ in range(9)] == [0.5, 1, 2, 4, 8, 16, 30, 30, None]


def test_the_limit_may_be_none_at_all():
    assert RestartPolicy(0).end(NEVER_READY) is None
    assert RestartPolicy(0).end(TAKEN_DOWN) == 0


def test_a_huge_limit_is_no_overflow():
    policy = RestartPolicy(5000)
    assert {policy.end(NEVER_READY) for _ in range(5000)} == {0.5, 1, 2, 4, 8, 16, 30}
    assert policy.end(NEVER_READY) is None


def test_whoever_takes_engines_down_never_uses_up_the_limit():
    policy = RestartPolicy(1)
    assert [policy.end(TAKEN_DOWN) for _ in range(7)] == [0, 0, 0.5, 1, 2, 2, 2]
    assert policy.end(NEVER_READY) == 0.5
    assert policy.end(TAKEN_DOWN) == 2
    assert policy.end(NEVER_READY) is None  # what was taken down in between makes it no better


def test_an_engine_that_dies_while_it_loads_has_no_work_to_charge_crash():
    policy = RestartPolicy(1)
    assert policy.end(EngineExit(None, has_suspects=True)) == 0.5
    assert policy.end(EngineExit(None, has_suspects=True)) is None


@pytest.mark.parametrize("proof", [GOOD, EngineExit(ready_s=SOUND_S)])
def test_an_engine_that_was_good_for_something_makes_all_forgotten(proof):
    policy = RestartPolicy(2)
    for _ in range(3):
        assert [policy.end(life) for life in (NEVER_READY, FELL_OVER)] == [0.5, 1]
        assert [policy.end(TAKEN_DOWN) for _ in range(3)] == [0, 0, 0.5]
        assert policy.end(proof) == 0


def test_one_that_has_completed_tasks_and_was_taken_down_begins_a_new_row():
    policy = RestartPolicy(0)
    assert [policy.end(EngineExit(5.0, has_suspects=True, has_completed=True)) for _ in range(9)] == [0] * 9


def test_what_a_cluster_or_network_causes_is_waited_for_without_end():
    policy = RestartPolicy(0)
    away = EngineExit(ready_s=None, may_pass=True)
    assert policy.end(EngineExit(ready_s=1.0, may_pass=True)) == 0
    assert [policy.end(away) for _ in range(9)] == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert policy.end(EngineExit(ready_s=1.0, may_pass=True)) == 0
    assert policy.end(away) == 0.5
    assert policy.end(NEVER_READY) is None


# --- blame


def entry(id: int, is_sent: bool = True, is_admitted: bool = False, n_crashes: int = 0) -> PendingTask:
    task = Task(id=id, prompt=[1], params=GenerationParams())
    return PendingTask(task, TaskStream(lambda: None), None, None, [], n_crashes, is_sent, is_admitted)


def test_those_are_blamed_that_were_worked_on():
    worked, waited = entry(0, is_admitted=True), entry(1)
    assert suspects([worked, waited]) == [worked]
    charge_crash([worked, waited])
    assert (worked.n_crashes, waited.n_crashes) == (1, 0)


def test_without_any_those_that_the_engine_knew_of():
    known, unknown = entry(0), entry(1, is_sent=False)
    charge_crash([known, unknown])
    assert (known.n_crashes, unknown.n_crashes) == (1, 0)


def test_nobody_is_blamed_twice_for_one_engine():
    one = entry(0, is_admitted=True)
    assert (charge_crash([one]), charge_crash([one]), one.n_crashes) == ([], [], 1)


def test_who_takes_too_many_down_is_given_up():
    one, other = entry(0, is_admitted=True, n_crashes=MAX_CRASHES - 1), entry(1, is_admitted=True)
    assert charge_crash([one, other]) == [one]


# --- signs of life


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


BEAT = Heartbeat(0.0, 0.0)


def passed(clock: Clock, pulse: HeartbeatMonitor, seconds: float) -> list[str]:
    """What is seen in this time, by somebody who looks."""
    seen = []
    for _ in range(round(seconds / LOOK_S)):
        clock.now += LOOK_S
        seen.append(pulse.check())
    return seen


@pytest.mark.parametrize(("timeout_s", "silent_s"), [(10.0, 2.5), (60.0, 15.0), (3.0, 2.0)])
def test_an_engine_is_silent_before_it_is_given_up(timeout_s, silent_s):
    clock = Clock()
    pulse = HeartbeatMonitor(timeout_s, clock)
    pulse.on_beat(BEAT)
    assert not any(passed(clock, pulse, silent_s))
    assert not pulse.is_silent
    passed(clock, pulse, LOOK_S)
    assert pulse.is_silent
    assert not any(passed(clock, pulse, timeout_s - silent_s - LOOK_S))
    assert passed(clock, pulse, LOOK_S) == [f"no sign of life for {timeout_s:g} s"]
    pulse.on_beat(BEAT)
    assert not pulse.is_silent
    assert not pulse.check()


def test_time_in_which_nobody_looked_counts_against_nobody():
    clock = Clock()
    pulse = HeartbeatMonitor(10.0, clock)
    pulse.on_beat(BEAT)
    clock.now += 3600
    assert not pulse.is_silent  # asked before anything else has had its turn
    assert not pulse.check()
    assert not pulse.is_silent
    assert any(passed(clock, pulse, 11))


def test_before_its_first_beat_an_engine_has_longer():
    clock = Clock()
    pulse = HeartbeatMonitor(2.0, clock)
    assert not any(passed(clock, pulse, 30))
    assert passed(clock, pulse, LOOK_S) == ["no sign of life for 30 s"]


def test_a_beat_may_tell_of_a_wedged_decode():
    pulse = HeartbeatMonitor(10.0)
    assert not pulse.on_beat(Heartbeat(1e3, 1e3))
    assert pulse.on_beat(Heartbeat(61e3, 1e3)) == "a decode has been running for 61 s"


# --- nothing to do


def test_an_engine_sleeps_after_so_long_without_work():
    clock = Clock()
    idle = Idle(10.0, clock)
    assert not idle.check(0, is_busy=False)
    clock.now += 9.9
    assert not idle.check(0, is_busy=False)
    clock.now += 0.1
    assert idle.check(0, is_busy=False)


@pytest.mark.parametrize("n_orders", [0, 1])
def test_work_starts_the_time_anew(n_orders):
    clock = Clock()
    idle = Idle(10.0, clock)
    clock.now += 1000
    assert not idle.check(n_orders, is_busy=True)
    clock.now += 9
    assert not idle.check(n_orders, is_busy=False)
    clock.now += 1
    assert idle.check(n_orders, is_busy=False)


def test_so_does_an_order_that_nobody_has_seen():
    clock = Clock()
    idle = Idle(10.0, clock)
    clock.now += 10
    assert not idle.check(1, is_busy=False)
    clock.now += 10
    assert idle.check(1, is_busy=False)


def test_no_time_at_all_is_not_in_the_middle_of_work():
    idle = Idle(0.0)
    assert not idle.check(0, is_busy=True)
    assert idle.check(0, is_busy=False)


def test_by_default_it_never_sleeps():
    clock = Clock()
    idle = Idle(-1.0, clock)
    clock.now += 1e9
    assert not idle.check(0, is_busy=False)


def test_another_limit_counts_until_the_next_task():
    clock = Clock()
    idle = Idle(-1.0, clock)
    assert idle.left_s(1, is_busy=False) is None
    idle.keep(5.0, 1)
    assert not idle.check(1, is_busy=True)
    clock.now += 2
    assert idle.left_s(1, is_busy=False) == 3.0
    assert idle.left_s(1, is_busy=True) == 5.0
    clock.now += 3
    assert idle.check(1, is_busy=False)
    assert idle.left_s(2, is_busy=False) is None
    assert not idle.check(2, is_busy=False)


def test_a_task_that_gets_new_tokens_between_crashes_did_not_cause_them_but_has_a_limit():
    one = entry(0)
    for n in range(1, MAX_LOST):
        one.is_admitted = True
        one.delivered.append(n)
        assert charge_crash([one]) == []
    one.is_admitted = True
    one.delivered.append(MAX_LOST)
    assert charge_crash([one]) == [one]


def test_a_task_that_gets_no_new_token_between_crashes_is_over():
    one = entry(0)
    one.delivered += [1, 2]
    for _ in range(MAX_CRASHES - 1):
        one.is_admitted = True
        assert charge_crash([one]) == []
    one.is_admitted = True
    assert charge_crash([one]) == [one]
