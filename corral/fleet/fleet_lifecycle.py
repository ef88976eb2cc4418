"""Start and stop several engines together. The first one loads alone: it chooses what fits, and maps the
weights that the others share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from corral.core.errors import Unavailable
from corral.core.result import Loading, MemoryPlan, ModelInfo
from corral.core.settings import EngineSettings
from corral.fleet.share import ShareOut, like_first, needs_of_all
from corral.link.engine_state import EngineState
from corral.link.lifecycle import EngineLifecycle, shutting_down
from corral.link.owner import EngineOwner

T = TypeVar("T")


class FleetLifecycle:
    """`EngineLifecycle`'s interface for the server. An owner gives memory for all engines at once; within it
    they come and go as they like."""

    def __init__(
        self,
        settings: EngineSettings,
        lifecycles: Sequence[EngineLifecycle],
        share_out: ShareOut,
        n_started: int,
        is_elsewhere: bool = False,
    ) -> None:
        """`n_started`: the others begin unloaded. `is_elsewhere`: they use no memory of this machine."""
        self.settings = settings
        self._share_out = share_out
        self._n_started = n_started
        self._is_elsewhere = is_elsewhere
        self._lifecycles = lifecycles
        self._owner: EngineOwner | None = None
        self.is_up = True  # engines may load; without an owner always
        self._tasks: set[asyncio.Task[Any]] = set()
        self.loading = Loading()
        self.is_closing = False
        self.on_started: Callable[[], Coroutine[Any, Any, None]] | None = None

    async def start(self) -> ModelInfo:
        """Start the engines; returns once they have loaded the model, raises if one fails."""
        shares = self._share_out(self.settings, len(self._lifecycles))
        self._devices = [share.devices for share in shares]
        if self._owner is not None and self._is_elsewhere:
            await self._owner.admit(MemoryPlan({}))
        first, *others = self._lifecycles
        first.settings = shares[0]
        info = await self._start(first)
        for lifecycle, share in zip(others, shares[1:], strict=True):
            lifecycle.settings = like_first(first.settings, share)
        await asyncio.gather(*map(self._start, others[: self._n_started - 1]))
        for lifecycle in others[self._n_started - 1 :]:
            lifecycle.start_asleep(info)
        if self.on_started is not None:
            self.spawn(self.on_started())
        return msgspec.structs.replace(info, n_slots=info.n_slots * len(self._lifecycles))

    def owned_by(self, owner: EngineOwner) -> None:
        """Have another object decide when the engines may load; call it before `start`."""
        self._owner = owner
        for lifecycle in self._lifecycles:
            lifecycle.owned_by(_MemberOwner(self, lifecycle, owner), is_gated=False)
        # Only the first one asks, for all: the others get its settings as they are once it has loaded.
        self.settings = msgspec.structs.replace(self.settings, is_gated=not self._is_elsewhere)

    @property
    def pids(self) -> list[int]:
        """The processes of the engines on this machine."""
        return [pid for lifecycle in self._lifecycles for pid in lifecycle.pids]

    @property
    def may_retry(self) -> bool:
        """Whether an engine that has failed is started again after a while: as long as others serve."""
        return any(lifecycle.state is not EngineState.FAILED for lifecycle in self._lifecycles)

    async def opened(self) -> str:
        return await self._lifecycles[0].opened()

    def check_up(self) -> None:
        """Raise if there will be no engine to wait for."""
        if self.is_closing:
            raise shutting_down()
        if all(lifecycle.state is EngineState.FAILED for lifecycle in self._lifecycles):
            raise Unavailable(f"The engines are down: {self._lifecycles[0].down_because}")

    def load_again(self) -> None:
        """Let the engines start again that run without load, and those that have been woken."""
        self.is_up = True
        for index, lifecycle in enumerate(self._lifecycles):
            if index < self._n_started or lifecycle.state is EngineState.WAKING:
                lifecycle.load_again()

    def begin_unload(self) -> None:
        """Tell all engines to end, which have no work, also those that are about to start."""
        self.is_up = False
        for lifecycle in self._lifecycles:
            lifecycle.begin_unload()
            lifecycle.give_up_start()

    async def wait_unloaded(self) -> None:
        await asyncio.gather(*(lifecycle.wait_unloaded() for lifecycle in self._lifecycles))

    def rest(self) -> None:
        """Say that no engine runs, since none is needed."""
        if self._owner is not None:
            self._owner.on_idle()

    async def admit(self, planned: MemoryPlan) -> None:
        """Get memory for all engines. `planned`: by the first one."""
        assert self._owner is not None
        needs = needs_of_all(planned.needs, self._devices)
        await self._owner.admit(MemoryPlan(needs, planned.gpus))

    def dismiss(self) -> None:
        self.is_closing = True
        for lifecycle in self._lifecycles:
            lifecycle.dismiss()

    async def close(self) -> None:
        self.dismiss()
        await asyncio.gather(*(lifecycle.close() for lifecycle in self._lifecycles))
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something that continues without its caller, and is cancelled when the engines are closed."""
        return await asyncio.shield(self.spawn(work))

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """The same, without waiting for it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _start(self, lifecycle: EngineLifecycle) -> ModelInfo:
        return await self.run(lifecycle.start())


class _MemberOwner:
    """The owner of one engine: what concerns all of them is passed on."""

    def __init__(self, fleet: FleetLifecycle, lifecycle: EngineLifecycle, owner: EngineOwner) -> None:
        self._fleet = fleet
        self._lifecycle = lifecycle
        self._owner = owner
        self.on_idle = owner.on_idle
        self.on_change = owner.on_change
        self.admit = fleet.admit

    @property
    def may_retry(self) -> bool:
        return self._fleet.may_retry

    def on_wake(self) -> None:
        if self._fleet.is_up:
            self._lifecycle.load_again()
        else:
            self._owner.on_wake()
