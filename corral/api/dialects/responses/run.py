"""Responses in the background: they continue without their client, and keep all of their events."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from corral.api.dialects.responses.item import Item
from corral.api.dialects.responses.render import Events, ResponsesRenderer
from corral.api.dialects.responses.stored import StoredResponse
from corral.core.errors import CorralError

_log = logging.getLogger("corral")


class Run:
    """Mutable: one running response. `events`: those after the first ones."""

    def __init__(
        self,
        renderer: ResponsesRenderer,
        events: AsyncGenerator[dict[str, Any]],
        end: Callable[[CorralError | None], Awaitable[Events]],
        at_end: contextlib.ExitStack | None = None,
    ) -> None:
        """`end`: stores the response after its last event or an error, and returns what ends its stream."""
        self._end = end
        self._renderer = renderer
        self._at_end = at_end or contextlib.ExitStack()
        self._events = renderer.queue()
        self._is_ended = False
        self._news = asyncio.Event()
        self.task = asyncio.create_task(self._work(events))
        self.task.add_done_callback(lambda _: self._at_end.close())

    @property
    def stored(self) -> StoredResponse:
        return self._renderer.stored

    @property
    def response(self) -> Item:
        """Return the response so far."""
        return self._renderer.response

    @property
    def input(self) -> list[Item]:
        return self._renderer.stored.input

    async def follow(self, start: int = 0) -> AsyncGenerator[dict[str, Any]]:
        """Yield all events from this number on, past and future ones."""
        while True:
            news = self._news
            for event in self._events[start:]:
                start += 1
                yield event
            if self._is_ended and start >= len(self._events):
                return
            await news.wait()

    async def cancel(self) -> None:
        await asyncio.sleep(0)  # then the task has begun, and can end the response
        self.task.cancel()
        await asyncio.wait({self.task})

    async def _work(self, events: AsyncGenerator[dict[str, Any]]) -> None:
        error: CorralError | None = None
        try:
            async with contextlib.aclosing(events):
                async for event in events:
                    self._add([event])
        except asyncio.CancelledError:
            self._add(self._renderer.cancel())
        except CorralError as raised:
            error = raised
        except Exception as raised:
            _log.error("a response in the background failed", exc_info=raised)
            error = CorralError("internal error")
        try:
            self._add(await self._end(error))
        finally:
            self._is_ended = True
            self._add([])

    def _add(self, events: Events) -> None:
        self._events += events
        self._news.set()
        self._news = asyncio.Event()
