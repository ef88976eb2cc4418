"""The engine as the API uses it, and tasks on their way to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from corral.core.task import ControlVerb, Embed, SlotAction, Task
from corral.generate.key_limits import KeyLimits, Place, most_tokens
from corral.media.intake import MediaLayouter
from corral.telemetry.record import RequestRecord
from corral.telemetry.sources import EngineSource

if TYPE_CHECKING:
    from corral.core.client import Client
    from corral.core.modifier import AdapterInfo
    from corral.core.params import GenerationParams
    from corral.core.result import ControlOutcome, Loading, SlotReport
    from corral.link.client import TaskT
    from corral.link.observer import TaskObserver
    from corral.link.pending_task import MediaFile
    from corral.link.stream import TaskStream
    from corral.telemetry.dispatcher import Telemetry


class Engine(EngineSource, MediaLayouter, Protocol):
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
    """The one way of tasks to the engine: they keep to the limits of their client's key, and telemetry
    follows them."""

    def __init__(self, engine: Engine, telemetry: Telemetry, limits: KeyLimits) -> None:
        self._engine = engine
        self._telemetry = telemetry
        self._limits = limits

    def take_places(
        self, client: Client, tasks: Sequence[Task | Embed], is_admitted: bool = False
    ) -> list[Place]:
        """Take places for all tasks of a request before the first is submitted; `KeyLimits.take` says what
        it raises."""
        return self._limits.take(client, list(map(self._most_tokens, tasks)), is_admitted)

    def resize(self, place: Place, task: Task | Embed) -> None:
        """Have a running task keep to the limits when it may use another number of tokens."""
        self._limits.resize(place, self._most_tokens(task))

    def give_back(self, places: Sequence[Place]) -> None:
        """Give back those of tasks that were not submitted; the others are given back when the task ends."""
        for place in places:
            self._limits.give_back(place)

    def submit(
        self,
        task: TaskT,
        record: RequestRecord,
        media: MediaFile | None = None,
        place: Place | None = None,
    ) -> tuple[TaskT, TaskStream]:
        """`place`: the task's; without one it is taken now. It is given back when the task ends."""
        taken = place or self.take_places(record.client, [task])[0]
        follower = self._telemetry.follow(record, lambda: self._limits.give_back(taken))
        try:
            return self._engine.submit(task, follower, media)
        except BaseException:
            self._limits.give_back(taken)
            raise

    async def evaluate(
        self,
        prompt: list[int],
        params: GenerationParams,
        media: MediaFile | None = None,
        record: RequestRecord | None = None,
    ) -> None:
        """Have the engine do everything but answer; what it refuses is raised. `record`: of the request that
        asks for it; None: the server does."""
        record = record or RequestRecord()
        task = new_task(prompt, msgspec.structs.replace(params, n_predict=0), record.client, media)
        _, results = self.submit(task, record, media)
        async for _ in results:
            pass

    def _most_tokens(self, task: Task | Embed) -> list[int]:
        info = self._engine.info
        return most_tokens(task, info.n_ctx if info is not None else 0)


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
