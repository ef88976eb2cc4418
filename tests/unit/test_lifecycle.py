"""Engines that come, go and sleep, as the test wants them to: no order is lost, and none blamed wrongly."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os

import pytest

from corral.core.errors import Conflict, CorralError, Unavailable
from corral.core.result import (
    Admitted,
    Done,
    LoadFailed,
    Loading,
    Opened,
    SlotReport,
    Stage,
    StopType,
    Timings,
)
from corral.core.settings import EngineSettings
from corral.core.task import Cancel, SlotAction, Verb
from corral.link import lifecycle, restart
from corral.link.client import EngineClient
from corral.link.engine_state import EngineState
from corral.link.observer import EngineObserver
from corral.link.pending_task import MAX_CRASHES
from corral.link.stream import TaskStream
from corral.telemetry.dispatcher import Telemetry
from tests.tools.wait import wait_until_async
from tests.unit.fake_process import NullObserver, Process, submit_task

TIMINGS = Timings(cache_n=0, prompt_n=1, prompt_ms=1.0, predicted_n=1, predicted_ms=1.0)
GENEROUS_S = 30


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(lifecycle, "EngineProcess", Process)
    monkeypatch.setattr(lifecycle, "LOOK_S", 0.005)
    monkeypatch.setattr(restart, "_FIRST_S", 0.0)
    monkeypatch.setattr(Process, "all", [])
    monkeypatch.setattr(Process, "spawn_errors", [])


async def nth(n: int) -> Process:
    await wait_until_async(lambda: len(Process.all) >= n)
    return Process.all[n - 1]


@contextlib.asynccontextmanager
async def started(observer: EngineObserver | None = None, **options):
    one = EngineClient(EngineSettings(model="fake.gguf"), 10.0, observer or NullObserver(), **options)
    starting = asyncio.create_task(one.lifecycle.start())
    (await nth(1)).be_ready()
    await starting
    try:
        yield one
    finally:
        for process in Process.all:
            process.die()
        await one.lifecycle.close()


def submit(one: EngineClient) -> tuple[int, asyncio.Task]:
    task, stream = submit_task(one, [1, 2])
    return task.id, asyncio.create_task(collect(stream))


async def collect(stream: TaskStream) -> list:
    return [result async for result in stream]


def admitted(id: int) -> Admitted:
    return Admitted(id, 0, 0)


def done(id: int) -> Done:
    return Done(
        task_id=id, stop_type=StopType.EOS, truncated=False, has_new_line=False, n_past=1, timings=TIMINGS
    )


@pytest.mark.parametrize("error", [ValueError("odd"), RuntimeError("can't start new thread"), KeyError()])
async def test_an_unexpected_error_does_not_end_the_restarts(error, caplog):
    async with started() as one:
        Process.spawn_errors[:] = [error] * 2
        Process.all[0].die()
        (await nth(4)).be_ready()
        await wait_until_async(lambda: one.state is EngineState.READY)
        assert one.n_restarts == 3
    assert [record.message for record in caplog.records if record.exc_info] == [
        "unexpected error in the engine's lifecycle"
    ] * 2


async def test_too_many_failures_are_the_end_and_everybody_hears_the_last_reason(caplog):
    lost: list[str] = []
    async with started(n_failures=2, on_restart=lost.append) as one:
        _, waiting = submit(one)
        Process.all[0].say(admitted(0))
        Process.all[0].die(-11)
        for i, reason in enumerate(["no file", "no memory", "model 'x.gguf' cannot be opened"], 2):
            process = await nth(i)
            assert one.state is EngineState.RESTARTING
            assert lost[-1].startswith(f"{one.down_because}; ")
            process.say(LoadFailed(reason))
            process.die(1)
        with pytest.raises(Unavailable, match=r"x\.gguf"):
            await waiting
        assert one.state is EngineState.FAILED
        assert one.down_because == "model 'x.gguf' cannot be opened"
        with pytest.raises(Unavailable, match=r"x\.gguf"):
            submit_task(one, [1])
        with pytest.raises(Unavailable, match=r"x\.gguf"):
            await one.act(SlotAction(verb=Verb.ERASE, slot=0))
        assert lost == [
            "the engine process ended with code -11 (SIGSEGV); restart 1",
            "no file; restart 2",
            "no memory; restart 3",
        ]
        assert one.n_restarts == 3
        assert "the engine is down: model 'x.gguf' cannot be opened" in caplog.text
        await asyncio.sleep(0.05)
        assert len(Process.all) == 4


async def test_an_engine_that_a_cluster_cannot_give_is_waited_for(monkeypatch):
    monkeypatch.setattr(Process, "is_remote", True)
    async with started(n_failures=0) as one:
        _, waiting = submit(one)
        Process.all[0].die(1)  # without a word, as when the network is gone
        for i in range(2, 9):
            (await nth(i)).say(LoadFailed("no cluster answers", may_pass=True))
            Process.all[-1].die(1)
            await nth(i + 1)
            assert (one.state, one.down_because) == (EngineState.RESTARTING, "no cluster answers")
        Process.all[-1].be_ready()
        assert one.state is EngineState.READY
        waiting.cancel()


async def test_a_model_that_a_node_cannot_load_is_a_failure(monkeypatch):
    monkeypatch.setattr(Process, "is_remote", True)
    async with started(n_failures=0) as one:
        Process.all[0].die(1)
        (await nth(2)).say(LoadFailed("no such file"), LoadFailed("the process ended with code 1"))
        Process.all[1].die(1)
        await wait_until_async(lambda: one.state is EngineState.FAILED)
        assert one.down_because == "no such file"


async def test_a_failed_engine_is_tried_again_now_and_then(monkeypatch):
    monkeypatch.setattr(lifecycle, "RETRY_S", 0.01)
    async with started(n_failures=0) as one:
        Process.all[0].die()
        for i in (2, 3):
            (await nth(i)).say(LoadFailed("no such file"))
            Process.all[-1].die(1)
            await nth(i + 1)
            assert (one.state, one.down_because) == (EngineState.FAILED, "no such file")
            with pytest.raises(Unavailable, match="no such file"):
                submit_task(one, [1])
        (await nth(4)).be_ready()
        assert (one.state, one.down_because) == (EngineState.READY, "")
        submit_task(one, [1])


async def test_a_failed_engine_is_revived():
    async with started(n_failures=0) as one:
        await one.lifecycle.revive()  # it has not failed
        Process.all[0].die()
        await wait_until_async(lambda: one.state is EngineState.FAILED)
        reviving = asyncio.create_task(one.lifecycle.revive())
        (await nth(2)).say(LoadFailed("no such file"))
        Process.all[-1].die(1)
        with pytest.raises(Conflict, match="no such file"):
            await reviving
        reviving = asyncio.create_task(one.lifecycle.revive())
        (await nth(3)).be_ready()
        await reviving
        assert one.state is EngineState.READY


async def test_the_first_engine_of_all_is_not_tried_again():
    one = EngineClient(EngineSettings(model="fake.gguf"), 10.0, NullObserver())
    starting = asyncio.create_task(one.lifecycle.start())
    (await nth(1)).say(LoadFailed("no such file"))
    Process.all[0].die(1)
    with pytest.raises(CorralError, match="no such file"):
        await starting
    await one.lifecycle.close()
    assert len(Process.all) == 1


async def test_a_task_that_keeps_killing_is_given_up_and_the_engine_is_not():
    async with started(n_failures=0) as one:
        for round in range(4):
            id, killer = submit(one)
            for i in range(MAX_CRASHES):
                process = Process.all[-1]
                assert process.task_ids == [id]
                process.say(admitted(id))
                process.die()
                (await nth(MAX_CRASHES * round + i + 2)).be_ready()
            with pytest.raises(CorralError, match="3 times"):
                await killer
        assert one.state is EngineState.READY


async def test_so_is_one_that_kills_before_it_is_admitted():
    async with started(n_failures=0) as one:
        _, killer = submit(one)
        for i in range(MAX_CRASHES):
            Process.all[-1].die()
            (await nth(i + 2)).be_ready()
        with pytest.raises(CorralError, match="3 times"):
            await killer


async def test_engines_that_fail_while_they_load_are_not_the_fault_of_who_waits():
    async with started(n_failures=50) as one:
        id, waiting = submit(one)
        Process.all[0].say(admitted(id))
        Process.all[0].die()
        for i in range(2, 10):
            (await nth(i)).die()
        (await nth(10)).be_ready()
        Process.all[-1].say(admitted(id), done(id))
        assert isinstance((await waiting)[-1], Done)


async def test_an_action_that_kills_does_not_use_up_the_limit_either():
    async with started(n_failures=0) as one:
        for i in range(3):
            acting = asyncio.create_task(one.act(SlotAction(verb=Verb.RESTORE, slot=0)))
            await asyncio.sleep(0)
            Process.all[-1].die()
            with pytest.raises(Unavailable):
                await acting
            (await nth(i + 2)).be_ready()


async def test_only_this_engine_counts_not_what_the_last_one_has_completed():
    async with started(n_failures=0) as one:
        id, good = submit(one)
        Process.all[0].say(admitted(id), done(id))
        await good
        Process.all[0].die()
        (await nth(2)).die()
        await wait_until_async(lambda: one.state is EngineState.FAILED)


async def test_a_process_that_cannot_be_started_is_a_failure_like_others():
    lost: list[str] = []
    async with started(n_failures=2, on_restart=lost.append) as one:
        id, waiting = submit(one)
        Process.spawn_errors += [OSError(11, os.strerror(11))] * 2
        Process.all[0].die()
        (await nth(4)).be_ready()
        Process.all[-1].say(admitted(id), done(id))
        await waiting
        reason = f"the engine process cannot be started: {os.strerror(11)}"
        assert lost[1:] == [f"{reason}; restart 2", f"{reason}; restart 3"]


async def test_an_unexpected_error_does_not_go_unnoticed(caplog):
    async with started(n_failures=0) as one:
        _, waiting = submit(one)
        Process.spawn_errors.append(ZeroDivisionError("a bug of ours"))
        Process.all[0].die()
        with pytest.raises(Unavailable):
            await waiting
        assert one.state is EngineState.FAILED
    assert "a bug of ours" in caplog.text
    assert "Traceback" in caplog.text


async def test_as_soon_as_a_process_is_gone_the_engine_is_not_ready(monkeypatch):
    reaped = asyncio.Event()

    async def close(self) -> int:
        await reaped.wait()
        return -9

    async with started() as one:
        monkeypatch.setattr(Process, "close", close)
        Process.all[0].die()
        await wait_until_async(lambda: one.state is EngineState.RESTARTING)
        id, _ = submit(one)
        reaped.set()
        (await nth(2)).be_ready()
        assert Process.all[1].task_ids == [id]


# --- asleep


async def asleep(one: EngineClient, n: int = 1) -> Process:
    await wait_until_async(lambda: one.state is EngineState.SLEEPING)
    assert Process.all[n - 1].is_told_to_stop
    return Process.all[n - 1]


async def test_the_file_that_an_engine_has_survived_is_told_before_it_is_ready():
    one = EngineClient(EngineSettings(model="given.gguf"), 10.0, NullObserver())
    starting = asyncio.create_task(one.lifecycle.start())
    process = await nth(1)
    opened = asyncio.create_task(one.lifecycle.opened())
    process.say(Loading(Stage.LOADING, 1.0))
    await wait_until_async(lambda: one.loading == Loading(Stage.LOADING, 1.0))
    assert not opened.done()
    process.say(Opened("made.gguf"))
    assert await opened == "made.gguf"
    assert one.state is EngineState.LOADING
    process.be_ready()
    await starting
    process.say(Opened("another.gguf"))
    assert await one.lifecycle.opened() == "made.gguf"
    process.die()
    await one.lifecycle.close()


async def test_an_order_wakes_the_engine_and_the_next_one_gets_it(caplog):
    caplog.set_level(logging.INFO)
    told: list[Loading] = []
    telemetry = Telemetry()
    async with started(telemetry, sleep_idle_s=0.05, on_loading=told.append) as one:
        (await asleep(one)).die(0)
        await asyncio.sleep(0.05)
        assert len(Process.all) == 1  # it stays asleep
        assert [slot.is_processing for slot in telemetry.slots.views] == [False] * 4
        id, waiting = submit(one)
        assert one.state is EngineState.WAKING
        second = await nth(2)
        second.say(Loading(Stage.LOADING, 0.5))
        second.be_ready()
        assert second.task_ids == [id]
        second.say(admitted(id), done(id))
        assert isinstance((await waiting)[-1], Done)
        assert (one.n_restarts, told) == (0, [])
        (await asleep(one, 2)).die(0)
    assert caplog.text.count("engine unloaded") == 2
    assert caplog.text.count("loading the engine again") == 1


async def test_an_order_in_the_moment_of_falling_asleep_is_not_lost():
    async with started(sleep_idle_s=0.0) as one:
        first = await asleep(one)
        id, waiting = submit(one)
        acting = asyncio.create_task(one.act(SlotAction(verb=Verb.ERASE, slot=0)))
        await asyncio.sleep(0.05)
        assert len(Process.all) == 1  # it is still writing
        assert first.task_ids == []
        first.die(0)
        second = await nth(2)
        second.be_ready()
        await wait_until_async(lambda: any(isinstance(command, SlotAction) for command in second.commands))
        (action,) = (command for command in second.commands if isinstance(command, SlotAction))
        assert second.task_ids == [id]
        second.say(admitted(id), done(id), SlotReport(task_id=action.id, id_slot=0, n_tokens=0))
        await waiting
        assert (await acting).id_slot == 0


async def test_it_does_not_sleep_while_something_is_asked_of_it():
    async with started(sleep_idle_s=0.0) as one:
        (await asleep(one)).die(0)
        id, waiting = submit(one)
        second = await nth(2)
        second.be_ready()
        await wait_until_async(lambda: one.state is EngineState.READY)
        await asyncio.sleep(0.05)
        assert one.state is EngineState.READY
        acting = asyncio.create_task(one.act(SlotAction(verb=Verb.TOKENS, slot=0)))
        second.say(admitted(id), done(id))
        await waiting
        await asyncio.sleep(0.05)
        assert one.state is EngineState.READY
        second.say(SlotReport(task_id=id + 1, id_slot=0, n_tokens=0))
        await acting
        await asleep(one, 2)


async def test_one_that_does_not_wake_up_has_failed_like_others():
    async with started(sleep_idle_s=0.0, n_failures=1) as one:
        (await asleep(one)).die(0)
        acting = asyncio.create_task(one.act(SlotAction(verb=Verb.ERASE, slot=0)))
        _, waiting = submit(one)
        for i in (2, 3):
            (await nth(i)).say(LoadFailed("the model is gone"))
            Process.all[-1].die(1)
        for request in (acting, waiting):
            with pytest.raises(Unavailable, match="the model is gone"):
                await request
        assert one.state is EngineState.FAILED


async def test_one_that_dies_while_it_falls_asleep_is_asleep():
    async with started(sleep_idle_s=0.0, n_failures=0) as one:
        (await asleep(one)).die(-9)
        await asyncio.sleep(0.05)
        assert (one.state, one.n_restarts) == (EngineState.SLEEPING, 0)


async def test_one_that_never_ends_is_ended(monkeypatch):
    monkeypatch.setattr(lifecycle, "FLUSH_S", 0.05)
    async with started(sleep_idle_s=0.0) as one:
        await asleep(one)
        id, _ = submit(one)
        second = await nth(2)
        second.be_ready()
        assert second.task_ids == [id]


async def test_an_adapter_that_is_freed_meanwhile_is_gone():
    async with started(sleep_idle_s=0.0) as one:
        (await asleep(one)).die(0)
        one.free_adapter(0)
        assert one.state is EngineState.SLEEPING


async def test_closing_waits_until_caches_are_written():
    one = EngineClient(EngineSettings(model="fake.gguf"), 10.0, NullObserver(), sleep_idle_s=0.0)
    starting = asyncio.create_task(one.lifecycle.start())
    (await nth(1)).be_ready()
    await starting
    process = await asleep(one)
    closing = asyncio.create_task(one.lifecycle.close())
    await asyncio.sleep(0.05)
    assert not closing.done()
    process.die(0)
    await closing
    assert len(Process.all) == 1


@pytest.mark.parametrize("state", [EngineState.SLEEPING, EngineState.WAKING, EngineState.FAILED])
async def test_closing_in_any_state_ends_everything(state):
    async with started(sleep_idle_s=0.0, n_failures=0) as one:
        (await asleep(one)).die(0)
        requests = []
        if state is not EngineState.SLEEPING:
            requests = [submit(one)[1], asyncio.create_task(one.act(SlotAction(verb=Verb.ERASE, slot=0)))]
            await nth(2)
        if state is EngineState.FAILED:
            Process.all[1].die(1)
            await wait_until_async(lambda: one.state is EngineState.FAILED)
        await asyncio.wait_for(one.lifecycle.close(), GENEROUS_S)
        for request in requests:
            with pytest.raises(Unavailable):
                await asyncio.wait_for(request, GENEROUS_S)
        with pytest.raises(Unavailable):
            submit_task(one, [1])


async def test_who_is_dismissed_is_told_and_the_engine_stops_working_for_them():
    async with started() as one:
        id, waiting = submit(one)
        Process.all[0].say(admitted(id))
        one.lifecycle.dismiss()
        with pytest.raises(Unavailable, match="shutting down"):
            await waiting
        assert Process.all[0].commands[-1] == Cancel(id)
        with pytest.raises(Unavailable, match="shutting down"):
            submit_task(one, [1])
