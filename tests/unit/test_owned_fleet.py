"""Several engines of a model among others: they get memory together, and give it back together."""

from __future__ import annotations

import asyncio

import pytest

from corral.core.errors import Conflict, InsufficientStorage
from corral.core.result import MemoryPlan
from corral.core.settings import EngineSettings
from corral.core.task import MemoryGranted
from corral.fleet.autoscale import ScaleLimits
from corral.fleet.fleet import Fleet
from corral.link import lifecycle
from corral.link.engine_state import EngineState
from corral.telemetry.dispatcher import Telemetry
from tests.tools.wait import wait_until_async
from tests.unit.fake_fleet import Answer, be_ready, commands_of, started
from tests.unit.fake_fleet import quick as quick
from tests.unit.fake_owner import Owner
from tests.unit.fake_process import Process

SETTINGS = EngineSettings(model="fake.gguf", devices=("GPU0", "GPU1"))
ASLEEP, READY = EngineState.SLEEPING, EngineState.READY


def states(fleet: Fleet) -> list[EngineState]:
    return [engine.state for engine in fleet.engines]


async def unload(fleet: Fleet) -> None:
    """Have it unloaded, as soon as the processes that are told to stop are gone."""
    fleet.lifecycle.begin_unload()
    for process in Process.all:
        if process.is_told_to_stop:
            process.die(0)
    await fleet.lifecycle.wait_unloaded()
    assert states(fleet) == [ASLEEP] * len(fleet.engines)


async def close(fleet: Fleet) -> None:
    for process in Process.all:
        process.die()
    await fleet.lifecycle.close()


async def test_the_first_engine_gets_memory_for_all():
    owner = Owner()
    fleet = Fleet(SETTINGS, 2, 10.0, Telemetry())
    fleet.lifecycle.owned_by(owner)
    starting = asyncio.create_task(fleet.lifecycle.start())
    await wait_until_async(lambda: Process.all)
    asked = Process.all[0].settings
    assert (asked.is_gated, asked.n_alike, asked.n_on_device, asked.devices) == (True, 2, 1, ("GPU0",))
    Process.all[0].say(MemoryPlan({"CPU": 50, "GPU0": 7}, {"GPU0": (8, 9)}))
    await wait_until_async(lambda: owner.planned)
    assert owner.planned == [MemoryPlan({"CPU": 50, "GPU0": 7, "GPU1": 7}, {"GPU0": (8, 9)})]
    owner.may_load.set()
    await commands_of(Process.all[0], MemoryGranted)
    await be_ready(0)
    assert not (await be_ready(1)).settings.is_gated
    await starting
    assert len(owner.planned) == 1
    await close(fleet)


async def test_a_refusal_ends_the_start_of_all():
    fleet = Fleet(SETTINGS, 2, 10.0, Telemetry())
    fleet.lifecycle.owned_by(Owner(InsufficientStorage("too large")))
    starting = asyncio.create_task(fleet.lifecycle.start())
    await wait_until_async(lambda: Process.all)
    Process.all[0].say(MemoryPlan({"CPU": 5}))
    with pytest.raises(InsufficientStorage, match="too large"):
        await starting
    await fleet.lifecycle.close()
    assert len(Process.all) == 1


async def test_engines_elsewhere_wait_before_they_start():
    """Where they start, they may reserve what another model has to give back first."""
    owner = Owner()
    fleet = Fleet(SETTINGS, 2, 10.0, Telemetry(), open_transport=lambda _: Process)
    fleet.lifecycle.owned_by(owner)
    starting = asyncio.create_task(fleet.lifecycle.start())
    await wait_until_async(lambda: owner.planned == [MemoryPlan({})])
    assert Process.all == []
    owner.may_load.set()
    assert not (await be_ready(0)).settings.is_gated
    await be_ready(1)
    await starting
    await close(fleet)


async def test_unloaded_engines_start_again_only_if_the_owner_says_so():
    owner = Owner()
    async with started(2, owner=owner) as fleet:
        await unload(fleet)
        answer = Answer(fleet, [1])
        assert owner.n_wakes > 0
        await asyncio.sleep(0.02)
        assert len(Process.all) == 2
        fleet.lifecycle.load_again()
        for n in (2, 3):
            await be_ready(n)
        await wait_until_async(lambda: answer.processes)
        answer.admit()
        answer.say(5)
        answer.end()
        assert await answer.is_done() == [5]


async def test_what_is_about_to_start_is_unloaded_too(monkeypatch):
    """One engine loads after it was lost, one waits before it does, one has failed, one is ready."""
    monkeypatch.setattr(lifecycle, "RETRY_S", 3600.0)
    async with started(4, "aaaa", owner=Owner(), n_failures=1) as fleet:
        Process.all[0].die()
        await wait_until_async(lambda: len(Process.all) == 5)
        monkeypatch.setattr("corral.link.restart._FIRST_S", 3600.0)
        Process.all[1].die()
        Process.all[2].die()
        await wait_until_async(lambda: states(fleet)[1:3] == [EngineState.RESTARTING] * 2)
        fleet.engines[2].lifecycle._retry.set()
        await wait_until_async(lambda: len(Process.all) == 6)
        Process.all[5].die()
        await wait_until_async(lambda: states(fleet)[2] is EngineState.FAILED)
        assert states(fleet)[3] is READY
        await unload(fleet)
        n = len(Process.all)
        assert Process.all[4].is_gone
        fleet.lifecycle.load_again()
        for i in range(4):
            await be_ready(n + i)
        await wait_until_async(lambda: states(fleet) == [READY] * 4)


async def test_an_engine_of_several_is_tried_again_as_long_as_another_serves(monkeypatch):
    monkeypatch.setattr(lifecycle, "RETRY_S", 0.01)
    async with started(2, owner=Owner(), n_failures=0) as fleet:
        Process.all[0].die()
        await be_ready(2)
        await wait_until_async(lambda: states(fleet) == [READY, READY])
        monkeypatch.setattr(lifecycle, "RETRY_S", 3600.0)
        Process.all[1].die()
        Process.all[2].die()
        await wait_until_async(lambda: fleet.state is EngineState.FAILED)
        for engine in fleet.engines:  # the next load of the model starts them anew
            with pytest.raises(Conflict, match="down"):
                await engine.lifecycle.revive()
        assert len(Process.all) == 3


async def test_engines_without_load_stay_unloaded_with_the_model(monkeypatch):
    monkeypatch.setattr("corral.fleet.autoscale.LOOK_S", 0.005)
    owner = Owner()
    async with started(2, n_started=1, owner=owner, scale=ScaleLimits(1, 1.0, 3600.0)) as fleet:
        await unload(fleet)
        await asyncio.sleep(0.03)
        assert (owner.n_wakes, len(Process.all)) == (0, 1)
        fleet.lifecycle.load_again()
        await be_ready(1)
        await asyncio.sleep(0.03)
        assert states(fleet) == [READY, ASLEEP]


async def test_a_model_whose_last_engine_has_ended_gives_its_memory_back(monkeypatch):
    monkeypatch.setattr("corral.fleet.autoscale.LOOK_S", 0.005)
    owner = Owner()
    async with started(2, n_started=1, owner=owner, scale=ScaleLimits(0, 1.0, 0.0)) as fleet:
        await wait_until_async(lambda: Process.all[0].is_told_to_stop)
        Process.all[0].die(0)
        await wait_until_async(lambda: owner.n_idle)
        await unload(fleet)
