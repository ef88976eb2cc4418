"""Several engines that come and go as the test wants them to: every task ends, and where it should."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from corral.core.errors import Conflict, CorralError, Unavailable
from corral.core.modifier import AdapterInfo
from corral.core.result import (
    AdapterLoaded,
    Decodes,
    Failed,
    HandedOver,
    LoadFailed,
    Placed,
    Queue,
    SlotReport,
    Tokens,
)
from corral.core.settings import EngineSettings
from corral.core.task import Cancel, FreeAdapter, HandOver, LoadAdapter, SlotAction, Stop, Verb
from corral.fleet.fleet import Fleet
from corral.link.engine_state import EngineState
from corral.link.idle import Idle
from corral.link.pending_task import MAX_CRASHES
from corral.telemetry.dispatcher import Telemetry
from corral.telemetry.prometheus import engine_metrics
from tests.tools.wait import wait_until_async
from tests.unit.fake_fleet import LONG, N_EACH, TIMINGS, Answer, be_ready, commands_of, started
from tests.unit.fake_fleet import quick as quick
from tests.unit.fake_process import N_GIVEN, Process


async def test_slots_are_numbered_through_all_engines():
    telemetry = Telemetry()
    async with started(telemetry=telemetry) as fleet:
        assert fleet.info.n_slots == 3 * N_EACH == telemetry.queue.n_slots
        assert [view.id for view in telemetry.slots.views] == list(range(6))
        answer = Answer(fleet, id_slot=3)
        assert answer.processes == [1]
        assert answer.sent.params.id_slot == 1
        answer.admit(1)
        assert telemetry.slots.views[3].is_processing
        answer.end()
        results = await answer.results
        assert results[0].id_slot == 3


async def test_metrics_name_the_engine_that_is_lost_and_where_each_runs():
    async with started(2, "aa") as fleet:
        Process.all[1].say(Placed("node-1", "10.0.0.2", 77))
        answer = Answer(fleet, id_slot=0)
        answer.admit(0)
        answer.say(1, 2, 3)
        values = metrics_of(fleet)
        assert values["corral_engine_ready", "0", ""] == values["corral_engine_ready", "1", "node-1"] == 1
        assert values["corral_engine_slots", "0", "busy"] == 1
        assert values["corral_engine_tokens_total", "0"] == 3
        assert fleet.engines[1].pid == 77
        Process.all[1].die()
        await be_loading(2)
        values = metrics_of(fleet)
        assert values["corral_engine_ready", "1", ""] == 0
        assert values["corral_engine_lost_total", "1"] == 1
        assert values["corral_engine_lost_total", "0"] == 0


def metrics_of(fleet: Fleet) -> dict[tuple[str, ...], float]:
    families = engine_metrics(fleet.engines)
    samples = [sample for family in families for sample in family.samples]
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


async def be_loading(n: int) -> None:
    await wait_until_async(lambda: len(Process.all) > n and hasattr(Process.all[n], "settings"))


async def test_an_action_goes_to_the_engine_of_its_slot():
    async with started() as fleet:
        acting = asyncio.create_task(fleet.act(SlotAction(verb=Verb.ERASE, slot=5)))
        await wait_until_async(lambda: Process.all[2].commands)
        (action,) = Process.all[2].commands
        assert action.slot == 1
        Process.all[2].say(SlotReport(task_id=action.id, id_slot=1, n_tokens=7))
        assert (await acting).id_slot == 5


async def test_a_slot_is_copied_to_another_engine_through_a_file():
    async with started() as fleet:
        copying = asyncio.create_task(fleet.act(SlotAction(verb=Verb.FORK, slot=4, source=1, tenant=b"t")))
        for n, verb, slot in ((0, Verb.SAVE, 1), (2, Verb.RESTORE, 0)):
            (action,) = await commands_of(Process.all[n])
            assert (action.verb, action.slot, action.source, action.tenant) == (verb, slot, -1, b"t")
            assert action.fd == -1 or action.fd > 2
            Process.all[n].say(SlotReport(task_id=action.id, id_slot=slot, n_tokens=7))
        assert (await copying).id_slot == 4


async def test_answers_to_one_prompt_share_an_engine_and_others_do_not():
    async with started() as fleet:
        first, second = Answer(fleet, tenant=b"x"), Answer(fleet, tenant=b"x")
        other = Answer(fleet, list(range(700, 1400)))
        assert first.processes == second.processes
        assert other.processes != first.processes
        for answer in (first, second, other):
            answer.admit()
            answer.end()
        assert Answer(fleet, [*LONG, 1, 2, 3], tenant=b"x").processes == first.processes
        assert Answer(fleet, tenant=b"y").processes != first.processes, "it may not reuse it"


async def test_a_conversation_stays_although_it_has_too_few_tokens_for_a_block():
    async with started() as fleet:
        Answer(fleet, list(range(900, 1000))).admit()
        first = Answer(fleet, [1], prompt_cache_key="mine")
        first.admit()
        first.end()
        assert first.processes == [1]
        assert Answer(fleet, [2], prompt_cache_key="mine").processes == [1]


async def test_a_lost_engines_tasks_continue_at_once_on_another():
    telemetry = Telemetry()
    async with started(telemetry=telemetry) as fleet:
        answer = Answer(fleet)
        answer.admit()
        answer.say(5)
        answer.say(6)
        lost = answer.process
        assert telemetry.queue.n_running == 1
        lost.die()
        await wait_until_async(lambda: len(answer.processes) == 2)
        assert answer.sent.resume == [5, 6]
        assert fleet.state is EngineState.READY
        assert (telemetry.queue.n_running, telemetry.queue.n_waiting) == (0, 1)
        assert not any(view.is_processing for view in telemetry.slots.views)
        lost.say(Tokens(task_id=answer.task.id, tokens=[99], text="", timings=TIMINGS))
        answer.admit()
        answer.say(7)
        answer.end()
        assert await answer.is_done() == [5, 6, 7]
        await be_ready(3)
        assert fleet.n_restarts == 1


async def test_a_task_continues_only_where_the_same_is_computed():
    async with started(fingerprints="aba") as fleet:
        begun, fresh = Answer(fleet, id_slot=2), Answer(fleet, LONG[::-1], id_slot=3)
        for i, answer in enumerate((begun, fresh)):
            answer.admit(i)
        begun.say(1)
        Process.all[1].die()
        await wait_until_async(lambda: len(Process.all) == 4)
        assert begun.processes == fresh.processes == [1], "one differs, the other one wants its slot"
        await be_ready(3, "b")
        assert begun.processes == fresh.processes == [1, 3]


async def test_if_all_engines_are_lost_the_first_one_that_is_back_gets_the_tasks():
    async with started() as fleet:
        answers = [Answer(fleet, [i] * 100) for i in range(3)]
        for answer in answers:
            answer.admit()
        for process in Process.all[:3]:
            process.die()
        await wait_until_async(lambda: len(Process.all) == 6)
        assert fleet.state is EngineState.RESTARTING
        await be_ready(4)
        assert all(answer.processes[-1] == 4 for answer in answers)


async def test_a_task_that_takes_too_many_engines_down_fails_and_leaves_one_alone():
    async with started() as fleet:
        bad, good = Answer(fleet), Answer(fleet, [7] * 100, id_slot=4)
        good.admit()
        good.say(1)
        for i in range(MAX_CRASHES):
            assert len(bad.processes) == i + 1
            bad.admit()
            bad.process.die()
            await be_ready(3 + i)
        with pytest.raises(CorralError):
            await bad.results
        good.end()
        assert await good.is_done() == [1]
        assert good.processes == [2], "the second engine that was lost got the task back"


async def test_a_waiting_task_moves_to_a_free_slot():
    async with started(2) as fleet:
        answers = [Answer(fleet, [i] * 100) for i in range(4)]
        for answer in answers:
            answer.admit()
        late = Answer(fleet, [9] * 100)
        (n,) = late.processes
        Process.all[n].say(Queue([late.task.id]))
        for answer in answers:
            if answer.processes != [n]:
                answer.end()
        assert late.processes == [0, 1]
        assert Cancel(late.task.id) in Process.all[n].commands
        assert sum(len(process.task_ids) for process in Process.all) == 6


async def test_a_drained_engine_is_replaced_without_an_error():
    async with started(2) as fleet:
        answer = Answer(fleet, id_slot=0)
        answer.admit()
        answer.say(1)
        draining = asyncio.create_task(fleet.drain(0))
        await wait_until_async(lambda: Process.all[0].is_told_to_stop)
        assert answer.processes == [0, 1]
        assert Answer(fleet, [3]).processes == [1]
        Process.all[0].die(0)
        await be_ready(2)
        await draining
        assert fleet.n_restarts == 0
        answer.end()
        assert await answer.is_done() == [1]


async def test_a_stream_stays_in_a_drained_engine_until_another_has_a_free_slot():
    async with started(2) as fleet:
        others = [Answer(fleet, [i], id_slot=N_EACH + i) for i in range(N_EACH)]
        for i, other in enumerate(others):
            other.admit(i)
        answer = Answer(fleet, id_slot=0)
        answer.admit()
        answer.say(1)
        draining = asyncio.create_task(fleet.drain(0))
        await wait_until_async(lambda: fleet.engines[0].is_draining)
        answer.say(2)
        assert answer.processes == [0]
        others[0].end()
        await wait_until_async(lambda: answer.processes == [0, 1])
        assert answer.sent.resume == [1, 2]
        await commands_of(Process.all[0], Stop)
        Process.all[0].die(0)
        await be_ready(2)
        await draining
        answer.end()
        assert await answer.is_done() == [1, 2]


@contextlib.asynccontextmanager
async def moving(fleet: Fleet, answer: Answer):
    """A task that has begun in the first of two engines, which is being drained and was asked for its
    state."""
    Process.all[0].gives_states = False
    answer.admit()
    answer.say(1)
    draining = asyncio.create_task(fleet.drain(0))
    asked = (await commands_of(Process.all[0], HandOver))[-1]
    assert answer.processes == [0]
    yield asked
    await wait_until_async(lambda: Process.all[0].is_told_to_stop)
    Process.all[0].die(0)
    await be_ready(2)
    await draining
    answer.end()
    await answer.is_done()


async def test_a_running_task_moves_with_its_state():
    async with started(2) as fleet:
        answer = Answer(fleet, id_slot=0)
        async with moving(fleet, answer) as asked:
            answer.say(2)
            Process.all[0].say(HandedOver(asked.id, 640))
            await wait_until_async(lambda: answer.processes == [0, 1])
            assert (answer.sent.resume, answer.sent.n_past) == ([1, 2], 640)
            assert answer.sent.fd >= 0


async def test_a_task_whose_state_cannot_be_given_moves_without():
    async with started(2) as fleet:
        answer = Answer(fleet, id_slot=0)
        async with moving(fleet, answer) as asked:
            Process.all[0].say(Failed(asked.id, Conflict("no").info()))
            await wait_until_async(lambda: answer.processes == [0, 1])
            assert (answer.sent.resume, answer.sent.n_past, answer.sent.fd) == ([1], 0, -1)


async def test_a_slot_is_kept_for_a_task_that_is_on_its_way():
    async with started(2) as fleet:
        answer = Answer(fleet, id_slot=0)
        async with moving(fleet, answer) as asked:
            assert fleet.engines[1].load_now.n_free == N_EACH - 1
            Process.all[0].say(HandedOver(asked.id, 640))
            await wait_until_async(lambda: answer.processes == [0, 1])
            assert fleet.engines[1].load_now.n_free == N_EACH - 1


async def test_a_task_that_ends_while_its_state_is_asked_for_does_not_move():
    async with started(2) as fleet:
        answer = Answer(fleet, id_slot=0)
        answer.admit()
        answer.say(1)
        Process.all[0].gives_states = False
        draining = asyncio.create_task(fleet.drain(0))
        asked = (await commands_of(Process.all[0], HandOver))[-1]
        answer.end()
        Process.all[0].say(Failed(asked.id, Conflict("it has ended").info()))
        await wait_until_async(lambda: Process.all[0].is_told_to_stop)
        assert answer.processes == [0]
        Process.all[0].die(0)
        await be_ready(2)
        await draining


async def test_a_task_whose_heir_is_lost_on_the_way_stays():
    async with started(2) as fleet:
        answer = Answer(fleet, id_slot=0)
        answer.admit()
        answer.say(1)
        Process.all[0].gives_states = False
        draining = asyncio.create_task(fleet.drain(0))
        asked = (await commands_of(Process.all[0], HandOver))[-1]
        Process.all[1].die()
        await wait_until_async(lambda: len(Process.all) == 3)
        Process.all[0].say(HandedOver(asked.id, 640))
        await wait_until_async(lambda: Process.all[0].task_ids == [answer.task.id] * 2)
        assert answer.sent.resume == [1]
        answer.end()
        await answer.is_done()
        await wait_until_async(lambda: Process.all[0].is_told_to_stop)
        Process.all[0].die(0)
        await be_ready(3)
        await draining


async def running(fleet: Fleet, *slots: int) -> list[Answer]:
    """Tasks with a token each, in these slots."""
    answers = [Answer(fleet, [slot] * 100, id_slot=slot) for slot in slots]
    for answer in answers:
        answer.admit(answer.task.params.id_slot)
        answer.say(1)
    return answers


async def test_a_new_engine_takes_running_tasks_of_the_fullest_one():
    async with started(2, n_each=4) as fleet:
        Process.all[1].die()
        answers = await running(fleet, 0, 1, 2)
        await be_ready(2, "a", 4)
        await wait_until_async(lambda: Process.all[2].task_ids)
        assert [answer.processes for answer in answers] == [[0, 2], [0], [0]]
        assert (answers[0].sent.resume, answers[0].sent.n_past) == ([1], N_GIVEN)
        await asyncio.sleep(0)
        assert len(Process.all[2].task_ids) == 1, "the others have only one more now"


async def test_a_running_task_without_a_state_stays_when_an_engine_comes():
    async with started(2, n_each=4) as fleet:
        Process.all[1].die()
        answers = await running(fleet, 0, 1, 2)
        Process.all[0].gives_states = False
        await be_ready(2, "a", 4)
        for n in (1, 2, 3):
            await be_asked(n)
            Process.all[0].say(Failed(hand_overs()[-1].id, Conflict("no").info()))
        await wait_until_async(lambda: fleet.engines[1].load_now.n_running == 0)
        assert [answer.processes for answer in answers] == [[0]] * 3


def hand_overs() -> list[HandOver]:
    return [command for command in Process.all[0].commands if isinstance(command, HandOver)]


async def be_asked(n: int) -> None:
    """Wait until the first engine was asked for so many states."""
    await wait_until_async(lambda: len(hand_overs()) == n)


async def test_a_drain_waits_for_a_task_that_another_move_has_begun():
    async with started(3, n_each=4) as fleet:
        Process.all[2].die()
        answers = await running(fleet, 0, 1, 2)
        Process.all[0].gives_states = False
        await be_ready(3, "a", 4)
        await wait_until_async(hand_overs)
        draining = asyncio.create_task(fleet.drain(0))
        for n in (2, 3):
            await be_asked(n)
            Process.all[0].say(HandedOver(hand_overs()[-1].id, 7))
        assert len({each.task_id for each in hand_overs()}) == 3
        Process.all[0].say(HandedOver(hand_overs()[0].id, 7))
        await commands_of(Process.all[0], Stop)
        assert all(len(answer.processes) == 2 for answer in answers)
        Process.all[0].die(0)
        await be_ready(4, "a", 4)
        await draining


async def test_what_asks_for_a_slot_of_a_drained_engine_gets_it_in_the_next_one():
    async with started(2) as fleet:
        draining = asyncio.create_task(fleet.drain(0))
        await wait_until_async(lambda: Process.all[0].is_told_to_stop)
        pinned = Answer(fleet, id_slot=1)
        assert pinned.processes == []
        Process.all[0].die(0)
        await be_ready(2)
        await draining
        assert pinned.processes == [2]


async def test_engines_are_drained_one_after_the_other():
    async with started(2) as fleet:
        draining = [asyncio.create_task(fleet.drain(i)) for i in range(2)]
        for i in range(2):
            await commands_of(Process.all[i], Stop)
            assert not any(each.is_told_to_stop for each in Process.all[i + 1 :])
            Process.all[i].die(0)
            await be_ready(2 + i)
            await draining[i]
        Process.all[3].die()
        await wait_until_async(lambda: fleet.engines[1].state is not EngineState.READY)
        for i in range(2):
            with pytest.raises(Conflict):
                await fleet.drain(i)


async def test_a_shutdown_does_not_wait_for_a_drained_engine():
    async with started(2) as fleet:
        draining = asyncio.create_task(fleet.drain(0))
        await commands_of(Process.all[0], Stop)
    with pytest.raises(Unavailable):
        await draining


async def test_engines_are_unloaded_when_none_has_work_and_wake_together(monkeypatch):
    looks, check = [], Idle.check
    monkeypatch.setattr(Idle, "check", lambda *values: looks.append(values) or check(*values))
    async with started(2) as fleet:
        answer = Answer(fleet)
        fleet.keep_idle(0.0)
        looks.clear()
        await wait_until_async(lambda: len(looks) > 10)
        assert fleet.state is EngineState.READY
        assert not any(process.is_told_to_stop for process in Process.all), "one of them has work"
        answer.end()
        for process in Process.all[:2]:
            await commands_of(process, Stop)
            process.die(0)
        await wait_until_async(lambda: fleet.state is EngineState.SLEEPING)
        answer = Answer(fleet)
        await be_ready(2)
        await be_ready(3)
        assert len(answer.processes) == 1


async def test_an_adapter_is_loaded_into_all_engines_and_freed_when_none_uses_it():
    async with started() as fleet:
        loading = asyncio.create_task(fleet.load_adapter("/a"))
        for process in Process.all[:3]:
            (command,) = await commands_of(process)
            assert isinstance(command, LoadAdapter)
            process.say(AdapterLoaded(command.id, AdapterInfo(0, "/a")))
        assert (await loading).id == 0
        answer = Answer(fleet, lora=((0, 1.0),))
        fleet.free_adapter(0)
        assert not any(FreeAdapter(0) in process.commands for process in Process.all)
        answer.end()
        assert all(FreeAdapter(0) in process.commands for process in Process.all)


async def test_an_engine_that_lost_an_adapter_is_replaced_by_one_that_has_it():
    async with started(2) as fleet:
        loading = asyncio.create_task(fleet.load_adapter("/a"))
        await wait_until_async(lambda: Process.all[0].commands)
        Process.all[0].say(AdapterLoaded(Process.all[0].commands[0].id, AdapterInfo(0, "/a")))
        await wait_until_async(lambda: Process.all[1].commands)
        Process.all[1].die()
        assert (await loading).id == 0
        await wait_until_async(
            lambda: any(p.settings.lora for p in Process.all[2:] if hasattr(p, "settings"))
        )


async def test_what_engines_have_evaluated_is_summed():
    telemetry = Telemetry()
    async with started(2, telemetry=telemetry):
        Process.all[0].say(Decodes(5, 9))
        Process.all[1].say(Decodes(2, 3))
        assert (telemetry.counters.n_decodes, telemetry.counters.n_busy) == (7, 12)
        Process.all[0].die()
        replacement = await be_ready(2)
        replacement.say(Decodes(1, 1))
        assert (telemetry.counters.n_decodes, telemetry.counters.n_busy) == (8, 13)


async def test_a_start_fails_if_one_engine_cannot_load():
    settings = EngineSettings(model="fake.gguf", n_parallel=N_EACH)
    fleet = Fleet(settings, 2, 10.0, Telemetry())
    starting = asyncio.create_task(fleet.lifecycle.start())
    await be_ready(0)
    await wait_until_async(lambda: len(Process.all) > 1)
    Process.all[1].say(LoadFailed("no memory"))
    Process.all[1].die(1)
    with pytest.raises(CorralError, match="no memory"):
        await starting
    Process.all[0].die()
    await fleet.lifecycle.close()


async def test_nothing_waits_for_engines_that_are_all_down():
    async with started(2, n_failures=0) as fleet:
        for process in Process.all[:2]:
            process.die()
        await wait_until_async(lambda: fleet.state is EngineState.FAILED)
        assert fleet.down_because
        with pytest.raises(Unavailable):
            Answer(fleet)


async def test_a_shutdown_ends_every_task():
    async with started() as fleet:
        answers = [Answer(fleet, [i] * 100) for i in range(8)]
        fleet.lifecycle.dismiss()
        for answer in answers:
            with pytest.raises(Unavailable):
                await answer.results
