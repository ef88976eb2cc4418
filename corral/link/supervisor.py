"""Keeps an engine process alive and every task in it exactly once.

Signs of life are beats (a dead or stopped process) and the age of the running decode against its
predicted cost (wedged native code). When an engine is lost, a new one gets every task that had not
ended, with the tokens already delivered: the streams go on where they were.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from corral.core.errors import CorralError, Unavailable
from corral.core.media import Medium
from corral.core.modifier import AdapterConfig, AdapterInfo, ScaledFile
from corral.core.params import GenerationParams
from corral.core.result import (
    AdapterLoaded,
    Answer,
    Arranged,
    Beat,
    Event,
    Failed,
    LastResult,
    LoadFailed,
    Loading,
    ModelInfo,
    Ready,
    SlotReport,
    TaskResult,
    Tokens,
)
from corral.core.settings import EngineSettings
from corral.core.task import Arrange, Cancel, Embed, FreeAdapter, LoadAdapter, SlotAction, Task
from corral.link.board import Board
from corral.link.process import EngineProcess
from corral.link.stream import TaskStream

MAX_LOSSES = 3  # engines a task may take down with it
MAX_STARTS = 5  # failed starts in a row before giving up
WATCH_S = 0.5
READY_S = 0.05  # between two looks at whether an engine is ready
FLUSH_S = 60.0  # for an engine to write its caches to disk at the end
WEDGE_FACTOR = 50.0
WEDGE_UNKNOWN_S = 600.0


class MediaFile(Protocol):
    """Media of prompts, in a file that stays open."""

    @property
    def media(self) -> list[list[Medium]]:
        """Of every prompt."""
        ...

    @property
    def fd(self) -> int: ...


class EngineState(enum.Enum):
    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"


@dataclass(slots=True)
class _Entry:
    """Mutable: an order that has not ended, and what its client already has."""

    order: Task | Embed
    stream: TaskStream
    media: MediaFile | None = None  # is open for as long as it may be sent
    delivered: list[int] = field(default_factory=list)
    n_losses: int = 0
    is_admitted: bool = False

    @property
    def lora(self) -> AdapterConfig:
        return self.order.lora if isinstance(self.order, Embed) else self.order.params.lora

    def again(self) -> Task | Embed:
        """What another engine has to do."""
        if isinstance(self.order, Embed):
            return self.order
        return msgspec.structs.replace(self.order, resume=self.delivered)


class Supervisor:
    """The engine, as the front knows it: `submit` and results."""

    def __init__(
        self,
        settings: EngineSettings,
        timeout_s: float,
        on_loading: Callable[[float], None] = lambda _: None,
        on_restart: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        self._on_loading = on_loading
        self._on_restart = on_restart
        self._entries: dict[int, _Entry] = {}
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._loading_adapter = asyncio.Lock()
        self._leaving: set[int] = set()  # adapters that were freed
        self._ids = itertools.count()
        self._process: EngineProcess | None = None
        self._main: asyncio.Task[None] | None = None
        self._loaded: asyncio.Future[ModelInfo] = asyncio.get_running_loop().create_future()
        self._last_beat = time.monotonic()
        self._lost_because = ""
        self._is_closing = False
        self.state = EngineState.LOADING
        self.info: ModelInfo | None = None
        self.board = Board()

    async def start(self) -> ModelInfo:
        """Launch the engine; returns once the model is loaded, raises if that fails."""
        self._main = asyncio.create_task(self._run())
        either: set[asyncio.Future[Any]] = {self._main, self._loaded}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._loaded.done():
            self._main.result()  # raises what has ended it
        return await self._loaded

    async def close(self) -> None:
        self._is_closing = True
        has_files = self._settings.cache_disk or self._settings.lookup_cache_dynamic
        if self._process is not None and self.state is EngineState.READY and has_files:
            await self._process.stop(FLUSH_S)
        if self._main is not None:
            self._main.cancel()
            await asyncio.wait({self._main})
        self._fail_answers()
        for entry in list(self._entries.values()):
            entry.stream.fail(Unavailable("the server is shutting down"))

    def submit(
        self, prompt: list[int], params: GenerationParams, media: MediaFile | None = None
    ) -> tuple[Task, TaskStream]:
        """Queue a task. It runs as soon as the engine can, also across restarts of the engine."""
        found, fd = (media.media[0], media.fd) if media is not None else ([], -1)
        task = Task(id=next(self._ids), prompt=prompt, params=params, media=found, fd=fd)
        return task, self._enter(task, media)

    def embed(
        self, inputs: list[list[int]], lora: AdapterConfig = (), media: MediaFile | None = None
    ) -> TaskStream:
        """Have vectors made of token lists, also across restarts of the engine."""
        found, fd = (media.media, media.fd) if media is not None else ([], -1)
        return self._enter(Embed(id=next(self._ids), inputs=inputs, lora=lora, media=found, fd=fd), media)

    async def arrange(self, media: list[Medium]) -> list[list[int]]:
        """The tokens that media become; also across restarts of the engine."""
        for i in range(MAX_LOSSES):
            await self._wait_ready()
            try:
                arranged = await self._ask(Arrange(next(self._ids), media))
            except Unavailable:
                if i == MAX_LOSSES - 1:
                    raise
            else:
                assert isinstance(arranged, Arranged)
                return arranged.tokens
        raise AssertionError

    async def _wait_ready(self) -> None:
        """Until there is an engine, or never will be one."""
        while self.state in (EngineState.LOADING, EngineState.RESTARTING):
            await asyncio.sleep(READY_S)

    def _enter(self, order: Task | Embed, media: MediaFile | None) -> TaskStream:
        if self.state is EngineState.FAILED:
            raise Unavailable(f"The engine is down: {self._lost_because}")
        stream = TaskStream(on_close=lambda: self.cancel(order.id))
        entry = _Entry(order, stream, media)
        if self.state is EngineState.READY and self._process:
            self._send(self._process, order)
        self._entries[order.id] = entry
        self.board.enter(order)
        return stream

    async def act(self, action: SlotAction, fd: int = -1) -> SlotReport:
        """Have the engine do something with a slot, with the file `fd` where that is needed."""
        action = msgspec.structs.replace(action, id=next(self._ids), fd=fd)
        report = await self._ask(action, fd)
        assert isinstance(report, SlotReport)
        self.board.note_action(action, report)
        return report

    async def load_adapter(self, path: str) -> AdapterInfo:
        """Have the engine load a LoRA adapter, and every engine after it."""
        async with self._loading_adapter:
            order = LoadAdapter(id=next(self._ids), adapter=len(self._settings.lora), path=path)
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
        """Send an order that this engine answers, or none."""
        if self.state is not EngineState.READY or self._process is None:
            raise Unavailable(f"The engine is {self.state.value}")
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answers[order.id] = answer
        try:
            self._process.send(order, fd)
            return await answer
        except OSError:
            raise Unavailable("the file cannot be handed to the engine now") from None
        finally:
            del self._answers[order.id]
            if not answer.done() or answer.cancelled():
                self._process.send(Cancel(order.id))

    def cancel(self, task_id: int) -> None:
        if self._entries.pop(task_id, None) is not None:
            self.board.leave(task_id)
            if self._process:
                self._process.send(Cancel(task_id))

    async def _run(self) -> None:
        n_failed = 0
        while n_failed < MAX_STARTS:
            self._lost_because = ""
            was_ready = await self._run_once()
            if self._is_closing:
                return
            n_failed = 0 if was_ready else n_failed + 1
            if not self._loaded.done():
                self._loaded.set_exception(CorralError(self._lost_because))
                return
            self.state = EngineState.RESTARTING
            self._on_restart(self._lost_because)
            self._count_losses()
            self._fail_answers()
            await asyncio.sleep(min(30.0, 0.5 * 2**n_failed) if n_failed else 0)
        self.state = EngineState.FAILED
        for entry in list(self._entries.values()):
            self._end(entry, Unavailable(f"The engine is down: {self._lost_because}"))

    async def _run_once(self) -> bool:
        """One life of an engine process; returns whether it ever was ready."""
        process = self._process = EngineProcess(self._on_events)
        await process.spawn(self._engine_settings())
        self._last_beat = time.monotonic()
        watch = asyncio.create_task(self._watch(process))
        try:
            await process.wait()
        finally:
            watch.cancel()
            code = await asyncio.shield(process.close())
        self._lost_because = self._lost_because or f"the engine process ended with code {code}"
        return self.state is EngineState.READY

    async def _watch(self, process: EngineProcess) -> None:
        """Kill a process that stopped beating."""
        while True:
            slept_at = time.monotonic()
            await asyncio.sleep(WATCH_S)
            now = time.monotonic()
            if now - slept_at > 2 * WATCH_S:
                self._last_beat = now  # it was us who slept: give its beats time to be read
            elif now - self._last_beat > self._timeout_s:
                self._lose(process, f"no sign of life for {self._timeout_s:g} s")

    def _lose(self, process: EngineProcess, reason: str) -> None:
        self._lost_because = reason
        process.kill()

    def _on_events(self, process: EngineProcess, events: list[Event]) -> None:
        for event in events:
            self._handle(event, process)

    def _handle(self, event: Event, process: EngineProcess) -> None:
        if isinstance(event, Beat):
            self._last_beat = time.monotonic()
            if is_wedged(event, self._timeout_s):
                self._lose(process, f"a decode has been running for {event.decode_ms / 1e3:.0f} s")
        elif isinstance(event, Loading):
            self._on_loading(event.fraction)
        elif isinstance(event, LoadFailed):
            self._lost_because = event.message
        elif isinstance(event, Ready):
            # The next engine is the same, whatever has become of --lora-base and of the memory since.
            lora = self._settings.lora
            self._settings = msgspec.structs.replace(event.settings, lora=lora, lora_base="", fit="off")
            self._on_ready(event.info, process)
        elif isinstance(event, Answer) or event.task_id in self._answers:
            self._answer(event)
        else:
            self._deliver(event)

    def _on_ready(self, info: ModelInfo, process: EngineProcess) -> None:
        self.info = info
        self.state = EngineState.READY
        self.board.reset(info.n_slots)
        for entry in list(self._entries.values()):
            entry.is_admitted = False
            try:
                self._send(process, entry.again())
            except Unavailable as error:
                self._end(entry, error)
        for id in self._leaving:
            process.send(FreeAdapter(id))
        if not self._loaded.done():
            self._loaded.set_result(info)

    def _send(self, process: EngineProcess, order: Task | Embed) -> None:
        try:
            process.send(order, order.fd)
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

    def _count_losses(self) -> None:
        """A task that keeps taking engines down is given up, so that the others can go on."""
        for entry in list(self._entries.values()):
            entry.n_losses += entry.is_admitted
            if entry.n_losses >= MAX_LOSSES:
                self._end(
                    entry, CorralError(f"the engine died {MAX_LOSSES} times while working on this request")
                )

    def _end(self, entry: _Entry, error: CorralError) -> None:
        del self._entries[entry.order.id]
        self.board.leave(entry.order.id)
        entry.stream.fail(error)


def is_wedged(beat: Beat, timeout_s: float) -> bool:
    """Whether the decode under way is past anything its predicted cost could explain."""
    if beat.predicted_ms <= 0:
        return beat.decode_ms > WEDGE_UNKNOWN_S * 1e3
    return beat.decode_ms > max(6 * timeout_s * 1e3, WEDGE_FACTOR * beat.predicted_ms)
