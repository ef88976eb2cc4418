"""One engine of several: has an `EngineClient`, says what it has cached and does, and hands its tasks over.

Its tasks belong to it only as long as its engine runs: `FleetOwner` finds another engine for them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

import msgspec

from corral.core.errors import CorralError, Unavailable
from corral.core.modifier import ScaledFile
from corral.core.result import (
    Admitted,
    Answer,
    CacheEvent,
    Decodes,
    Done,
    Failed,
    LastResult,
    ModelInfo,
    Placed,
    Progress,
    Queue,
    SlotReport,
    StateCached,
    TaskResult,
    Tokens,
)
from corral.core.settings import EngineSettings
from corral.core.task import Embed, SlotAction, Task
from corral.fleet.cache_view import CacheView, PromptBlocks
from corral.fleet.placement import SERVICE_MS, TOKEN_MS, EngineCost, EngineLoad
from corral.fleet.prefix_index import HeldBlocks
from corral.fleet.slot_range import NumberedEnd
from corral.link.client import EngineClient, TaskT
from corral.link.engine_state import EngineState
from corral.link.observer import EngineObserver, TaskObserver
from corral.link.pending_task import HeldState, MediaFile, PendingTask
from corral.link.process import EngineProcess, EngineTransport, OnEvents, OpenTransport
from corral.link.restart import EngineExit
from corral.link.stream import TaskStream

FleetEvent = Queue | Decodes | CacheEvent | Answer | TaskResult


class FleetOwner(Protocol):
    """What an engine asks of the others."""

    @property
    def n_each(self) -> int: ...

    def cost_of(self, fingerprint: str) -> EngineCost:
        """Return what answers of engines with this fingerprint take."""
        ...

    @property
    def held_blocks(self) -> HeldBlocks: ...

    @property
    def n_submitted(self) -> int: ...

    @property
    def is_busy(self) -> bool: ...

    @property
    def adapters_in_use(self) -> set[int]: ...

    def on_change(self, member: Member) -> None:
        """The load of this one is another one now."""
        ...

    def on_ready(self, member: Member) -> None: ...

    def on_lost(self, member: Member) -> None:
        """Find other engines for the tasks of this one."""
        ...

    def has_others(self, member: Member) -> bool:
        """Whether another engine can have its tasks."""
        ...

    def on_room(self) -> None:
        """A slot may be free, or an adapter unused."""
        ...


class Member:
    """The listener of its engine's lifecycle: tells the client and the fleet."""

    def __init__(
        self,
        fleet: FleetOwner,
        index: int,
        settings: EngineSettings,
        timeout_s: float,
        observer: EngineObserver,
        ids: Iterator[int],
        open_transport: OpenTransport | None = None,
        **options: Any,
    ) -> None:
        """`options`: of `EngineClient`."""
        self.client = EngineClient(
            settings,
            timeout_s,
            observer,
            open_transport=self._open_numbered,
            ids=ids,
            listener=self,
            on_cancel=self._on_cancel,
            **options,
        )
        self.lifecycle = self.client.lifecycle
        self._fleet = fleet
        self._open_inner = open_transport
        self.index = index
        self.is_draining = False
        self.trial_model = ""  # file for the next engine only, unless it can load it
        self.view = CacheView(fleet.held_blocks, index)
        self.queue: list[int] = []  # the engine's order of waiting tasks
        self._left: dict[int, int] = {}  # prompt tokens to be evaluated, by task
        self._admitted_at: dict[int, float] = {}
        self._n_expected = 0  # tasks of other engines that are on their way
        self.n_generated = 0  # tokens, over all its processes

    @property
    def slots(self) -> range:
        """The numbers of its slots among those of all engines."""
        n = self._fleet.n_each
        return range(self.index * n, (self.index + 1) * n)

    @property
    def state(self) -> EngineState:
        return self.lifecycle.state

    @property
    def place(self) -> Placed | None:
        """Where it runs, if not on this machine."""
        return self.lifecycle.place

    @property
    def pid(self) -> int | None:
        """Its process, on whatever machine."""
        process = self.lifecycle.process
        if process is None or self.state is not EngineState.READY:
            return None
        return self.place.pid if self.place is not None else process.pid

    @property
    def fingerprint(self) -> str:
        info = self.lifecycle.info
        return info.fingerprint if info is not None else ""

    @property
    def is_open(self) -> bool:
        """Whether it can take tasks now."""
        return self.state is EngineState.READY and not (self.lifecycle.is_silent or self.is_draining)

    @property
    def is_serving(self) -> bool:
        """Whether it is not lost: it runs, or sleeps until it is needed."""
        is_up = self.state in (EngineState.READY, EngineState.SLEEPING)
        return is_up and not self.lifecycle.is_silent

    @property
    def n_submitted(self) -> int:
        return self._fleet.n_submitted

    @property
    def is_busy(self) -> bool:
        return self._fleet.is_busy

    @property
    def pending(self) -> Mapping[int, PendingTask]:
        return self.client.pending

    @property
    def load_now(self) -> EngineLoad:
        cost = self._fleet.cost_of(self.fingerprint)
        n_admitted = sum(pending.is_admitted for pending in self.pending.values())
        n_running = n_admitted + self._n_expected
        return EngineLoad(
            self.lifecycle.settings.n_parallel,
            n_running,
            len(self.pending) - n_admitted,
            sum(self._left.values()),
            cost.token_ms or TOKEN_MS,
            cost.service_ms or SERVICE_MS,
            self.view.n_blocks,
        )

    def load_without(self, task_id: int) -> tuple[int, EngineLoad]:
        """Return the prompt tokens that a waiting task still needs here, and the load apart from it."""
        load, n_left = self.load_now, self._left.get(task_id, 0)
        return n_left, replace(load, n_waiting=load.n_waiting - 1, n_ahead=load.n_ahead - n_left)

    def take_in(
        self,
        task: TaskT,
        blocks: PromptBlocks,
        observer: TaskObserver,
        media: MediaFile | None,
    ) -> tuple[TaskT, TaskStream]:
        """Submit a task whose prompt has these blocks."""
        task, stream = self.client.submit(task, observer, media)
        self._expect(task, blocks)
        return task, stream

    async def give_state(self, pending: PendingTask, fd: int) -> HeldState | None:
        """Have the engine end a task without a result, and write its state to a file. None: that was not
        possible."""
        if pending.media is not None or isinstance(pending.task, Embed):
            return None
        try:
            given = await self.client.give_state(pending.task.id, fd)
        except CorralError:
            return None
        return HeldState(given.n_past, fd)

    @contextlib.contextmanager
    def expecting_one(self) -> Iterator[None]:
        """Keep a slot free for a task that is on its way."""
        self._n_expected += 1
        self._fleet.on_change(self)
        try:
            yield
        finally:
            self._n_expected -= 1
            self._fleet.on_change(self)

    def adopt(self, pending: PendingTask, blocks: PromptBlocks, state: HeldState | None = None) -> None:
        """Take over a task of another engine."""
        self.client.adopt(pending, state)
        self._expect(pending.task, blocks)

    def hand_over(self, task_id: int) -> PendingTask:
        """Give a task away."""
        pending = self.client.give_away(task_id)
        self._leave(pending)
        return pending

    def add_adapter(self, path: str) -> None:
        """Have the next engine load an adapter, and replace the present one, which could not."""
        settings = self.lifecycle.settings
        self.lifecycle.settings = msgspec.structs.replace(settings, lora=(*settings.lora, ScaledFile(path)))
        if self.lifecycle.process is not None:
            self.lifecycle.process.kill()

    async def act(self, action: SlotAction, fd: int = -1) -> SlotReport:
        report = await self.client.act(action, fd)
        self.view.on_action(action, report)
        self._fleet.on_change(self)
        return report

    def engine_settings(self, settings: EngineSettings) -> EngineSettings:
        model, self.trial_model = self.trial_model or settings.model, ""
        settings = self.client.settings_with(settings, self._fleet.adapters_in_use)
        return msgspec.structs.replace(settings, model=model)

    def on_ready(self, info: ModelInfo) -> None:
        self.client.on_ready(info)
        self._fleet.on_change(self)
        self._fleet.on_ready(self)

    def on_lost(self, ready_s: float | None) -> EngineExit:
        life = self.client.on_lost(ready_s)
        self._forget()
        self._fleet.on_lost(self)
        return life

    def on_sleep(self) -> None:
        self.client.on_sleep()
        self.client.fail_answers(
            Unavailable("the engine was replaced, and with it the contents of its slots")
        )
        self._forget()
        self._fleet.on_lost(self)

    def on_down(self, error: Unavailable) -> None:
        if self._fleet.has_others(self):
            self._forget()
            self._fleet.on_lost(self)
        self.client.on_down(error)

    def on_event(self, event: FleetEvent) -> None:
        if isinstance(event, CacheEvent):
            self._note_states(event)
            return
        if isinstance(event, Queue):
            self.queue = event.task_ids
        elif not isinstance(event, (Decodes, Answer)) and event.task_id in self.pending:
            self._note(event, self.pending[event.task_id])
        self.client.on_event(event)
        if isinstance(event, (LastResult, Failed)):
            self._fleet.on_room()

    def _on_cancel(self, pending: PendingTask) -> None:
        self._leave(pending)
        self._fleet.on_room()

    def _open_numbered(self, on_events: OnEvents) -> EngineTransport:
        open_transport = self._open_inner or EngineProcess
        return NumberedEnd(on_events, lambda: self.slots.start, open_transport, f"corral.engine.{self.index}")

    def _note_states(self, event: CacheEvent) -> None:
        if isinstance(event, StateCached):
            self.view.on_cached(event)
        else:
            self.view.on_evicted(event)
        self._fleet.on_change(self)

    def _note(self, result: TaskResult, pending: PendingTask) -> None:
        """Note what a result says about the engine's cache and costs, before the result is delivered."""
        task, id = pending.task, result.task_id
        if isinstance(task, Embed):
            self._fleet.on_change(self)
            return
        self.view.on_result(result, task, pending.delivered)
        if not isinstance(result, Tokens) or id in self._left:
            self._fleet.on_change(self)
        if isinstance(result, Admitted):
            self._left[id] = len(task.prompt) - result.n_cached
            self._admitted_at[id] = time.monotonic()
        elif isinstance(result, Progress):
            self._left[id] = len(task.prompt) - result.n_past
        elif isinstance(result, Tokens):
            self._left.pop(id, None)
            self.n_generated += len(result.tokens)
        elif isinstance(result, Done):
            service_ms = (time.monotonic() - self._admitted_at.pop(id, time.monotonic())) * 1e3
            cost = self._fleet.cost_of(self.fingerprint)
            cost.observe(result.timings.prompt_n, result.timings.prompt_ms, service_ms)
            self._left.pop(id, None)
        elif isinstance(result, Failed):
            self._leave(pending)

    def _expect(self, task: Task | Embed, blocks: PromptBlocks) -> None:
        self._fleet.on_change(self)
        if isinstance(task, Task):
            self._left[task.id] = len(task.prompt) - self.view.n_cached(blocks)
            self.view.on_submit(task, blocks)

    def _leave(self, pending: PendingTask) -> None:
        id = pending.task.id
        self._fleet.on_change(self)
        self._left.pop(id, None)
        self._admitted_at.pop(id, None)
        if isinstance(pending.task, Task):
            self.view.on_end(pending.task)

    def _forget(self) -> None:
        """Forget what the engine had."""
        self._fleet.on_change(self)
        self.view.clear()
        self._left.clear()
        self._admitted_at.clear()
        self.queue = []
