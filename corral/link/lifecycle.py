"""Keep an engine process alive: start and watch it, replace it when it is lost, unload it when idle.

Knows processes, times and whether the engine has work, but not the tasks. `RestartPolicy`,
`HeartbeatMonitor` and `Idle` decide.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from corral.core.errors import Conflict, CorralError, EngineDied, Unavailable
from corral.core.result import (
    Event,
    Heartbeat,
    LifeEvent,
    LoadFailed,
    Loading,
    MemoryPlan,
    ModelInfo,
    Opened,
    Placed,
    Tokens,
)
from corral.core.settings import EngineSettings
from corral.core.task import MemoryGranted, Stop
from corral.core.transcoding import OFF
from corral.link.engine_state import EngineState
from corral.link.heartbeat import LOOK_S, HeartbeatMonitor
from corral.link.idle import Idle
from corral.link.listener import EngineListener
from corral.link.owner import EngineOwner
from corral.link.process import EngineProcess, EngineTransport, OpenTransport
from corral.link.restart import RestartPolicy

FLUSH_S = 60.0  # for an engine to write its caches to disk on exit
RETRY_S = 60.0  # between two tries to start an engine that has failed
_log = logging.getLogger("corral")


_BUG = "internal error, see the server's log"
_DOWN = (EngineState.FAILED, EngineState.RESTARTING)


class EngineLifecycle:
    """The engine process over all its restarts, on the event loop."""

    def __init__(
        self,
        settings: EngineSettings,
        timeout_s: float,
        listener: EngineListener,
        n_failures: int,
        sleep_idle_s: float,
        on_loading: Callable[[Loading], None],
        on_restart: Callable[[str], None],
        open_transport: OpenTransport | None = None,
    ) -> None:
        """`n_failures`: how many engines in a row may fail without work. `sleep_idle_s`: negative:
        never unload. `open_transport`: another kind of engine than a process of this machine."""
        self.settings = settings
        self._listener = listener
        self._timeout_s = timeout_s
        self._sleep_idle_s = sleep_idle_s
        self._on_loading = on_loading
        self._on_restart = on_restart
        self._open_transport = open_transport
        self._policy = RestartPolicy(n_failures)
        self.process: EngineTransport | None = None
        self._main: asyncio.Task[None] | None = None
        self._loaded: asyncio.Future[ModelInfo] = asyncio.get_running_loop().create_future()
        self._opened: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._heartbeat, self._idle = HeartbeatMonitor(timeout_s), Idle(sleep_idle_s)
        self._ready_at: float | None = None  # this engine
        self._stopped_at: float | None = None  # when it was sent Stop
        self._woken = asyncio.Event()
        self._lost_because = ""  # the present engine
        self._down_because = ""  # the last one, until the next is ready
        self._is_closing = False
        self._owner: EngineOwner | None = None
        self._admitting: asyncio.Task[None] | None = None
        self._refusal: CorralError | None = None
        self._is_refused = False  # the engine itself said why it cannot load
        self._retry = asyncio.Event()
        self._may_pass = False  # the present engine is lost for a reason outside of it
        self._revival: asyncio.Future[None] | None = None  # somebody waits for the next try
        self._unloaded = asyncio.Event()
        self._state = EngineState.LOADING
        self.info: ModelInfo | None = None
        self.loading = Loading()  # of the current or last start
        self.n_restarts = 0  # engines that were lost and replaced
        self.place: Placed | None = None  # of an engine on another machine

    def owned_by(self, owner: EngineOwner, is_gated: bool = True) -> None:
        """Have another object decide when engines may load; call it before `start`. `is_gated`: it is asked
        for memory before the first load."""
        self._owner = owner
        self.settings = msgspec.structs.replace(self.settings, is_gated=is_gated)

    @property
    def state(self) -> EngineState:
        return self._state

    @state.setter
    def state(self, state: EngineState) -> None:
        self._state = state
        self._tell_owner()

    def _tell_owner(self) -> None:
        if self._owner is not None:
            self._owner.on_change()

    @property
    def pids(self) -> list[int]:
        """The process of the engine, if it runs on this machine."""
        pid = self.process.pid if self.process is not None else None
        return [] if pid is None or self.is_unloaded else [pid]

    @property
    def is_unloaded(self) -> bool:
        """Whether an idle engine was unloaded, and its process is gone."""
        return self._unloaded.is_set()

    @property
    def is_silent(self) -> bool:
        """Whether a running engine has sent no heartbeat for too long."""
        return self.state is EngineState.READY and self._heartbeat.is_silent

    @property
    def down_because(self) -> str:
        """Why the engine has failed permanently, or is being replaced; empty if neither."""
        return self._down_because if self.state in _DOWN else ""

    async def start(self) -> ModelInfo:
        """Start the engine. Returns once the model is loaded, raises if that fails."""
        self._main = asyncio.create_task(self._run())
        either: set[asyncio.Future[Any]] = {self._main, self._loaded}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._loaded.done():
            self._main.result()  # raises the reason
        return await self._loaded

    def start_asleep(self, info: ModelInfo) -> None:
        """Begin as if the engine had been unloaded; `info`: of an equal one."""
        self.info = info
        self._loaded.set_result(info)
        self._unloaded.set()
        self.state = EngineState.SLEEPING
        self._main = asyncio.create_task(self._run_when_woken())

    async def _run_when_woken(self) -> None:
        await self._woken.wait()
        await self._run()

    async def opened(self) -> str:
        """Wait until an engine has opened the model file without a crash; `start` reports if none does."""
        return await asyncio.shield(self._opened)

    def dismiss(self) -> None:
        """Fail all running tasks and refuse new ones."""
        self._is_closing = True
        self._listener.on_down(shutting_down())

    async def close(self) -> None:
        self.dismiss()
        has_files = self.settings.cache_disk or self.settings.lookup_cache_dynamic
        is_at_work = self.state is EngineState.READY and has_files
        if self.process is not None and (is_at_work or self._stopped_at is not None):
            await self.process.stop(FLUSH_S)
        if self._main is not None:
            self._main.cancel()
            await asyncio.wait({self._main})

    def check_up(self) -> None:
        """Raise if there will be no engine to wait for."""
        if self._is_closing:
            raise shutting_down()
        if self.state is EngineState.FAILED:
            raise Unavailable(f"The engine is down: {self._down_because}")

    def wake(self) -> None:
        """Load the engine again if it was unloaded when idle."""
        if self.state is EngineState.SLEEPING:
            self.state = EngineState.WAKING
            _log.info("loading the engine again")
            if self._owner is None:
                self.load_again()
            else:
                self._owner.on_wake()

    def load_again(self) -> None:
        """Let an engine that was unloaded start again."""
        if self.state is EngineState.SLEEPING:
            self.state = EngineState.WAKING
        self._woken.set()

    async def revive(self) -> None:
        """Try now to start an engine that has failed. Raises Conflict if it fails again."""
        if self.state is EngineState.FAILED:
            if self._main is None or self._main.done():
                raise Conflict(f"the engine is down: {self._down_because}")
            self._revival = self._revival or asyncio.get_running_loop().create_future()
            self._retry.set()
            await asyncio.shield(self._revival)

    async def unload(self) -> None:
        """Unload an idle engine until it is needed again; returns when its memory is free."""
        self.begin_unload()
        await self.wait_unloaded()

    def begin_unload(self) -> None:
        """Tell an idle engine to end."""
        if self.state is EngineState.READY and self.process is not None:
            self._fall_asleep(self.process)

    def give_up_start(self) -> None:
        """Unload an engine that has failed, or is not ready after it was lost or unloaded."""
        if self.state in (EngineState.RESTARTING, EngineState.WAKING, EngineState.FAILED):
            self._be_asleep()
            self._listener.on_sleep()
            self._retry.set()

    async def wait_unloaded(self) -> None:
        """Wait until an engine that is being unloaded is gone."""
        if self._stopped_at is not None:
            await self._unloaded.wait()

    def keep_idle(self, limit_s: float) -> None:
        """Unload the engine after another idle time than usual, unless a task comes before."""
        self._idle.keep(limit_s, self._listener.n_submitted)

    @property
    def unloads_in_s(self) -> float | None:
        """The time until an engine that stays idle is unloaded; None: never."""
        return self._idle.left_s(self._listener.n_submitted, self._listener.is_busy)

    async def _run(self) -> None:
        try:
            while await self._live_on():
                pass
        except Exception:
            if not self._loaded.done():
                raise
            _log.exception("unexpected error in the engine's lifecycle")
            self._lost_because = _BUG
            self._give_up()

    async def _live_on(self) -> bool:
        """The same as `_live`; an engine that ends in an unexpected error is replaced like a lost one."""
        try:
            return await self._live()
        except Exception:
            if not self._loaded.done() or self._is_closing:
                raise
            _log.exception("unexpected error in the engine's lifecycle")
            self._lost_because = _BUG
            return await self._recover()

    async def _live(self) -> bool:
        """Run one engine from start to end; return whether to start another."""
        self._lost_because = ""
        if self._stopped_at is None:
            await self._run_once()
        was_stopped, self._stopped_at = self._stopped_at is not None, None
        if was_stopped:
            self._unloaded.set()
            self._tell_owner()
        if self._is_closing:
            return False
        if was_stopped:
            await self._woken.wait()
            return True
        if not self._loaded.done():
            kind = CorralError if self._is_refused else EngineDied
            self._loaded.set_exception(self._refusal or kind(self._lost_because))
            return False
        return await self._recover()

    async def _run_once(self) -> None:
        process = self.process = (self._open_transport or EngineProcess)(self._on_events)
        self._may_pass, self.place = process.is_remote, None
        self._unloaded.clear()
        self._heartbeat, self._ready_at, self.loading = HeartbeatMonitor(self._timeout_s), None, Loading()
        try:
            await process.spawn(self._listener.engine_settings(self.settings))
            await self._outlive(process)
        except OSError as error:
            self._lost_because = f"the engine process cannot be started: {error.strerror or error}"
        finally:
            if self._admitting is not None:
                self._admitting.cancel()
            if self.state is EngineState.READY:
                self.state = EngineState.RESTARTING  # before the exit code is known, which takes a while
            code = await asyncio.shield(process.close())
        self._lost_because = self._lost_because or f"the engine process ended with {exit_name(code)}"

    async def _outlive(self, process: EngineTransport) -> None:
        """Wait until the process is gone; kill it if necessary."""
        while True:
            try:
                return await asyncio.wait_for(process.wait(), LOOK_S)
            except asyncio.TimeoutError:
                self._look(process)

    def _look(self, process: EngineTransport) -> None:
        if reason := self._heartbeat.check():
            self._lose(process, reason)
        elif self._stopped_at is not None:
            if self._ready_at is None or time.monotonic() - self._stopped_at > FLUSH_S:
                process.kill()
        elif self.state is EngineState.READY:
            is_over = self._idle.check(self._listener.n_submitted, self._listener.is_busy)
            if is_over and not self._is_closing:
                self._on_idle(process)

    def _on_idle(self, process: EngineTransport) -> None:
        if self._owner is None:
            self._fall_asleep(process)
        else:
            self._owner.on_idle()
        if self._stopped_at is not None:
            fields = {"seconds": self._idle.limit_s(self._listener.n_submitted)}
            _log.info("idle for %(seconds)g s: engine unloaded until the next request", fields)

    def _lose(self, process: EngineTransport, reason: str) -> None:
        self._lost_because = reason
        process.kill()

    async def _recover(self) -> bool:
        """Wait after a lost engine, as the policy says; return whether to start another."""
        self._down_because = self._lost_because
        life = self._listener.on_lost(None if self._ready_at is None else time.monotonic() - self._ready_at)
        delay_s = self._policy.end(replace(life, may_pass=self._may_pass))
        if delay_s is None:
            self._give_up()
            return self._may_retry and await self._wait_revived()
        self.state = EngineState.RESTARTING
        self.n_restarts += 1
        soon = f" in {delay_s:g} s" if delay_s else ""
        self._on_restart(f"{self._lost_because}; restart {self.n_restarts}{soon}")
        await self._wait_retry(delay_s)
        return True

    def _give_up(self) -> None:
        self._down_because = self._lost_because
        if self.state is not EngineState.FAILED:
            _log.error("the engine is down: %(reason)s", {"reason": self._lost_because})
        self.state = EngineState.FAILED
        self._listener.on_down(Unavailable(f"The engine is down: {self._lost_because}"))
        self._end_revival(Conflict(f"the engine cannot start: {self._lost_because}"))

    @property
    def _may_retry(self) -> bool:
        return self._owner is None or self._owner.may_retry

    async def _wait_revived(self) -> bool:
        """Wait until a failed engine is worth another try: the reason may be gone."""
        await self._wait_retry(RETRY_S)
        if self._stopped_at is not None or self._may_retry:
            return True
        self._end_revival(Conflict(f"the engine is down: {self._down_because}"))
        return False

    async def _wait_retry(self, delay_s: float) -> None:
        self._retry.clear()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._retry.wait(), delay_s)

    def _end_revival(self, error: Conflict | None = None) -> None:
        revival, self._revival = self._revival, None
        if revival is None or revival.done():
            return
        revival.set_exception(error) if error is not None else revival.set_result(None)

    def _fall_asleep(self, process: EngineTransport) -> None:
        """Unload the engine; requests wait for the next one."""
        self._be_asleep()
        process.send(Stop())
        self._listener.on_sleep()

    def _be_asleep(self) -> None:
        self.state = EngineState.SLEEPING
        self._stopped_at = time.monotonic()
        self._woken.clear()
        self._unloaded.clear()

    async def _admit(self, planned: MemoryPlan, process: EngineTransport) -> None:
        assert self._owner is not None
        try:
            await self._owner.admit(planned)
        except CorralError as error:
            self._refusal = error
            self._lose(process, error.message)
        else:
            process.send(MemoryGranted())

    def _on_events(self, process: EngineTransport, events: list[Event]) -> None:
        for event in events:
            if not isinstance(event, Tokens) and isinstance(event, LifeEvent):  # most are tokens
                self._on_life_event(event, process)
            else:
                self._listener.on_event(event)

    def _on_life_event(self, event: LifeEvent, process: EngineTransport) -> None:
        if isinstance(event, Heartbeat):
            if reason := self._heartbeat.on_beat(event):
                self._lose(process, reason)
        elif isinstance(event, Loading):
            self.loading = event
            self._tell_owner()
            if self.state is not EngineState.WAKING:
                self._on_loading(event)
        elif isinstance(event, Placed):
            self.place = event
        elif isinstance(event, MemoryPlan):
            self._admitting = asyncio.create_task(self._admit(event, process))
        elif isinstance(event, LoadFailed):
            if not self._lost_because:  # the first reason is the cause of the others
                self._lost_because, self._is_refused, self._may_pass = event.message, True, event.may_pass
        elif isinstance(event, Opened):
            if not self._opened.done():
                self._opened.set_result(event.path)
        elif self._stopped_at is None:
            # The next engine gets the same settings, whatever the file or the free memory are by then.
            self.settings = msgspec.structs.replace(
                event.settings,
                lora=self.settings.lora,
                lora_base="",
                transcode=OFF,
                fit="off",
                is_gated=False,
            )
            self._ready_at, self._idle = time.monotonic(), Idle(self._sleep_idle_s)
            self._down_because = ""
            self.info, self.state = event.info, EngineState.READY
            self._listener.on_ready(event.info)
            self._end_revival()
            if not self._loaded.done():
                self._loaded.set_result(event.info)


def exit_name(code: int | None) -> str:
    """Name an exit code or the signal that ended a process."""
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"code {code} ({signal.Signals(-code).name})"
    return f"code {code}"


def shutting_down() -> Unavailable:
    return Unavailable("the server is shutting down")
