"""An engine process that is none: a test says when it is ready, what it says, and when it is gone."""

from __future__ import annotations

import asyncio

from corral.core.params import GenerationParams
from corral.core.result import HandedOver, Ready
from corral.core.task import HandOver, Stop, Task
from tests.unit.fake import FakeBackend

N_GIVEN = 7  # tokens of the states that it hands over


class Process:
    """In place of `EngineProcess`."""

    all: list[Process] = []
    spawn_errors: list[Exception] = []  # of the next ones
    is_remote = False
    log_name = ""
    pid: int | None = None
    gives_states = True

    def __init__(self, on_events) -> None:
        self._on_events = on_events
        self._gone = asyncio.Event()
        self.commands: list = []
        self.code = 0
        Process.all.append(self)

    async def spawn(self, settings) -> None:
        self.settings = settings
        if Process.spawn_errors:
            raise Process.spawn_errors.pop()

    def say(self, *events) -> None:
        self._on_events(self, list(events))

    def be_ready(self) -> None:
        self.say(Ready(FakeBackend().info(), self.settings))

    def die(self, code: int = -9) -> None:
        self.code = code
        self._gone.set()

    def send(self, command, fd: int = -1) -> None:
        if not self._gone.is_set():
            self.commands.append(command)
            if isinstance(command, HandOver) and self.gives_states:
                asyncio.get_running_loop().call_soon(self.say, HandedOver(command.id, N_GIVEN))

    def kill(self) -> None:
        self.die()

    async def wait(self) -> None:
        await self._gone.wait()

    async def stop(self, timeout_s: float) -> None:
        self.send(Stop())
        await asyncio.wait_for(self._gone.wait(), timeout_s)

    async def close(self) -> int:
        self._gone.set()
        return self.code

    @property
    def is_gone(self) -> bool:
        return self._gone.is_set()

    @property
    def task_ids(self) -> list[int]:
        return [command.id for command in self.commands if isinstance(command, Task)]

    @property
    def is_told_to_stop(self) -> bool:
        return any(isinstance(command, Stop) for command in self.commands)


class NullObserver:
    """An `EngineObserver` and `TaskObserver` that ignores everything."""

    def __getattr__(self, name: str):
        return lambda *_: None


def submit_task(client, prompt: list[int], media=None) -> tuple:
    """The task and its stream."""
    found = media.media[0] if media is not None else []
    task = Task(prompt=prompt, params=GenerationParams(), media=found)
    return client.submit(task, NullObserver(), media)
