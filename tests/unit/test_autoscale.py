"""How many engines run: the policy with a clock of the test, and a fleet that follows it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from corral.core.task import Stop
from corral.link.autoscale import Autoscaler, EngineUse, ScaleLimits, ScalePlan, Scaling
from corral.link.lifecycle import EngineState
from tests.tools.wait import wait_until_async
from tests.unit.fake_fleet import Answer, be_ready, commands_of, started
from tests.unit.fake_fleet import quick as quick
from tests.unit.fake_process import Process

LIMITS = ScaleLimits(n_min=1, wait_s=1.0, idle_s=10.0)
BUSY, FREE, STARTING = EngineUse(2, 3), EngineUse(2), EngineUse(2, is_ready=False)


def test_a_task_must_wait_before_another_engine_starts():
    policy = Autoscaler(LIMITS)
    assert policy.plan(0.0, [1], {0: BUSY}) == ScalePlan()
    assert policy.plan(0.9, [1, 2], {0: BUSY}) == ScalePlan()
    assert policy.plan(1.0, [1, 2], {0: BUSY}) == ScalePlan(1)
    assert policy.plan(1.1, [1, 2], {0: BUSY, 1: STARTING}) == ScalePlan(0)


def test_many_waiting_tasks_start_the_engines_that_they_fill():
    policy = Autoscaler(LIMITS)
    full = EngineUse(2, 7)
    policy.plan(0.0, range(5), {0: full})
    assert policy.plan(1.0, range(5), {0: full}) == ScalePlan(3)
    assert policy.plan(1.2, range(5), {0: full, 1: STARTING}) == ScalePlan(2)


def test_a_task_that_is_about_to_get_a_slot_starts_no_engine():
    policy = Autoscaler(LIMITS)
    for now, use in ((0.0, EngineUse(1, 1, is_ready=False)), (5.0, EngineUse(1, 1))):
        assert policy.plan(now, [1], {0: use}) == ScalePlan()


def test_a_task_that_got_a_slot_counts_from_the_start_if_it_waits_again():
    policy = Autoscaler(LIMITS)
    policy.plan(0.0, [1], {0: BUSY})
    policy.plan(0.5, [], {0: BUSY})
    assert policy.plan(1.2, [1], {0: BUSY}) == ScalePlan()


def test_idle_engines_end_but_not_the_last_ones():
    policy = Autoscaler(LIMITS)
    engines = dict.fromkeys(range(3), FREE)
    assert policy.plan(0.0, [], engines) == ScalePlan()
    assert policy.plan(5.0, [], {**engines, 1: BUSY}) == ScalePlan()
    assert policy.plan(10.0, [], engines).stop == (2, 0)
    assert policy.plan(11.0, [], {1: FREE}) == ScalePlan()
    assert policy.plan(99.0, [], {1: FREE}) == ScalePlan()


def test_the_last_one_ends_where_none_must_run():
    policy = Autoscaler(ScaleLimits(0, 1.0, 10.0))
    policy.plan(0.0, [], {0: FREE})
    assert policy.plan(10.0, [], {0: FREE}).stop == (0,)


def test_engines_that_must_run_are_started_again():
    assert Autoscaler(ScaleLimits(2, 1.0, 10.0)).plan(0.0, [], {1: FREE}) == ScalePlan(1)


@given(
    st.lists(
        st.tuples(
            st.floats(0, 20),
            st.sets(st.integers(0, 9)),
            st.dictionaries(st.integers(0, 4), st.sampled_from([BUSY, FREE, STARTING])),
        )
    )
)
def test_engines_with_tasks_never_end_and_the_fewest_stay(events):
    policy, now = Autoscaler(LIMITS), 0.0
    for passed, waiting, engines in events:
        now += passed
        plan = policy.plan(now, waiting, engines)
        assert all(engines[index] is FREE for index in plan.stop)
        assert len(engines) - len(plan.stop) >= min(LIMITS.n_min, len(engines))
        assert not (plan.stop and plan.n_start)


async def test_a_fleet_grows_while_tasks_wait_and_shrinks_when_idle(monkeypatch):
    monkeypatch.setattr("corral.link.autoscale.LOOK_S", 3600.0)
    async with started(2, n_started=1, scale=ScaleLimits(1, 1.0, 10.0)) as fleet:
        scaling = Scaling(fleet.engines, ScaleLimits(1, 1.0, 10.0), fleet.lifecycle.spawn)
        assert fleet.engines[1].state is EngineState.SLEEPING
        answers = [Answer(fleet, [i]) for i in range(3)]
        for slot, answer in enumerate(answers[:2]):
            answer.admit(slot)
        scaling.look(0.0)
        assert len(Process.all) == 1
        scaling.look(1.0)
        await be_ready(1, "a")
        await wait_until_async(lambda: answers[2].processes[-1] == 1)
        for answer in answers:
            answer.end()
            await answer.is_done()
        scaling.look(2.0)
        scaling.look(12.0)
        assert isinstance((await commands_of(Process.all[1], Stop))[-1], Stop)
        assert [member.state for member in fleet.engines] == [EngineState.READY, EngineState.SLEEPING]


async def test_a_task_starts_one_engine_of_a_fleet_without_any(monkeypatch):
    monkeypatch.setattr("corral.link.autoscale.LOOK_S", 3600.0)
    async with started(2, n_started=1, scale=ScaleLimits(0, 1.0, 10.0)) as fleet:
        scaling = Scaling(fleet.engines, ScaleLimits(0, 1.0, 10.0), fleet.lifecycle.spawn)
        scaling.look(0.0)
        scaling.look(10.0)
        await commands_of(Process.all[0], Stop)
        Process.all[0].die()
        answers = [Answer(fleet, [i]) for i in range(2)]
        await be_ready(1, "a")
        await wait_until_async(lambda: [answer.processes for answer in answers] == [[1], [1]])
        assert fleet.engines[1].state is EngineState.SLEEPING
        for answer in answers:
            answer.end()
            await answer.is_done()
