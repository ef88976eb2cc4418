"""States move between engines if that is sooner than evaluating."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.errors import Conflict
from corral.core.result import (
    Admitted,
    CacheReport,
    Failed,
    SlotReport,
    Tier,
)
from corral.core.task import Busy, SlotAction, Verb
from corral.link.fleet import Fleet
from corral.link.state_copy import CopyCost, HeldPrefix, plan_copy
from corral.telemetry.dispatcher import Telemetry
from tests.tools.wait import let_tasks_run, wait_until_async
from tests.unit.fake_fleet import LONG, Answer, commands_of, started
from tests.unit.fake_fleet import quick as quick
from tests.unit.fake_process import Process


async def two_engines_one_full(fleet: Fleet) -> list[Answer]:
    """The first engine has `LONG` in a slot, and no slot free."""
    answers = [Answer(fleet, LONG, id_slot=0), Answer(fleet, [1], id_slot=1)]
    for slot, answer in enumerate(answers):
        answer.admit(slot)
        answer.say(5)
    return answers


async def test_a_state_is_copied_to_the_engine_that_is_free():
    telemetry = Telemetry()
    async with started(2, telemetry=telemetry) as fleet:
        await two_engines_one_full(fleet)
        answer = Answer(fleet, [*LONG, 7, 8])
        assert answer.processes == []
        save = (await commands_of(Process.all[0], SlotAction))[-1]
        assert (save.verb, save.slot, save.busy) == (Verb.SAVE, 0, Busy.IGNORE)
        Process.all[0].say(SlotReport(task_id=save.id, id_slot=0, n_tokens=640))
        restore = (await commands_of(Process.all[1], SlotAction))[-1]
        assert (restore.verb, restore.slot, restore.is_ours) == (Verb.RESTORE, 0, True)
        assert answer.processes == []
        Process.all[1].say(SlotReport(task_id=restore.id, id_slot=0, n_tokens=640))
        await wait_until_async(lambda: answer.processes == [1])
        assert (telemetry.copies.outcomes["copied"], telemetry.copies.n_tokens) == (1, 640)
        report = CacheReport(tier=Tier.LIVE, id_slot=0, n_cached=640, n_common=640)
        answer.process.say(Admitted(answer.task.id, 0, 640, report))
        answer.end()
        assert (await answer.results)[0].report.copied_from == 0


@pytest.mark.parametrize("fault", ["refused", "lost", "late"])
async def test_a_task_is_sent_without_its_copy_if_that_fails(fault):
    telemetry = Telemetry()
    async with started(2, telemetry=telemetry) as fleet:
        await two_engines_one_full(fleet)
        answer = Answer(fleet, [*LONG, 7, 8])
        save = (await commands_of(Process.all[0], SlotAction))[-1]
        if fault == "refused":
            Process.all[0].say(Failed(save.id, Conflict("no").info()))
        elif fault == "lost":
            Process.all[0].die()
        await wait_until_async(lambda: answer.processes == [1])
        answer.end()
        await answer.is_done()
        assert telemetry.copies.outcomes == {"copied": 0, "failed": 1, "declined": 0}


async def test_nothing_is_copied_where_that_takes_as_long_as_evaluating():
    telemetry = Telemetry()
    async with started(2, telemetry=telemetry) as fleet:
        await two_engines_one_full(fleet)
        fleet.cost_of("a").token_ms = 0.1
        answer = Answer(fleet, [*LONG, 7, 8])
        assert answer.processes == [1]
        assert telemetry.copies.outcomes == {"copied": 0, "failed": 0, "declined": 1}


async def test_tasks_with_the_same_prefix_wait_for_one_copy():
    async with started(2) as fleet:
        await two_engines_one_full(fleet)
        answers = [Answer(fleet, [*LONG, i]) for i in (7, 8)]
        save = (await commands_of(Process.all[0], SlotAction))[-1]
        Process.all[0].say(SlotReport(task_id=save.id, id_slot=0, n_tokens=640))
        restore = (await commands_of(Process.all[1], SlotAction))[-1]
        assert [answer.processes for answer in answers] == [[], []]
        Process.all[1].say(SlotReport(task_id=restore.id, id_slot=0, n_tokens=640))
        await wait_until_async(lambda: [answer.processes for answer in answers] == [[1], [1]])
        for slot, answer in enumerate(answers):
            report = CacheReport(tier=Tier.LIVE, id_slot=0, n_cached=640, n_common=640)
            answer.process.say(Admitted(answer.task.id, slot, 640, report))
            answer.end()
            assert (await answer.results)[0].report.copied_from == 0


@given(
    st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 5000), st.floats(0.01, 10), st.floats(0.01, 10)
)
def test_a_copy_never_takes_longer_than_evaluating(n_here, n_tokens, n_more, evaluate_ms, copy_ms):
    held = HeldPrefix(0, n_tokens, n_tokens + n_more)
    if plan_copy(n_here, held, evaluate_ms, copy_ms):
        assert held.n_saved * copy_ms < (n_tokens - n_here) * evaluate_ms


def test_copies_are_tried_again_after_many_decisions_against_them():
    cost, held = CopyCost(), HeldPrefix(0, 1000, 1000)
    for _ in range(10):
        cost.observe(1000, 1000.0)
    assert not plan_copy(0, held, 1.0, cost.token_ms)
    for _ in range(100):
        cost.decline()
    assert plan_copy(0, held, 1.0, cost.token_ms)


async def test_a_task_that_is_cancelled_while_its_state_is_copied_is_not_sent():
    async with started(2) as fleet:
        await two_engines_one_full(fleet)
        answer = Answer(fleet, [*LONG, 7, 8])
        save = (await commands_of(Process.all[0], SlotAction))[-1]
        answer.results.cancel()
        await asyncio.wait({answer.results})
        answer.stream.close()
        Process.all[0].say(Failed(save.id, Conflict("no").info()))
        await let_tasks_run()
        assert answer.processes == []
