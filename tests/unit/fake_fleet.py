"""Several engines that come and go as a test wants them to."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest

from corral.core.params import GenerationParams
from corral.core.result import (
    Admitted,
    Done,
    Ready,
    StopType,
    Timings,
    Tokens,
)
from corral.core.settings import EngineSettings
from corral.core.task import Task
from corral.fleet import member
from corral.fleet.fleet import Fleet
from corral.fleet.load_table import LoadTable
from corral.link import lifecycle, restart
from corral.link.owner import EngineOwner
from corral.telemetry.dispatcher import Telemetry
from corral.telemetry.record import RequestRecord
from tests.tools.wait import wait_until_async
from tests.unit.fake import FakeBackend
from tests.unit.fake_process import Process

N_EACH = 2
TIMINGS = Timings(cache_n=0, prompt_n=1, prompt_ms=1.0, predicted_n=1, predicted_ms=1.0)
LONG = list(range(640))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(member, "EngineProcess", Process)
    monkeypatch.setattr(lifecycle, "LOOK_S", 0.005)
    monkeypatch.setattr(restart, "_FIRST_S", 0.0)
    monkeypatch.setattr(Process, "all", [])
    monkeypatch.setattr(Answer, "all", [])
    monkeypatch.setattr(Process, "spawn_errors", [])


async def be_ready(n: int, fingerprint: str = "same", n_slots: int = N_EACH) -> Process:
    """Have the n-th process ever be ready."""
    await wait_until_async(lambda: len(Process.all) > n and hasattr(Process.all[n], "settings"))
    process = Process.all[n]
    info = msgspec.structs.replace(FakeBackend().info(), n_slots=n_slots, fingerprint=fingerprint)
    process.say(Ready(info, process.settings))
    return process


@contextlib.asynccontextmanager
async def started(
    n: int = 3,
    fingerprints: str = "aaa",
    telemetry: Telemetry | None = None,
    n_started: int | None = None,
    n_each: int = N_EACH,
    owner: EngineOwner | None = None,
    **options,
):
    settings = EngineSettings(model="fake.gguf", n_parallel=n_each)
    fleet = Fleet(settings, n, 10.0, telemetry or Telemetry(), **options)
    if owner is not None:
        fleet.lifecycle.owned_by(owner)
    starting = asyncio.create_task(fleet.lifecycle.start())
    for i in range(n_started or n):
        await be_ready(i, fingerprints[i], n_each)
    await starting
    try:
        yield fleet
        check_table(fleet)
    finally:
        for process in Process.all:
            process.die()
        await fleet.lifecycle.close()
        await asyncio.gather(*Answer.all, return_exceptions=True)


def check_table(fleet: Fleet) -> None:
    """What the fleet places by is what its engines do now."""
    table = fleet._dispatcher._refresh()
    fresh = LoadTable(len(fleet.engines))
    for engine in fleet.engines:
        fresh.put(engine.index, engine.load_now, engine.fingerprint)
    for name, column in table._columns.items():
        assert column.tolist() == fresh._columns[name].tolist(), name


async def commands_of(process: Process, kind: type = object) -> list:
    """What a process was sent, once it was sent a command of this kind."""
    await wait_until_async(lambda: any(isinstance(command, kind) for command in process.commands))
    return process.commands


class Answer:
    """A task in a fleet, and what came of it."""

    all: list[asyncio.Task] = []

    def __init__(self, fleet: Fleet, prompt: list[int] = LONG, tenant: bytes = b"", **params) -> None:
        task = Task(prompt=prompt, params=GenerationParams(**params), tenant=tenant)
        telemetry = fleet._merged.observer
        assert isinstance(telemetry, Telemetry)
        self.task, self.stream = fleet.submit(task, telemetry.follow(RequestRecord()))
        self.results = asyncio.create_task(self._collect())
        Answer.all.append(self.results)

    async def _collect(self) -> list:
        return [result async for result in self.stream]

    @property
    def processes(self) -> list[int]:
        """The numbers of the processes that got it."""
        return [n for n, process in enumerate(Process.all) if self.task.id in process.task_ids]

    @property
    def process(self) -> Process:
        return Process.all[self.processes[-1]]

    @property
    def sent(self) -> Task:
        return [each for each in self.process.commands if isinstance(each, Task) and each.id == self.task.id][
            -1
        ]

    def admit(self, id_slot: int = 0) -> None:
        self.process.say(Admitted(self.task.id, id_slot, 0))

    def say(self, *tokens: int) -> None:
        self.process.say(Tokens(task_id=self.task.id, tokens=list(tokens), text="", timings=TIMINGS))

    def end(self) -> None:
        self.process.say(
            Done(
                task_id=self.task.id,
                stop_type=StopType.EOS,
                truncated=False,
                has_new_line=False,
                n_past=len(self.task.prompt),
                timings=TIMINGS,
            )
        )

    async def is_done(self) -> list[int]:
        results = await self.results
        assert isinstance(results[-1], Done)
        return [token for result in results if isinstance(result, Tokens) for token in result.tokens]
