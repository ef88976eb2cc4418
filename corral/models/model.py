"""One model of the catalog over all its loads: its engines, its front, and what it needs.

An unloaded model keeps its front, and with it sessions, adapters and counts; only its engine and tokenizer
processes are gone. `Residency` decides when. All models share one renderer.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import hashlib
import logging
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec
import psutil

from corral.core.catalog import CatalogModel
from corral.core.errors import CorralError, EngineDied, InsufficientStorage
from corral.core.result import Loading, MemoryPlan, ModelInfo, Stage
from corral.core.settings import EngineSettings, Settings
from corral.generate.background import cancel
from corral.generate.model_kind import Kind
from corral.generate.services import ServerServices, Services
from corral.link.client import EngineClient
from corral.link.engine_state import EngineState
from corral.link.renderer import Renderer
from corral.memory.plan import HOST, HOST_MARGIN
from corral.models.blocking_job import BlockingJob, ReportProgress
from corral.models.engines import open_engines
from corral.models.failure import Failure
from corral.models.front import Front
from corral.models.header import look_at_entry
from corral.models.residency import Phase, Residency, Stay
from corral.models.store import Locate
from corral.models.text_processes import start_tokenizer
from corral.telemetry.dispatcher import Telemetry
from corral.telemetry.ledger import Ledger
from corral.telemetry.loop_meter import LoopMeter

if TYPE_CHECKING:
    from corral.fleet.fleet import Fleet

_log = logging.getLogger("corral")
_STARTING = (EngineState.LOADING, EngineState.RESTARTING, EngineState.WAKING)


class ModelState(str, enum.Enum):
    UNLOADED = "unloaded"
    DOWNLOADING = "downloading"
    LOADING = "loading"
    LOADED = "loaded"
    SLEEPING = "sleeping"
    FAILED = "failed"


class Owner(Protocol):
    """The registry, as a model sees it."""

    def host_limit(self, model: ServedModel) -> int: ...

    def note_gpus(self, model: ServedModel, planned: MemoryPlan) -> None: ...

    def on_wake(self, model: ServedModel) -> None: ...

    def on_change(self, model: ServedModel) -> None: ...

    def on_phase(self, model: ServedModel) -> None: ...


@dataclass(slots=True)
class CatalogContext:
    """What all models share. `locate` downloads files; it blocks. `of_server`: set before the first load."""

    renderer: Renderer
    locate: Locate
    ledger: Ledger
    loop: LoopMeter
    of_server: ServerServices = field(init=False)


class ServedModel:
    """Mutable, on the event loop. An `EngineOwner` of its engines, and the `Effects` of its `Stay`."""

    may_retry = False  # the next request does that

    def __init__(
        self, entry: CatalogModel, registry: Owner, residency: Residency, around: CatalogContext
    ) -> None:
        self.entry = entry
        self._registry = registry
        self._residency = residency
        self._around = around
        self.stay = Stay(entry.name, self, entry.is_pinned, entry.groups)
        self.front: Front | None = None
        self._engine: EngineClient | Fleet | None = None
        self._is_open = False  # the front has the vocabulary
        self._early: Loading | None = None  # before there is an engine
        self._granted: asyncio.Future[None] | None = None  # it waits for memory
        self._loading: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self.failure: Failure | None = None
        self._was_idle = False  # when it was unloaded

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def info(self) -> ModelInfo | None:
        return self._engine.info if self._engine is not None else None

    @property
    def path(self) -> str:
        return self.entry.settings.engine.model

    @property
    def max_predict(self) -> int:
        return self.entry.settings.server.max_predict

    @property
    def services(self) -> Services | None:
        return self.front.services if self._is_open and self.front is not None else None

    @property
    def is_in_memory(self) -> bool:
        return self.state is ModelState.LOADED

    @property
    def kind(self) -> Kind:
        return look_at_entry(self.entry).kind

    @property
    def needs(self) -> Mapping[str, int]:
        """The memory that it needs, as planned last; empty: not yet known."""
        return self.stay.needs

    @property
    def is_granted(self) -> bool:
        """Whether its memory is counted as used."""
        return self.stay.is_granted

    @property
    def state(self) -> ModelState:
        match self.stay.phase:
            case Phase.UP:
                is_ready = self._engine is not None and self._engine.state is EngineState.READY
                return ModelState.LOADED if is_ready else ModelState.LOADING
            case Phase.OUT | Phase.LEAVING if not self.stay.waiting:
                if self.failure is not None:
                    return ModelState.FAILED
                return ModelState.SLEEPING if self._was_idle else ModelState.UNLOADED
        is_downloading = self._early is not None and self._early.stage is Stage.DOWNLOADING
        return ModelState.DOWNLOADING if is_downloading else ModelState.LOADING

    @property
    def loading(self) -> Loading:
        """The progress of the current start."""
        if self._early is not None:
            return self._early
        if self._engine is None or self._engine.state is EngineState.SLEEPING:
            return Loading()
        return self._engine.loading

    @property
    def is_open(self) -> bool:
        """Whether the front can answer what needs no engine."""
        return self._is_open

    @property
    def is_up(self) -> bool:
        """Whether a request would be let in now."""
        return self.stay.phase is Phase.UP and self._residency.is_open(self.stay)

    @property
    def is_working(self) -> bool:
        return self._engine is not None and (self._engine.is_busy or self._engine.state in _STARTING)

    @property
    def used_bytes(self) -> int:
        """The host memory that its engines really use now; what they map they have in common."""
        pids = self._engine.lifecycle.pids if self._engine is not None and self.is_granted else []
        used = [_used_by(pid) for pid in pids]
        return sum(own for own, _ in used) + max((mapped for _, mapped in used), default=0)

    def touch(self) -> None:
        self.stay.used_at = time.monotonic()

    def begin_load(self) -> None:
        self._loading = asyncio.create_task(self._load())

    def grant(self) -> None:
        if self._granted is not None and not self._granted.done():
            self._granted.set_result(None)

    def refuse(self, error: CorralError) -> None:
        if self._granted is not None and not self._granted.done():
            self._granted.set_exception(error)

    def begin_unload(self, was_idle: bool) -> None:
        self._was_idle = was_idle
        if self._loading is not None:
            self._loading.cancel()
        elif self._engine is not None:
            self._engine.lifecycle.begin_unload()
        self._leaving = asyncio.create_task(self._leave())

    def on_phase(self) -> None:
        self._registry.on_phase(self)

    async def _load(self) -> None:
        try:
            await self._bring_up()
        except CorralError as error:
            fields = {"model": self.name, "reason": error.message}
            _log.warning("model %(model)s cannot be loaded: %(reason)s", fields)
            await self._close()
            self._fail(error)
        except Exception as error:
            _log.exception("unexpected error while a model is loaded")
            await self._close()
            self._fail(CorralError(repr(error)))
        else:
            self._loading, self.failure = None, None
            self._residency.on_up(self.stay)

    async def _bring_up(self) -> None:
        engine = self._engine
        if engine is not None and self._is_open and engine.state is not EngineState.FAILED:
            await self._wait_for_memory(self.needs)
            engine.lifecycle.load_again()
        else:
            engine = await self._try_to_start()
            engine.lifecycle.check_up()

    async def _leave(self) -> None:
        if self._loading is not None:
            await asyncio.wait({self._loading})
            self._loading = None
            if not self._is_open:
                await self._close()
        elif self._engine is not None:
            await self._engine.lifecycle.wait_unloaded()
            _log.info("model %(model)s is unloaded until its next request", {"model": self.name})
        if self.front is not None:
            self.front.rest()
        self._leaving = None
        self._residency.on_gone(self.stay)

    async def _wait_for_memory(self, needs: Mapping[str, int]) -> None:
        self._granted = asyncio.get_running_loop().create_future()
        self._residency.plan(self.stay, needs)
        try:
            await self._granted
        except asyncio.CancelledError:
            self._residency.forget_plan(self.stay)
            raise

    async def _try_to_start(self) -> EngineClient | Fleet:
        """Start it, again if its process dies without saying why, but not for ever."""
        for n_left in range(self.entry.settings.server.engine_restarts, -1, -1):
            await self._close()
            try:
                return await self._start()
            except BaseException as error:
                await self._close()
                if not n_left or not isinstance(error, EngineDied):
                    raise
        raise AssertionError

    async def _start(self) -> EngineClient | Fleet:
        loop = asyncio.get_running_loop()

        def note(loading: Loading) -> None:
            loop.call_soon_threadsafe(self._note_early, loading)

        settings = await BlockingJob(self._find_files, note).run()
        self._early = None
        telemetry = Telemetry(self._around.ledger, self._around.loop)
        engine = self._engine = open_engines(
            self._limited(settings.engine), settings.server, telemetry, self._on_restart
        )
        engine.lifecycle.owned_by(self)
        starting = asyncio.create_task(engine.lifecycle.start())
        starting.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            front = await self._open_front(settings, engine, telemetry)
            await front.bring_up(engine.lifecycle, starting, lambda: settings.engine.model)
        finally:
            starting.cancel()
        self._is_open = True
        return engine

    async def _open_front(
        self, settings: Settings, engine: EngineClient | Fleet, telemetry: Telemetry
    ) -> Front:
        renderer, of_server = self._around.renderer, self._around.of_server
        tokenizer = start_tokenizer(settings.server)
        renderer.start()
        try:
            self.front = await asyncio.to_thread(
                Front, of_server, settings, engine, telemetry, tokenizer, renderer, _wake_later
            )
        except BaseException:
            await asyncio.to_thread(tokenizer.close)
            raise
        return self.front

    def dismiss(self) -> None:
        """Fail all its running tasks."""
        if self._engine is not None:
            self._engine.lifecycle.dismiss()

    async def close(self) -> None:
        """End its processes, and whatever was begun."""
        for task in (self._loading, self._leaving):
            if task is not None:
                await cancel(task)
        self._loading = self._leaving = None
        await self._close()

    async def _close(self) -> None:
        engine, front = self._engine, self.front
        if engine is not None:
            await engine.lifecycle.close()
        if front is not None:
            await front.close()
        self._engine, self.front, self._is_open, self._early = None, None, False, None

    async def admit(self, planned: MemoryPlan) -> None:
        self._registry.note_gpus(self, planned)
        await self._wait_for_memory(full_needs(planned.needs, self.entry.settings))

    def on_wake(self) -> None:
        self._registry.on_wake(self)

    def on_idle(self) -> None:
        self._residency.on_idle(self.stay)

    def on_change(self) -> None:
        engine = self._engine
        if self.stay.phase is Phase.UP and engine is not None and engine.state is EngineState.FAILED:
            self._fail(CorralError(f"the engine is down: {engine.down_because}"))
        self._registry.on_change(self)

    def _fail(self, error: CorralError) -> None:
        """Record that it could not be loaded, or that its engine was lost for good."""
        self._loading = None
        if not isinstance(error, InsufficientStorage):
            self.failure = Failure.after(self.failure, error)
            error = self.failure.answer(self.name)
        self._residency.on_failed(self.stay, error)

    def _find_files(self, report: ReportProgress) -> Settings:
        settings = self._around.locate(self.entry.settings, report)
        saves = settings.server.slot_save_path
        if not saves:
            return settings
        own = Path(saves) / folder_name(self.name)  # models have different states of the same name
        with contextlib.suppress(OSError):
            own.mkdir(mode=0o700, exist_ok=True)
        server = msgspec.structs.replace(settings.server, slot_save_path=os.fspath(own))
        return msgspec.structs.replace(settings, server=server)

    def _limited(self, engine: EngineSettings) -> EngineSettings:
        others = _beside_plan(self.entry.settings) - HOST_MARGIN
        limit = self._registry.host_limit(self)
        return msgspec.structs.replace(engine, host_limit=max(1, limit - others) if limit else 0)

    def _note_early(self, loading: Loading) -> None:
        self._early = loading
        self._registry.on_change(self)

    def _on_restart(self, reason: str) -> None:
        _log.warning("model %(model)s: engine lost (%(reason)s)", {"model": self.name, "reason": reason})


def _wake_later() -> None:
    """Only requests that need an engine now have one loaded: others may have to make room for it."""


def full_needs(planned: Mapping[str, int], settings: Settings) -> dict[str, int]:
    """Return the plan with what else its processes use on this machine."""
    return {**planned, HOST: planned.get(HOST, 0) + _beside_plan(settings)}


def _beside_plan(settings: Settings) -> int:
    """Return the bytes of the cache in host memory, and of the interpreters."""
    cache = 0 if settings.server.ray else max(0, settings.engine.cache_ram_mib) << 20
    return cache + settings.server.n_engines * HOST_MARGIN


def _used_by(pid: int) -> tuple[int, int]:
    """Return the bytes of a process that only it has, and those of files that it maps."""
    try:
        memory = psutil.Process(pid).memory_info()
    except psutil.Error:
        return 0, 0
    mapped = getattr(memory, "shared", 0)  # Linux
    return memory.rss - mapped, mapped


def folder_name(name: str) -> str:
    """Return a name for a directory that no other model has."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".")[:100]
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
