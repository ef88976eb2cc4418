"""Engines that wait for permission to use memory."""

from __future__ import annotations

import asyncio

import pytest

from corral.core.errors import InsufficientStorage
from corral.core.result import MemoryPlan
from corral.core.settings import EngineSettings
from corral.core.task import MemoryGranted, Stop
from corral.link import lifecycle
from corral.link.client import EngineClient
from corral.link.engine_state import EngineState
from tests.tools.wait import wait_until_async
from tests.unit.fake_owner import Owner
from tests.unit.fake_process import NullObserver, Process, submit_task


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(lifecycle, "EngineProcess", Process)
    monkeypatch.setattr(lifecycle, "LOOK_S", 0.005)
    monkeypatch.setattr(Process, "all", [])
    monkeypatch.setattr(Process, "spawn_errors", [])


def make(owner: Owner, sleep_idle_s: float = -1.0) -> EngineClient:
    settings = EngineSettings(model="fake.gguf")
    one = EngineClient(settings, 10.0, NullObserver(), sleep_idle_s=sleep_idle_s)
    one.lifecycle.owned_by(owner)
    return one


async def test_it_loads_with_permission_and_again_with_permission():
    owner = Owner()
    one = make(owner)
    starting = asyncio.create_task(one.lifecycle.start())
    await wait_until_async(lambda: Process.all)
    first = Process.all[0]
    first.say(MemoryPlan({"CPU": 5}))
    await wait_until_async(lambda: owner.planned == [MemoryPlan({"CPU": 5})])
    assert first.commands == []
    owner.may_load.set()
    await wait_until_async(lambda: first.commands == [MemoryGranted()])
    first.be_ready()
    await starting
    assert not one.lifecycle.settings.is_gated, "what it needs is known from now on"
    unloading = asyncio.create_task(one.lifecycle.unload())
    await wait_until_async(lambda: first.commands == [MemoryGranted(), Stop()])
    assert not one.lifecycle.is_unloaded
    first.die()
    await unloading
    assert one.lifecycle.is_unloaded
    submit_task(one, [1])
    assert (owner.n_wakes, one.state) == (1, EngineState.WAKING)
    await asyncio.sleep(0.02)
    assert len(Process.all) == 1
    one.lifecycle.load_again()
    await wait_until_async(lambda: len(Process.all) == 2)
    assert not one.lifecycle.is_unloaded
    assert owner.n_changes > 3
    Process.all[1].die()
    await one.lifecycle.close()


async def test_a_refusal_ends_the_start_with_its_reason():
    one = make(Owner(InsufficientStorage("too large", n_needed=3)))
    starting = asyncio.create_task(one.lifecycle.start())
    await wait_until_async(lambda: Process.all)
    Process.all[0].say(MemoryPlan({"CPU": 5}))
    with pytest.raises(InsufficientStorage, match="too large"):
        await starting
    await one.lifecycle.close()


async def test_an_idle_engine_ends_only_if_its_owner_says_so():
    owner = Owner()
    owner.may_load.set()
    one = make(owner, sleep_idle_s=0.0)
    starting = asyncio.create_task(one.lifecycle.start())
    await wait_until_async(lambda: Process.all)
    process = Process.all[0]
    process.say(MemoryPlan({"CPU": 5}))
    process.be_ready()
    await starting
    await wait_until_async(lambda: owner.n_idle > 1)
    assert (one.state, process.is_told_to_stop) == (EngineState.READY, False)
    one.lifecycle.begin_unload()
    assert (one.state, process.is_told_to_stop) == (EngineState.SLEEPING, True), "in the same step"
    process.die()
    await one.lifecycle.wait_unloaded()
    await one.lifecycle.close()
