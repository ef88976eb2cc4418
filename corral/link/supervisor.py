"""Every task exactly once, whatever becomes of engines: a new one gets all that had not ended, with the
tokens already delivered, and the streams go on where they were.

Knows orders and their results; when engines begin and end is the business of `Keeper`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from corral.core.errors import CorralError, Unavailable
from corral.core.medium import Medium
from corral.core.modifier import AdapterConfig, AdapterInfo, ScaledFile
from corral.core.params import GenerationParams
from corral.core.result import (
    AdapterLoaded,
    Answer,
    Arranged,
    Event,
    Failed,
    LastResult,
    LifeEvent,
    Loading,
    ModelInfo,
    Queue,
    SlotReport,
    TaskResult,
    Tokens,
)
from corral.core.settings import EngineSettings
from corral.core.task import Arrange, Cancel, Embed, FreeAdapter, LoadAdapter, SlotAction, Task
from corral.core.visit import ANYBODY, Visit
from corral.link.board import Board
from corral.link.entry import MAX_LOSSES, Entry, MediaFile, blame, suspects
from corral.link.keeper import EngineState, Keeper
from corral.link.process import EngineProcess
from corral.link.restart import Life
from corral.link.stream import TaskStream

__all__ = ["EngineState", "MediaFile", "Supervisor"]

READY_S = 0.05  # between two looks at whether an engine is ready


class Supervisor(Keeper):
    """The engine, as the front knows it: `submit` and results."""

    def __init__(
        self,
        settings: EngineSettings,
        timeout_s: float,
        n_failures: int = 5,
        sleep_idle_s: float = -1.0,
        on_loading: Callable[[Loading], None] = lambda _: None,
        on_restart: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(settings, timeout_s, n_failures, sleep_idle_s, on_loading, on_restart)
        self._entries: dict[int, Entry] = {}
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._loading_adapter = asyncio.Lock()
        self._leaving: set[int] = set()  # adapters that were freed
        self._n_ids = 0
        self._n_asking = 0  # who want an answer, also of an engine that has to wake up first
        self._has_completed = False  # a task, this engine
        self.board = Board()

    def submit(
        self,
        prompt: list[int],
        params: GenerationParams,
        media: MediaFile | None = None,
        visit: Visit | None = None,
    ) -> tuple[Task, TaskStream]:
        """Queue a task. It runs as soon as the engine can, also across restarts of the engine."""
        found, fd = (media.media[0], media.fd) if media is not None else ([], -1)
        client = visit.client if visit is not None else ANYBODY
        task = Task(
            id=self._new_id(),
            prompt=prompt,
            params=params,
            media=found,
            fd=fd,
            client=client.id,
            weight=client.weight,
            realm=client.realm,
        )
        return task, self._enter(task, media, visit)

    def embed(
        self,
        inputs: list[list[int]],
        lora: AdapterConfig = (),
        media: MediaFile | None = None,
        visit: Visit | None = None,
    ) -> TaskStream:
        """Have vectors made of token lists, also across restarts of the engine."""
        found, fd = (media.media, media.fd) if media is not None else ([], -1)
        client = visit.client if visit is not None else ANYBODY
        order = Embed(id=self._new_id(), inputs=inputs, lora=lora, media=found, fd=fd, client=client.id)
        return self._enter(order, media, visit)

    async def arrange(self, media: list[Medium]) -> list[list[int]]:
        """The tokens that media become; also across restarts of the engine."""
        for i in range(MAX_LOSSES):
            await self._wait_ready()
            try:
                arranged = await self._ask(Arrange(self._new_id(), media))
            except Unavailable:
                if i == MAX_LOSSES - 1:
                    raise
            else:
                assert isinstance(arranged, Arranged)
                return arranged.tokens
        raise AssertionError

    async def _wait_ready(self) -> None:
        """Until there is an engine, or never will be one."""
        while self.state in (EngineState.LOADING, EngineState.RESTARTING, EngineState.WAKING):
            self._check_up()
            await asyncio.sleep(READY_S)

    def _new_id(self) -> int:
        self._n_ids += 1
        return self._n_ids - 1

    def _enter(self, order: Task | Embed, media: MediaFile | None, visit: Visit | None) -> TaskStream:
        self._check_up()
        stream = TaskStream(on_close=lambda: self.cancel(order.id))
        entry = Entry(order, stream, media)
        self.board.enter(order, visit)
        try:
            if self.state is EngineState.READY and self._process:
                self._send(self._process, entry, order)
        except Unavailable:
            self.board.leave(order.id)
            raise
        self._entries[order.id] = entry
        self._wake()
        return stream

    async def act(self, action: SlotAction, fd: int = -1) -> SlotReport:
        """Have the engine do something with a slot, with the file `fd` where that is needed."""
        action = msgspec.structs.replace(action, id=self._new_id(), fd=fd)
        report = await self._ask(action, fd)
        assert isinstance(report, SlotReport)
        self.board.note_action(action, report)
        return report

    async def load_adapter(self, path: str) -> AdapterInfo:
        """Have the engine load a LoRA adapter, and every engine after it."""
        async with self._loading_adapter:
            order = LoadAdapter(id=self._new_id(), adapter=len(self._settings.lora), path=path)
            loaded = await self._ask(order)
            assert isinstance(loaded, AdapterLoaded)
            files = (*self._settings.lora, ScaledFile(path))
            self._settings = msgspec.structs.replace(self._settings, lora=files)
            return loaded.info

    def free_adapter(self, id: int) -> None:
        """Have the engine forget a LoRA adapter once no request needs it."""
        self._leaving.add(id)
        if self._process is not None:
            self._process.send(FreeAdapter(id))

    def _engine_settings(self) -> EngineSettings:
        """For a new engine: adapters that were freed are loaded only for tasks that still want them."""
        wanted = {id for entry in self._entries.values() for id, _ in entry.lora}
        gone = self._leaving - wanted
        files = [ScaledFile("") if id in gone else file for id, file in enumerate(self._settings.lora)]
        return msgspec.structs.replace(self._settings, lora=tuple(files))

    async def _ask(self, order: SlotAction | LoadAdapter | Arrange, fd: int = -1) -> Answer:
        """Send an order that this engine answers, or none; one that sleeps is woken first."""
        self._n_asking += 1
        try:
            self._wake()
            if self.state is EngineState.WAKING:
                await self._wait_ready()
            return await self._ask_now(order, fd)
        finally:
            self._n_asking -= 1

    async def _ask_now(self, order: SlotAction | LoadAdapter | Arrange, fd: int) -> Answer:
        self._check_up()
        process = self._process
        if self.state is not EngineState.READY or process is None:
            raise Unavailable(f"The engine is {self.state.value}")
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answers[order.id] = answer
        try:
            process.send(order, fd)
            return await answer
        except OSError:
            raise Unavailable("the file cannot be handed to the engine now") from None
        finally:
            del self._answers[order.id]
            if not answer.done() or answer.cancelled():
                process.send(Cancel(order.id))

    def cancel(self, task_id: int) -> None:
        if self._entries.pop(task_id, None) is not None:
            self.board.leave(task_id)
            if self._process:
                self._process.send(Cancel(task_id))

    @property
    def _n_orders(self) -> int:
        return self._n_ids

    @property
    def _is_busy(self) -> bool:
        return bool(self._entries or self._n_asking)

    def _on_lost(self, ready_s: float | None) -> Life:
        entries = list(self._entries.values())
        life = Life(ready_s, bool(suspects(entries) or self._answers), self._has_completed)
        self._has_completed = False
        for entry in blame(entries):
            message = f"the engine died {MAX_LOSSES} times while working on this request"
            self._end(entry, CorralError(message))
        self._fail_answers()
        return life

    def _on_sleep(self) -> None:
        assert self.info is not None, "there was an engine"
        self.board.reset(self.info.n_slots)

    def _on_end(self, error: Unavailable) -> None:
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)
        for entry in list(self._entries.values()):
            self.cancel(entry.order.id)
            entry.stream.fail(error)

    def _on_events(self, process: EngineProcess, events: list[Event]) -> None:
        for event in events:
            self._handle(event, process)

    def _handle(self, event: Event, process: EngineProcess) -> None:
        if isinstance(event, LifeEvent):
            self._handle_life(event, process)
        elif isinstance(event, Queue):
            self.board.line.sort(event.task_ids)
        elif isinstance(event, Answer) or event.task_id in self._answers:
            self._answer(event)
        else:
            self._deliver(event)

    def _on_ready(self, info: ModelInfo, process: EngineProcess) -> None:
        self._has_completed = False
        self.board.reset(info.n_slots)
        for entry in list(self._entries.values()):
            try:
                self._send(process, entry, entry.again())
            except Unavailable as error:
                self._end(entry, error)
        for id in self._leaving:
            process.send(FreeAdapter(id))

    def _send(self, process: EngineProcess, entry: Entry, order: Task | Embed) -> None:
        try:
            process.send(order, order.fd)
            entry.is_sent = True
        except ConnectionError:
            pass  # it is gone already; the next one gets the order
        except OSError:
            raise Unavailable("the media cannot be handed to the engine now") from None

    def _deliver(self, result: TaskResult) -> None:
        entry = self._entries.get(result.task_id)
        if entry is None:
            return
        self.board.note(result, entry.order)
        entry.is_admitted = True
        if isinstance(result, Tokens):
            entry.delivered += result.tokens
        if isinstance(result, LastResult | Failed):
            self._has_completed |= isinstance(result, LastResult)
            del self._entries[result.task_id]
        entry.stream.put(result)

    def _answer(self, result: Answer | TaskResult) -> None:
        answer = self._answers.get(result.task_id)
        if answer is None or answer.done():
            return
        if isinstance(result, Answer):
            answer.set_result(result)
        elif isinstance(result, Failed):
            answer.set_exception(CorralError.from_info(result.error))

    def _fail_answers(self) -> None:
        """What slots held is lost with the engine, and with it what actions were about."""
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(Unavailable("the engine was lost, and what its slots held"))

    def _end(self, entry: Entry, error: CorralError) -> None:
        del self._entries[entry.order.id]
        self.board.leave(entry.order.id)
        entry.stream.fail(error)
