"""The engine as the API uses it, and tasks on their way to it."""

from __future__ import annotations

from typing import Protocol

import msgspec

from corral.core.client import ANONYMOUS, Client
from corral.core.modifier import AdapterInfo
from corral.core.params import GenerationParams
from corral.core.result import ControlOutcome, Loading, SlotReport
from corral.core.task import ControlVerb, SlotAction, Task
from corral.link.client import TaskT
from corral.link.observer import TaskObserver
from corral.link.pending_task import MediaFile
from corral.link.stream import TaskStream
from corral.media.intake import MediaLayouter
from corral.telemetry.dispatcher import Telemetry
from corral.telemetry.facts import EngineFacts
from corral.telemetry.record import RequestRecord


class Engine(EngineFacts, MediaLayouter, Protocol):
    """`EngineClient` is the real one, which says what these mean."""

    @property
    def loading(self) -> Loading: ...

    @property
    def is_silent(self) -> bool: ...

    @property
    def down_because(self) -> str: ...

    def submit(
        self, task: TaskT, observer: TaskObserver, media: MediaFile | None = None
    ) -> tuple[TaskT, TaskStream]: ...

    async def act(self, action: SlotAction, fd: int = -1) -> SlotReport: ...

    async def control(self, task_id: int, verb: ControlVerb, n_predict: int = -1) -> ControlOutcome: ...

    async def load_adapter(self, path: str) -> AdapterInfo: ...

    def free_adapter(self, id: int) -> None: ...

    async def load(self) -> None: ...

    def wake(self) -> None: ...

    def keep_idle(self, limit_s: float) -> None: ...

    @property
    def unloads_in_s(self) -> float | None: ...


class Runner:
    """Gives tasks to the engine, and has telemetry follow them."""

    def __init__(self, engine: Engine, telemetry: Telemetry) -> None:
        self._engine = engine
        self._telemetry = telemetry

    def submit(
        self, task: TaskT, record: RequestRecord, media: MediaFile | None = None
    ) -> tuple[TaskT, TaskStream]:
        return self._engine.submit(task, self._telemetry.follow(record), media)

    async def evaluate(
        self, prompt: list[int], params: GenerationParams, media: MediaFile | None = None
    ) -> None:
        """Have the engine do everything but answer; what it refuses is raised."""
        task = new_task(prompt, msgspec.structs.replace(params, n_predict=0), ANONYMOUS, media)
        _, results = self.submit(task, RequestRecord(), media)
        async for _ in results:
            pass


def new_task(prompt: list[int], params: GenerationParams, client: Client, media: MediaFile | None) -> Task:
    return Task(
        prompt=prompt,
        params=params,
        media=media.media[0] if media is not None else [],
        client=client.id,
        weight=client.weight,
        tenant=client.tenant,
        is_batch=client.is_batch,
    )
