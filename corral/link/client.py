"""The engine as the front sees it: submit tasks, get streams of results.

Every task ends exactly once, across engine restarts: a new engine gets all tasks that have not ended, with
the tokens already delivered, and the streams continue. `EngineLifecycle` decides when engines start and
stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeVar

import msgspec

from corral.core.errors import CorralError, Unavailable
from corral.core.media_item import MediaItem
from corral.core.modifier import AdapterInfo, ScaledFile
from corral.core.result import (
    AdapterLoaded,
    Answer,
    CacheEvent,
    Controlled,
    ControlOutcome,
    Decodes,
    Failed,
    HandedOver,
    LastResult,
    Loading,
    MediaLayout,
    ModelInfo,
    Queue,
    SlotReport,
    TaskResult,
    Tokens,
)
from corral.core.settings import EngineSettings
from corral.core.task import (
    Cancel,
    Control,
    ControlVerb,
    Embed,
    FreeAdapter,
    HandOver,
    LayoutMedia,
    LoadAdapter,
    SlotAction,
    Task,
)
from corral.link.engine_state import EngineState
from corral.link.lifecycle import EngineLifecycle
from corral.link.listener import EngineListener
from corral.link.observer import EngineObserver, TaskObserver
from corral.link.pending_task import MAX_CRASHES, HeldState, MediaFile, PendingTask, charge_crash, suspects
from corral.link.process import EngineTransport, OpenTransport
from corral.link.restart import EngineExit
from corral.link.stream import TaskStream

TaskT = TypeVar("TaskT", Task, Embed)

READY_S = 0.05  # between two checks for a ready engine


class EngineClient:
    """Runs on the event loop. It is the listener of its own lifecycle, unless another one is given."""

    engines = ()  # as of several that are one

    def __init__(
        self,
        settings: EngineSettings,
        timeout_s: float,
        observer: EngineObserver,
        n_failures: int = 5,
        sleep_idle_s: float = -1.0,
        on_loading: Callable[[Loading], None] = lambda _: None,
        on_restart: Callable[[str], None] = lambda _: None,
        open_transport: OpenTransport | None = None,
        ids: Iterator[int] | None = None,
        listener: EngineListener | None = None,
        on_cancel: Callable[[PendingTask], None] = lambda _: None,
    ) -> None:
        """`ids`: of tasks and commands, if other clients need different ones. `listener`: passes on what the
        lifecycle says. `on_cancel`: called after a task was cancelled."""
        self.lifecycle = EngineLifecycle(
            settings,
            timeout_s,
            listener or self,
            n_failures,
            sleep_idle_s,
            on_loading,
            on_restart,
            open_transport,
        )
        self._ids = ids or itertools.count()
        self._observer = observer
        self._on_cancel = on_cancel
        self._pending: dict[int, PendingTask] = {}
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._loading_adapter = asyncio.Lock()
        self._freed: set[int] = set()  # adapters
        self._n_ids = 0
        self._n_asking = 0  # calls that wait for an answer, possibly of an engine that is still waking up
        self._has_completed = False  # whether this engine has completed a task

    @property
    def state(self) -> EngineState:
        return self.lifecycle.state

    @property
    def info(self) -> ModelInfo | None:
        return self.lifecycle.info

    @property
    def loading(self) -> Loading:
        """The progress of the current start."""
        return self.lifecycle.loading

    @property
    def n_restarts(self) -> int:
        return self.lifecycle.n_restarts

    @property
    def is_silent(self) -> bool:
        """Whether a running engine has sent no heartbeat for too long."""
        return self.lifecycle.is_silent

    @property
    def down_because(self) -> str:
        """Why the engine has failed permanently, or is being replaced; empty if neither."""
        return self.lifecycle.down_because

    def submit(
        self, task: TaskT, observer: TaskObserver, media: MediaFile | None = None
    ) -> tuple[TaskT, TaskStream]:
        """Queue a task and assign its id. It runs as soon as an engine can, across restarts."""
        self.lifecycle.check_up()
        task = msgspec.structs.replace(task, id=self._new_id(), fd=media.fd if media is not None else -1)
        id = task.id
        stream = TaskStream(on_close=lambda: self.cancel(id))
        delivered: list[int] = list(task.resume) if isinstance(task, Task) else []
        pending = PendingTask(task, stream, observer, media, delivered)
        observer.on_submit(task)
        try:
            if self.state is EngineState.READY and self.lifecycle.process:
                self._send(self.lifecycle.process, pending, task)
        except Unavailable:
            observer.on_end()
            raise
        self._pending[task.id] = pending
        self.lifecycle.wake()
        return task, stream

    def cancel(self, task_id: int) -> None:
        pending = self._pending.pop(task_id, None)
        if pending is not None:
            pending.observer.on_end()
            if self.lifecycle.process:
                self.lifecycle.process.send(Cancel(task_id))
            self._on_cancel(pending)

    def adopt(self, pending: PendingTask, state: HeldState | None = None) -> None:
        """Take over a task of another engine, with the state that it left, if there is one."""
        id = pending.task.id
        pending.stream.on_close = lambda: self.cancel(id)
        self._pending[id] = pending
        self._n_ids += 1
        self.send_again(pending, state)

    def give_away(self, task_id: int) -> PendingTask:
        """Give a task to another engine; its results of this one are ignored from now on."""
        pending = self._pending.pop(task_id)
        if self.lifecycle.process is not None:
            self.lifecycle.process.send(Cancel(task_id))
        return pending

    async def give_state(self, task_id: int, fd: int) -> HandedOver:
        """Have the engine end a task without a result, and write its state to a file. Raises CorralError if
        that is not possible."""
        given = await self._ask_now(HandOver(id=self._new_id(), task_id=task_id, fd=fd), fd)
        assert isinstance(given, HandedOver)
        return given

    def send_again(self, pending: PendingTask, state: HeldState | None = None) -> None:
        """Send a task that an engine may have begun, with the state that it left, if there is one. Without a
        ready engine, the next one gets it."""
        pending.is_sent = pending.is_admitted = False
        process = self.lifecycle.process
        if self.state is not EngineState.READY or process is None:
            return
        try:
            if state is not None:
                with contextlib.suppress(Unavailable):
                    self._send(process, pending, pending.resumed(state))
            if not pending.is_sent:
                self._send(process, pending, pending.resumed())
            if pending.is_paused:
                id, task_id = self._new_id(), pending.task.id
                process.send(Control(id=id, task_id=task_id, verb=ControlVerb.PAUSE))
        except Unavailable as error:
            self._fail(pending, error)

    async def layout_media(self, media: list[MediaItem]) -> list[list[int]]:
        """Return the tokens of media items; waits across engine restarts."""
        for i in range(MAX_CRASHES):
            await self._wait_ready()
            try:
                arranged = await self._ask(LayoutMedia(self._new_id(), media))
            except Unavailable:
                if i == MAX_CRASHES - 1:
                    raise
            else:
                assert isinstance(arranged, MediaLayout)
                return arranged.tokens
        raise AssertionError

    async def act(self, action: SlotAction, fd: int = -1) -> SlotReport:
        """Run an action on a slot; `fd` is the file that it reads or writes."""
        action = msgspec.structs.replace(action, id=self._new_id(), fd=fd)
        report = await self._ask(action, fd)
        assert isinstance(report, SlotReport)
        self._observer.on_action(action, report)
        return report

    async def control(self, task_id: int, verb: ControlVerb, n_predict: int = -1) -> ControlOutcome:
        """Change how a task continues, in this engine and in a later one."""
        pending = self._pending.get(task_id)
        if pending is None:
            return ControlOutcome.UNKNOWN
        command = Control(id=self._new_id(), task_id=task_id, verb=verb, n_predict=n_predict)
        controlled = await self._ask(command)
        assert isinstance(controlled, Controlled)
        if controlled.outcome is ControlOutcome.DONE:
            pending.note_control(command)
        return controlled.outcome

    async def load_adapter(self, path: str) -> AdapterInfo:
        """Load a LoRA adapter into this engine and every later one."""
        async with self._loading_adapter:
            settings = self.lifecycle.settings
            command = LoadAdapter(id=self._new_id(), adapter=len(settings.lora), path=path)
            loaded = await self._ask(command)
            assert isinstance(loaded, AdapterLoaded)
            files = (*self.lifecycle.settings.lora, ScaledFile(path))
            self.lifecycle.settings = msgspec.structs.replace(self.lifecycle.settings, lora=files)
            return loaded.info

    def free_adapter(self, id: int) -> None:
        """Free a LoRA adapter once no request needs it."""
        self._freed.add(id)
        if self.lifecycle.process is not None:
            self.lifecycle.process.send(FreeAdapter(id))

    async def load(self) -> None:
        """Load the model again if it was unloaded, and wait for it."""
        self.lifecycle.check_up()
        self.wake()
        await self._wait_ready()

    def wake(self) -> None:
        """Begin to load the model again if it was unloaded when idle."""
        self.lifecycle.wake()

    def keep_idle(self, limit_s: float) -> None:
        """Unload the model after another idle time than usual, unless a task comes before."""
        self.lifecycle.keep_idle(limit_s)

    @property
    def unloads_in_s(self) -> float | None:
        """The time until a model that stays idle is unloaded; None: never."""
        return self.lifecycle.unloads_in_s

    @property
    def pending(self) -> Mapping[int, PendingTask]:
        return self._pending

    @property
    def n_submitted(self) -> int:
        return self._n_ids

    @property
    def is_busy(self) -> bool:
        return bool(self._pending or self._n_asking)

    @property
    def is_asked(self) -> bool:
        """Whether commands wait for answers of this engine."""
        return bool(self._answers)

    def engine_settings(self, settings: EngineSettings) -> EngineSettings:
        wanted = {id for pending in self._pending.values() for id, _ in pending.lora}
        return self.settings_with(settings, wanted)

    def settings_with(self, settings: EngineSettings, adapters: Collection[int]) -> EngineSettings:
        """Return settings with the adapters that a new engine must load: those not freed, and these."""
        gone = self._freed.difference(adapters)
        files = [ScaledFile("") if id in gone else file for id, file in enumerate(settings.lora)]
        return msgspec.structs.replace(settings, lora=tuple(files))

    def on_ready(self, info: ModelInfo) -> None:
        self._has_completed = False
        self._observer.on_slots(info.n_slots)
        for pending in list(self._pending.values()):
            self.send_again(pending)
        for id in list(self._freed):
            self.free_adapter(id)

    def on_lost(self, ready_s: float | None) -> EngineExit:
        pending = list(self._pending.values())
        life = EngineExit(ready_s, bool(suspects(pending) or self._answers), self._has_completed)
        self._has_completed = False
        for each in charge_crash(pending):
            message = f"the engine died {each.n_lost} times while working on this request"
            self._fail(each, CorralError(message))
        self.fail_answers(Unavailable("the engine was lost, and with it the contents of its slots"))
        return life

    def on_sleep(self) -> None:
        assert self.info is not None, "there was an engine"
        self._observer.on_slots(self.info.n_slots)

    def on_down(self, error: Unavailable) -> None:
        self.fail_answers(error)
        for pending in list(self._pending.values()):
            self.cancel(pending.task.id)
            pending.stream.fail(error)

    def on_event(self, event: Queue | Decodes | CacheEvent | Answer | TaskResult) -> None:
        if isinstance(event, Tokens):  # as most are
            self._deliver(event)
        elif isinstance(event, Queue):
            self._observer.on_queue(event.task_ids)
        elif isinstance(event, Decodes):
            self._observer.on_decodes(event)
        elif isinstance(event, CacheEvent):
            pass  # asked for only where there are several engines
        elif isinstance(event, Answer) or event.task_id in self._answers:
            self._answer(event)
        else:
            self._deliver(event)

    def fail_answers(self, error: Unavailable) -> None:
        """Fail the commands that wait for answers."""
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)

    def _new_id(self) -> int:
        self._n_ids += 1
        return next(self._ids)

    async def _wait_ready(self) -> None:
        """Wait for a ready engine; raises if there will never be one."""
        while self.state in (EngineState.LOADING, EngineState.RESTARTING, EngineState.WAKING):
            self.lifecycle.check_up()
            await asyncio.sleep(READY_S)

    async def _ask(self, command: SlotAction | LoadAdapter | LayoutMedia | Control, fd: int = -1) -> Answer:
        """Send a command that only this engine can answer; wakes a sleeping engine."""
        self._n_asking += 1
        try:
            self.lifecycle.wake()
            if self.state is EngineState.WAKING:
                await self._wait_ready()
            return await self._ask_now(command, fd)
        finally:
            self._n_asking -= 1

    async def _ask_now(
        self, command: SlotAction | LoadAdapter | LayoutMedia | HandOver | Control, fd: int
    ) -> Answer:
        self.lifecycle.check_up()
        process = self.lifecycle.process
        if self.state is not EngineState.READY or process is None:
            raise Unavailable(f"The engine is {self.state.value}")
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answers[command.id] = answer
        try:
            process.send(command, fd)
            return await answer
        except OSError:
            raise Unavailable("the file could not be sent to the engine") from None
        finally:
            del self._answers[command.id]
            if not answer.done() or answer.cancelled():
                process.send(Cancel(command.id))

    def _send(self, process: EngineTransport, pending: PendingTask, task: Task | Embed) -> None:
        try:
            process.send(task, task.fd)
            pending.is_sent = True
        except ConnectionError:
            pass  # the process is gone; the next one gets the task
        except OSError:
            raise Unavailable("the media could not be sent to the engine") from None

    def _deliver(self, result: TaskResult) -> None:
        pending = self._pending.get(result.task_id)
        if pending is None:
            return
        pending.observer.on_result(result)
        pending.is_admitted = True
        if isinstance(result, Tokens):
            pending.delivered += result.tokens
        elif isinstance(result, LastResult | Failed):
            self._has_completed |= isinstance(result, LastResult)
            del self._pending[result.task_id]
            pending.observer.on_end()
        pending.stream.put(result)

    def _answer(self, result: Answer | TaskResult) -> None:
        answer = self._answers.get(result.task_id)
        if answer is None or answer.done():
            return
        if isinstance(result, Answer):
            answer.set_result(result)
        elif isinstance(result, Failed):
            answer.set_exception(CorralError.from_info(result.error))

    def _fail(self, pending: PendingTask, error: CorralError) -> None:
        del self._pending[pending.task.id]
        pending.observer.on_end()
        pending.stream.fail(error)
