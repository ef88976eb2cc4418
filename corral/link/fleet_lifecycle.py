"""Start and stop several engines together. The first one loads alone: it chooses what fits, and maps the
weights that the others share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from corral.core.errors import Unavailable
from corral.core.result import Loading, ModelInfo
from corral.core.settings import EngineSettings
from corral.link.engine_state import EngineState
from corral.link.lifecycle import EngineLifecycle, shutting_down
from corral.link.share import ShareOut, like_first

T = TypeVar("T")


class FleetLifecycle:
    """`EngineLifecycle`'s interface for the server."""

    def __init__(
        self,
        settings: EngineSettings,
        lifecycles: Sequence[EngineLifecycle],
        share_out: ShareOut,
        n_started: int,
    ) -> None:
        """`n_started`: the others begin unloaded."""
        self.settings = settings
        self._share_out = share_out
        self._n_started = n_started
        self._lifecycles = lifecycles
        self._tasks: set[asyncio.Task[Any]] = set()
        self.loading = Loading()
        self.is_closing = False
        self.on_started: Callable[[], Coroutine[Any, Any, None]] | None = None

    async def start(self) -> ModelInfo:
        """Start the engines; returns once they have loaded the model, raises if one fails."""
        shares = self._share_out(self.settings, len(self._lifecycles))
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

    async def opened(self) -> str:
        return await self._lifecycles[0].opened()

    def check_up(self) -> None:
        """Raise if there will be no engine to wait for."""
        if self.is_closing:
            raise shutting_down()
        if all(lifecycle.state is EngineState.FAILED for lifecycle in self._lifecycles):
            raise Unavailable(f"The engines are down: {self._lifecycles[0].down_because}")

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
