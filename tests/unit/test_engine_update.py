"""Another model file for a fleet, whose engines do what the test wants."""

from __future__ import annotations

import asyncio

import pytest

from corral.core.errors import Conflict
from corral.core.result import LoadFailed
from corral.core.task import Stop
from corral.link.engine_state import EngineState
from tests.tools.wait import wait_until_async
from tests.unit.fake_fleet import Answer, be_ready, commands_of, started
from tests.unit.fake_fleet import quick as quick
from tests.unit.fake_process import Process


async def end_process(n: int) -> None:
    await commands_of(Process.all[n], Stop)
    Process.all[n].die()


async def test_engines_are_replaced_one_after_another_and_answers_end_before():
    async with started(2, "aa") as fleet:
        answer = Answer(fleet, [1], id_slot=0)
        answer.admit(0)
        answer.say(5)
        other = [Answer(fleet, [2], id_slot=slot) for slot in (2, 3)]
        for slot, each in enumerate(other):
            each.admit(slot)
        updating = asyncio.create_task(fleet.update("new.gguf"))
        await wait_until_async(lambda: fleet.engines[0].is_draining)
        assert not any(isinstance(command, Stop) for command in Process.all[0].commands)
        answer.end()
        await end_process(0)
        await be_ready(2, "b")
        await wait_until_async(lambda: fleet.engines[1].is_draining)
        for each in other:
            each.end()
        await end_process(1)
        await be_ready(3, "b")
        await updating
        assert [Process.all[n].settings.model for n in (2, 3)] == ["new.gguf"] * 2


async def test_an_engine_that_cannot_load_the_file_loads_the_former_one():
    async with started(2, "aa") as fleet:
        updating = asyncio.create_task(fleet.update("bad.gguf"))
        await end_process(0)
        await wait_until_async(lambda: len(Process.all) > 2 and hasattr(Process.all[2], "settings"))
        assert Process.all[2].settings.model == "bad.gguf"
        Process.all[2].say(LoadFailed("no"))
        Process.all[2].die()
        with pytest.raises(Conflict):
            await updating
        former = await be_ready(3, "a")
        assert former.settings.model == "fake.gguf"
        assert [member.state for member in fleet.engines] == [EngineState.READY] * 2
        assert not any(isinstance(command, Stop) for command in Process.all[1].commands)


@pytest.mark.parametrize("is_good", [True, False])
async def test_a_failed_engine_is_started_with_the_file(is_good):
    async with started(2, "aa", n_failures=0) as fleet:
        await fail(fleet, 1)
        updating = asyncio.create_task(fleet.update("new.gguf"))
        await wait_until_async(lambda: len(Process.all) > 2 and hasattr(Process.all[2], "settings"))
        assert Process.all[2].settings.model == "new.gguf"
        if is_good:
            await be_ready(2, "b")
            await end_process(0)
            await be_ready(3, "b")
            await updating
            assert [member.state for member in fleet.engines] == [EngineState.READY] * 2
            return
        Process.all[2].say(LoadFailed("no"))
        Process.all[2].die()
        with pytest.raises(Conflict, match="no"):
            await updating
        assert fleet.engines[1].state is EngineState.FAILED
        assert fleet.engines[1].lifecycle.settings.model == "fake.gguf"


async def test_a_failed_engine_is_started_again_by_a_drain():
    async with started(2, "aa", n_failures=0) as fleet:
        await fail(fleet, 1)
        draining = asyncio.create_task(fleet.drain(1))
        await be_ready(2)
        await draining
        assert fleet.engines[1].state is EngineState.READY


async def fail(fleet, index: int) -> None:
    Process.all[index].die()
    await wait_until_async(lambda: fleet.engines[index].state is EngineState.FAILED)
