"""One model of the catalog over all its loads: its engine, its front, and what it needs.

An unloaded model keeps its front, and with it sessions, adapters and counts; only its engine and tokenizer
processes are gone. `Registry` decides when.
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
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import psutil
from starlette.applications import Starlette

from corral.api.state import AppState
from corral.core.catalog import CatalogModel
from corral.core.errors import CorralError, EngineDied, InsufficientStorage
from corral.core.result import Loading, ModelInfo, Planned, Stage
from corral.core.settings import EngineSettings, Settings
from corral.link.client import EngineClient
from corral.link.lifecycle import EngineState
from corral.memory.plan import HOST, HOST_MARGIN
from corral.server.errand import Errand, Tell
from corral.server.front import Front
from corral.telemetry.dispatcher import Telemetry

Locate = Callable[[Settings, Tell], Settings]

_log = logging.getLogger("corral")
_FIRST_RETRY_S, _LONGEST_RETRY_S = 5.0, 300.0


class ModelState(str, enum.Enum):
    UNLOADED = "unloaded"
    DOWNLOADING = "downloading"
    LOADING = "loading"
    LOADED = "loaded"
    SLEEPING = "sleeping"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a model could not be loaded, and when the next request may try again."""

    error: CorralError
    retry_at: float
    n: int

    @property
    def retry_after_s(self) -> float:
        return max(0.0, self.retry_at - time.monotonic())


class Admitter(Protocol):
    """The registry, as a model sees it."""

    def host_limit(self, model: ServedModel) -> int: ...

    async def admit(self, model: ServedModel, planned: Planned) -> None: ...

    def on_wake(self, model: ServedModel) -> None: ...

    def on_change(self, model: ServedModel) -> None: ...


class ModelStore(Protocol):
    """Downloaded models. All of it blocks, and raises CorralError."""

    def download(self, name: str, tell: Tell) -> CatalogModel: ...

    def remove(self, name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all models share. `locate` downloads files; it blocks."""

    hub: Starlette
    connections: Sized
    locate: Locate


class ServedModel:
    """Mutable, on the event loop. An `EngineOwner` of its engine."""

    def __init__(self, entry: CatalogModel, registry: Admitter, around: Surroundings) -> None:
        self.entry = entry
        self._registry = registry
        self._around = around
        self.front: Front | None = None
        self._engine: EngineClient | None = None
        self._is_open = False  # the front has the vocabulary
        self._early: Loading | None = None  # before there is an engine
        self.needs: Mapping[str, int] = {}  # as planned last; empty: not yet known
        self.is_granted = False  # memory is counted as used
        self.is_draining = False  # new requests wait until it was unloaded
        self.failure: Failure | None = None
        self.n_requests = 0  # that are served
        self.n_waiting = 0  # requests that wait until it is loaded
        self.is_ordered = False  # it is loaded also if no request waits for it
        self.used_at = 0.0
        self.was_unloaded = False  # by a command or to make room, not because it was idle
        self.loading_task: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def info(self) -> ModelInfo | None:
        return self._engine.info if self._engine is not None else None

    @property
    def state(self) -> ModelState:
        if self._engine is None or not self._is_open:
            if self.loading_task is None:
                return ModelState.FAILED if self.failure is not None else ModelState.UNLOADED
            is_early = self._early is not None and self._early.stage is Stage.DOWNLOADING
            return ModelState.DOWNLOADING if is_early else ModelState.LOADING
        match self._engine.state:
            case EngineState.FAILED:
                return ModelState.FAILED
            case EngineState.SLEEPING if self.loading_task is None:
                return ModelState.UNLOADED if self.was_unloaded else ModelState.SLEEPING
            case EngineState.READY:
                return ModelState.LOADED
        return ModelState.LOADING

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
        """Whether requests can be forwarded: there is an engine, or one that starts with permission."""
        if self._engine is None or not self._is_open or not self.is_granted or self.is_draining:
            return False
        return self._engine.state not in (EngineState.SLEEPING, EngineState.FAILED)

    @property
    def is_busy(self) -> bool:
        """Whether it has work, or is just starting to have some."""
        if self.state in (ModelState.LOADING, ModelState.DOWNLOADING) or self.n_requests:
            return True
        is_wanted = self.n_waiting > 0 and not self.is_draining
        return is_wanted or (self._engine is not None and self._engine.is_busy)

    @property
    def used_bytes(self) -> int:
        """The host memory that its engine really uses now."""
        process = self._engine.lifecycle.process if self._engine is not None and self.is_granted else None
        if process is None or process.pid is None:
            return 0
        try:
            return int(psutil.Process(process.pid).memory_info().rss)
        except psutil.Error:
            return 0

    def touch(self) -> None:
        self.used_at = time.monotonic()

    async def start(self) -> None:
        """Load it for the first time, or again after a failure. Raises CorralError."""
        try:
            await self._try_to_start()
        except CorralError as error:
            if not isinstance(error, InsufficientStorage):
                self._fail(error)
            raise
        self.failure = None
        self.was_unloaded = False

    async def _try_to_start(self) -> None:
        """Start it, again if its process dies without saying why, but not for ever."""
        for n_left in range(self.entry.settings.server.engine_restarts, -1, -1):
            await self.close()
            try:
                await self._start()
                return
            except BaseException as error:
                await self.close()
                if not n_left or not isinstance(error, EngineDied):
                    raise

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()

        def note(loading: Loading) -> None:
            loop.call_soon_threadsafe(self._note_early, loading)

        settings = await Errand(self._find_files, note).run()
        self._early = None
        hub: AppState = self._around.hub.state.api
        server, telemetry = settings.server, Telemetry(hub.telemetry.ledger, hub.telemetry.day)
        engine = self._engine = EngineClient(
            self._limited(settings.engine),
            server.engine_timeout_s,
            telemetry,
            server.engine_restarts,
            server.sleep_idle_s,
            on_restart=self._on_restart,
        )
        engine.lifecycle.owned_by(self)
        starting = asyncio.create_task(engine.lifecycle.start())
        starting.add_done_callback(lambda task: task.cancelled() or task.exception())
        reading: asyncio.Task[Any] | None = None
        try:
            front = self.front = await asyncio.to_thread(Front, settings, engine, telemetry, self._around.hub)
            front.start(self._around.connections)
            reading = asyncio.create_task(self._read_vocabulary(front, engine))
            info, vocab = await asyncio.gather(starting, reading)
        finally:
            for task in (starting, reading):
                if task is not None and not task.done():
                    task.cancel()
        await front.open(info, vocab, settings.engine.model)
        self._is_open = True

    async def unload(self) -> None:
        """Unload the engine and free its memory; the caller has checked that it is idle."""
        assert self._engine is not None
        self.was_unloaded = True
        await self._engine.lifecycle.unload()
        self.release()
        _log.info("model %(model)s is unloaded until its next request", {"model": self.name})

    def release(self) -> None:
        """Count its memory as free: its process is gone."""
        self.is_granted = False
        if self.front is not None:
            self.front.rest()

    async def settle(self) -> None:
        """Wait until an engine that is being unloaded is gone."""
        if self._engine is not None:
            await self._engine.lifecycle.wait_unloaded()

    def load_again(self) -> None:
        assert self._engine is not None
        self.was_unloaded = False
        self._engine.lifecycle.load_again()

    @property
    def is_unloaded(self) -> bool:
        return self._engine is not None and self._engine.lifecycle.is_unloaded

    def dismiss(self) -> None:
        """Fail all its running tasks."""
        if self._engine is not None:
            self._engine.lifecycle.dismiss()

    async def close(self) -> None:
        """End its processes."""
        engine, front = self._engine, self.front
        if engine is not None:
            await engine.lifecycle.close()
        if front is not None:
            front.monitor.close()
            await front.close()
        self._engine, self.front, self._is_open, self._early = None, None, False, None
        self.is_granted = False

    async def admit(self, planned: Planned) -> None:
        self.needs = full_needs(planned.needs, self.entry.settings)
        await self._registry.admit(self, planned)

    def on_wake(self) -> None:
        self._registry.on_wake(self)

    def on_change(self) -> None:
        self._registry.on_change(self)

    def fail_engine(self) -> None:
        """Record that the engine was lost for good."""
        if self._engine is not None:
            self._fail(CorralError(f"the engine is down: {self._engine.down_because}"))

    def _fail(self, error: CorralError) -> None:
        n = (self.failure.n if self.failure is not None else 0) + 1
        delay_s = min(_LONGEST_RETRY_S, _FIRST_RETRY_S * 2.0 ** (n - 1))
        self.failure = Failure(error, time.monotonic() + delay_s, n)

    def _find_files(self, tell: Tell) -> Settings:
        settings = self._around.locate(self.entry.settings, tell)
        saves = settings.server.slot_save_path
        if not saves:
            return settings
        own = Path(saves) / folder_name(self.name)  # models have different states of the same name
        with contextlib.suppress(OSError):
            own.mkdir(mode=0o700, exist_ok=True)
        server = msgspec.structs.replace(settings.server, slot_save_path=os.fspath(own))
        return msgspec.structs.replace(settings, server=server)

    def _limited(self, engine: EngineSettings) -> EngineSettings:
        others = max(0, engine.cache_ram_mib) << 20
        limit = self._registry.host_limit(self)
        return msgspec.structs.replace(engine, host_limit=max(1, limit - others) if limit else 0)

    def _note_early(self, loading: Loading) -> None:
        self._early = loading
        self._registry.on_change(self)

    def _on_restart(self, reason: str) -> None:
        _log.warning("model %(model)s: engine lost (%(reason)s)", {"model": self.name, "reason": reason})

    @staticmethod
    async def _read_vocabulary(front: Front, engine: EngineClient) -> Any:
        path = await engine.lifecycle.opened()
        return await asyncio.to_thread(front.read_vocabulary, path)


def full_needs(planned: Mapping[str, int], settings: Settings) -> dict[str, int]:
    """Return the plan with what else its processes use: the cache in host memory, and the interpreters."""
    cache = max(0, settings.engine.cache_ram_mib) << 20
    return {**planned, HOST: planned.get(HOST, 0) + cache + HOST_MARGIN}


def folder_name(name: str) -> str:
    """Return a name for a directory that no other model has."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".")[:100]
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
