"""How many engines run: the policy with a clock of the test, and a fleet that follows it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from corral.core.errors import Conflict
from corral.core.result import Failed
from corral.core.task import HandOver, Stop, Task
from corral.fleet.autoscale import Autoscaler, EngineUse, ScaleLimits, ScalePlan, Scaling
from corral.fleet.fleet import Fleet
from corral.link.engine_state import EngineState
from tests.tools.wait import wait_until_async
from tests.unit.fake_fleet import Answer, be_ready, commands_of, started
from tests.unit.fake_fleet import quick as quick
from tests.unit.fake_process import N_GIVEN, Process

LIMITS = ScaleLimits(n_min=1, wait_s=1.0, idle_s=10.0)
BUSY, FREE, STARTING = EngineUse(2, 3), EngineUse(2), EngineUse(2, is_ready=False)
LIGHT = EngineUse(4, 1)


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


def test_an_engine_ends_whose_tasks_have_had_room_elsewhere_for_as_long():
    policy = Autoscaler(LIMITS)
    light = dict.fromkeys(range(3), EngineUse(4, 1))
    assert policy.plan(0.0, [], light) == ScalePlan()
    assert policy.plan(10.0, [], light).stop == (2,)
    assert policy.plan(11.0, [], {**light, 2: EngineUse(4, 1, is_ready=False)}) == ScalePlan(), (
        "it is leaving"
    )
    left = {0: EngineUse(4, 1), 1: EngineUse(4, 2)}
    assert policy.plan(12.0, [], left) == ScalePlan()
    assert policy.plan(20.9, [], left) == ScalePlan(), "each has its own time"
    assert policy.plan(21.0, [], left).stop == (0,)


def test_an_engine_stays_if_the_others_would_be_full():
    policy = Autoscaler(LIMITS)
    full = {0: EngineUse(2, 1), 1: EngineUse(2, 1)}
    assert [policy.plan(now, [], full) for now in (0.0, 99.0)] == [ScalePlan()] * 2


@given(
    st.lists(
        st.tuples(
            st.floats(0, 20),
            st.sets(st.integers(0, 9)),
            st.dictionaries(st.integers(0, 4), st.sampled_from([BUSY, FREE, LIGHT, STARTING])),
        )
    )
)
def test_engines_end_only_if_there_is_room_for_their_tasks_and_the_fewest_stay(events):
    policy, now = Autoscaler(LIMITS), 0.0
    for passed, waiting, engines in events:
        now += passed
        plan = policy.plan(now, waiting, engines)
        stay = [use for index, use in engines.items() if index not in plan.stop and use.is_ready]
        moved = sum(engines[index].n_tasks for index in plan.stop)
        assert not moved or moved < sum(use.n_slots - use.n_tasks for use in stay)
        assert all(engines[index].is_ready for index in plan.stop)
        assert len(engines) - len(plan.stop) >= min(LIMITS.n_min, len(engines))
        assert not (plan.stop and plan.n_start)


def scaling_of(fleet: Fleet, n_min: int) -> Scaling:
    limits = ScaleLimits(n_min, 1.0, 10.0)
    return Scaling(fleet.engines, limits, fleet.lifecycle, fleet._drain.clear)


async def shrinking(fleet: Fleet) -> Answer:
    """A task in each of two engines, of which the second one is not needed any more; returns its task."""
    scaling = scaling_of(fleet, 1)
    first, second = Answer(fleet, [1], id_slot=0), Answer(fleet, [2], id_slot=4)
    for answer in (first, second):
        answer.admit()
        answer.say(5)
    scaling.look(0.0)
    scaling.look(10.0)
    return second


async def test_an_engine_that_is_not_needed_hands_its_tasks_over_and_ends(monkeypatch):
    monkeypatch.setattr("corral.fleet.autoscale.LOOK_S", 3600.0)
    async with started(2, n_each=4, scale=ScaleLimits(2, 1.0, 10.0)) as fleet:
        answer = await shrinking(fleet)
        await commands_of(Process.all[1], Stop)
        (moved,) = [each for each in Process.all[0].commands if isinstance(each, Task) and each.resume]
        assert (moved.id, moved.resume, moved.n_past) == (answer.task.id, [5], N_GIVEN)
        Process.all[1].die(0)
        await wait_until_async(lambda: fleet.engines[1].state is EngineState.SLEEPING)


async def test_an_engine_stays_whose_task_cannot_take_its_state_along(monkeypatch):
    monkeypatch.setattr("corral.fleet.autoscale.LOOK_S", 3600.0)
    async with started(2, n_each=4, scale=ScaleLimits(2, 1.0, 10.0)) as fleet:
        Process.all[1].gives_states = False
        answer = await shrinking(fleet)
        asked = (await commands_of(Process.all[1], HandOver))[-1]
        assert fleet.engines[1].is_draining
        Process.all[1].say(Failed(asked.id, Conflict("no").info()))
        await wait_until_async(lambda: not fleet.engines[1].is_draining)
        assert answer.processes == [1]
        assert not Process.all[1].is_told_to_stop


async def test_a_fleet_grows_while_tasks_wait_and_shrinks_when_idle(monkeypatch):
    monkeypatch.setattr("corral.fleet.autoscale.LOOK_S", 3600.0)
    async with started(2, n_started=1, scale=ScaleLimits(1, 1.0, 10.0)) as fleet:
        scaling = scaling_of(fleet, 1)
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
    monkeypatch.setattr("corral.fleet.autoscale.LOOK_S", 3600.0)
    async with started(2, n_started=1, scale=ScaleLimits(0, 1.0, 10.0)) as fleet:
        scaling = scaling_of(fleet, 0)
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
