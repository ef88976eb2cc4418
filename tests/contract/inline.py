"""The whole HTTP side in one process: the real application and engine on the fake backend."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast

import httpx
import msgspec

from corral.api.error_shape import ErrorShape
from corral.api.router import ApiRoute
from corral.chat.jinja_template import ChatTemplate
from corral.core.errors import CorralError
from corral.core.media_item import MediaItem
from corral.core.modifier import AdapterInfo
from corral.core.result import (
    Answer,
    ControlOutcome,
    Decodes,
    Done,
    Embedded,
    Failed,
    Loading,
    Queue,
    SlotReport,
)
from corral.core.settings import EngineSettings, ServerSettings, Settings
from corral.core.task import (
    Cancel,
    Control,
    ControlVerb,
    Embed,
    FreeAdapter,
    LayoutMedia,
    LoadAdapter,
    SlotAction,
    Stop,
    Task,
)
from corral.engine.generation_engine import GenerationEngine
from corral.link.client import TaskT
from corral.link.engine_state import EngineState
from corral.link.observer import TaskObserver
from corral.link.pending_task import MediaFile
from corral.link.stream import TaskStream
from corral.models.chat import chat_settings
from corral.models.only_model import OnlyModel
from corral.server.app import create_app
from corral.server.record_middleware import RecordMiddleware
from corral.telemetry.dispatcher import Telemetry
from tests.unit.fake import FakeBackend

SECONDS = 120  # for what takes milliseconds on an idle machine
_compile = cache(ChatTemplate)  # nearly half of what a server takes to make


class InlineEngine:
    """The engine's interface without a second process: it steps on the event loop."""

    engines = ()

    def __init__(self, backend: FakeBackend, settings: EngineSettings) -> None:
        self.state = EngineState.READY
        self.info = backend.info()
        self.loading = Loading()
        self.telemetry = Telemetry()
        self.telemetry.on_slots(backend.n_seq)
        self.n_restarts = 0
        self.is_paused = False
        self.is_silent = False
        self.down_because = ""
        self.unloads_in_s: float | None = None
        self._engine = GenerationEngine(backend, settings, self._deliver)
        self._tasks: dict[int, tuple[TaskObserver, TaskStream]] = {}
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._ids = itertools.count()
        self.submitted: list[Task | Embed] = []
        self._n_adapters = 0
        self._stepper: asyncio.Task[None] | None = None

    def submit(
        self, task: TaskT, observer: TaskObserver, media: MediaFile | None = None
    ) -> tuple[TaskT, TaskStream]:
        id = next(self._ids)
        task = msgspec.structs.replace(task, id=id, fd=os.dup(media.fd) if media is not None else -1)
        stream = TaskStream(lambda: self.cancel(id))
        self._tasks[id] = (observer, stream)
        self.submitted.append(task)
        observer.on_submit(task)
        self._engine.handle(task)
        self._keep_stepping()
        return task, stream

    async def layout_media(self, media: list[MediaItem]) -> list[list[int]]:
        order = LayoutMedia(next(self._ids), media)
        answer = self._answers[order.id] = asyncio.get_running_loop().create_future()
        self._engine.handle(order)
        self._keep_stepping()
        return (await answer).tokens

    async def control(self, task_id: int, verb: ControlVerb, n_predict: int = -1) -> ControlOutcome:
        order = Control(id=next(self._ids), task_id=task_id, verb=verb, n_predict=n_predict)
        answer = self._answers[order.id] = asyncio.get_running_loop().create_future()
        self._engine.handle(order)
        self._keep_stepping()
        return (await answer).outcome

    async def load_adapter(self, path: str) -> AdapterInfo:
        order = LoadAdapter(id=next(self._ids), adapter=self._n_adapters, path=path)
        answer = self._answers[order.id] = asyncio.get_running_loop().create_future()
        self._engine.handle(order)
        info = (await answer).info
        self._n_adapters += 1
        return info

    async def load(self) -> None:
        self.state = EngineState.READY

    def wake(self) -> None:
        if self.state is EngineState.SLEEPING:
            self.state = EngineState.WAKING

    def keep_idle(self, limit_s: float) -> None:
        self.unloads_in_s = None if limit_s < 0 else limit_s
        if limit_s == 0:
            self.state = EngineState.SLEEPING

    def free_adapter(self, id: int) -> None:
        self._engine.handle(FreeAdapter(id))

    def _keep_stepping(self) -> None:
        if self._stepper is None or self._stepper.done():
            self._stepper = asyncio.create_task(self._step())

    async def act(self, action: SlotAction, fd: int = -1) -> SlotReport:
        action = msgspec.structs.replace(action, id=next(self._ids), fd=os.dup(fd) if fd >= 0 else -1)
        answer = self._answers[action.id] = asyncio.get_running_loop().create_future()
        try:
            self._engine.handle(action)
            self._keep_stepping()
            return await answer
        finally:
            del self._answers[action.id]
            self._engine.handle(Cancel(action.id))

    def cancel(self, task_id: int) -> None:
        pending = self._tasks.pop(task_id, None)
        if pending is not None:
            pending[0].on_end()
            self._engine.handle(Cancel(task_id))

    @property
    def n_tasks(self) -> int:
        return len(self._tasks)

    def step(self) -> None:
        self._engine.step()

    def stop(self) -> None:
        self._engine.handle(Stop())

    @property
    def has_work(self) -> bool:
        return self._engine.has_work

    @property
    def is_waiting(self) -> bool:
        return self._engine.is_waiting

    async def _step(self) -> None:
        try:
            while self._engine.has_work:
                if not self.is_paused:
                    self._engine.step()
                is_idle = self.is_paused or self._engine.is_waiting
                # Other threads have work to do: they need the interpreter.
                await asyncio.sleep(0.001 if is_idle else 0)
        except Exception as error:
            for _, stream in self._tasks.values():
                stream.fail(CorralError(repr(error)))
            raise

    def _deliver(self, events: list[Any]) -> None:
        for event in events:
            if isinstance(event, Queue):
                self.telemetry.on_queue(event.task_ids)
                continue
            if isinstance(event, Decodes):
                self.telemetry.on_decodes(event)
                continue
            if event.task_id in self._answers:
                self._answer(event)
                continue
            observer, stream = self._tasks[event.task_id]
            observer.on_result(event)
            if isinstance(event, Done | Embedded | Failed):
                del self._tasks[event.task_id]
                observer.on_end()
            stream.put(event)

    def _answer(self, event: Any) -> None:
        if isinstance(event, Answer):
            self._answers[event.task_id].set_result(event)
        else:
            self._answers[event.task_id].set_exception(CorralError.from_info(event.error))


class IdleProcess:
    """In place of tokenizer and renderer, which do nothing here."""

    is_ready = True
    n_restarts = 0

    def __init__(self) -> None:
        self.worker = self

    def close(self) -> None: ...


class Server:
    """An application and a client that talks to it."""

    def __init__(
        self,
        backend: FakeBackend | None = None,
        is_open: bool = True,
        settings: Settings | None = None,
        is_watched: bool = False,
        environ: Mapping[str, str] | None = None,
        routes: Sequence[ApiRoute] | None = None,
        **server,
    ) -> None:
        if settings is None:
            settings = Settings(engine=EngineSettings(model="fake.gguf"), server=ServerSettings(**server))
        self.backend = backend or FakeBackend()
        self.engine = InlineEngine(self.backend, settings.engine)
        telemetry, idle = self.engine.telemetry, cast(Any, IdleProcess())
        self.models = OnlyModel(settings, cast(Any, self.engine), telemetry, idle, idle)
        self.app = create_app(
            settings, self.models, telemetry.ledger, telemetry.loop, routes=routes, environ=environ or {}
        )
        self.services = self.models.services
        if is_open:
            vocab = self.backend.vocab
            chat = chat_settings(settings.server, {}, vocab, _compile)
            self.services.model.open(settings.engine.model, vocab, chat)
        if not is_watched:
            self.services.monitor.close()  # this client waits for the end of an answer, and that has none
        middleware = RecordMiddleware(self.app, self.app.observers)
        self.transport = httpx.ASGITransport(middleware, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=self.transport, base_url="http://corral")

    def error_shape(self, method: str, path: str) -> ErrorShape:
        """The format of this path's errors."""
        shape: ErrorShape = self.app.table.errors({"method": method, "path": path, "headers": []})
        return shape

    async def complete(self, **body) -> dict:
        response = await self.http.post("/completion", json=body)
        assert response.status_code == 200, response.text
        return response.json()


async def post(server: Server, path: str, status: int = 200, **options) -> dict:
    """The answer, or its error, which must have the shape of all errors."""
    response = await asyncio.wait_for(server.http.post(path, **options), SECONDS)
    assert response.status_code == status, response.text
    if status >= 400:
        error = response.json()["error"]
        assert (error["code"], set(error) >= {"code", "message", "type"}) == (status, True)
        return error
    return response.json()
