"""Tells those who watch what goes on: the last minute at once, then twice a second what has changed.

On the event loop. What is told is made only while somebody watches, once for all of them; the engine is asked
for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from time import perf_counter
from typing import Any

from starlette.types import Scope

from corral.api.history import SAMPLE_S, History
from corral.api.lane import Segment
from corral.api.render.monitor import Moments, render_facts, render_prompts
from corral.api.service import Service
from corral.core.errors import Unavailable
from corral.core.visit import Client, Visit

MAX_WATCHERS = 32


class Monitor:
    """Mutable."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._history = History(service)
        self._moments = Moments()
        self._timer: asyncio.TimerHandle | None = None
        self._n_watchers = 0
        self._n_looks = 0
        self._n_told = 0  # requests
        self._facts: dict[str, Any] = {}  # as they were told last; empty: nobody watched then
        self._change: dict[str, Any] = {}
        self._looked = asyncio.Event()
        self._is_closed = False

    def start(self) -> None:
        """Watch the board from now on. Has to be called on the event loop; once more does no harm."""
        if self._timer is None and not self._is_closed:
            self._service.engine.board.watchers.append(self._history)
            self._look_soon()

    def close(self) -> None:
        """Those who watch are sent away at once, and nobody else is let in."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._looked.set()

    def end(self, scope: Scope, visit: Visit) -> None:
        """A request has ended."""
        self._history.end(scope, visit)

    def require_room(self) -> None:
        """Raises unless one more may watch."""
        if self._is_closed:
            raise Unavailable("The server is shutting down")
        if self._n_watchers >= MAX_WATCHERS:
            raise Unavailable(f"{MAX_WATCHERS} clients watch already")

    async def watch(self, reader: Client | None = None, limit: int = 0) -> AsyncGenerator[dict[str, Any]]:
        """Events, `limit` of them where that is not 0. `reader`: who is told how its own prompts begin.

        Whoever is too slow for a change gets everything again.
        """
        self.require_room()
        self.start()
        self._n_watchers += 1
        n_events, n_seen, prompts = 0, -1, None
        try:
            while not self._is_closed:
                event = self._change if n_events and n_seen == self._n_looks - 1 else self._whole()
                n_seen = self._n_looks
                if reader is not None and (found := render_prompts(self._service, reader)) != prompts:
                    prompts, event = found, {**event, "prompts": found}
                yield event
                n_events += 1
                if n_events == limit:
                    return
                if n_seen == self._n_looks:
                    await self._looked.wait()
        finally:
            self._n_watchers -= 1

    def look(self, now: float) -> None:
        """See how things are, and tell those who watch."""
        segments = self._history.look(now)
        self._n_looks += 1
        if self._n_watchers:
            self._change = self._changes(segments)
        else:
            self._facts = {}
        self._n_told = self._history.n_requests
        looked, self._looked = self._looked, asyncio.Event()
        looked.set()

    def _look_soon(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SAMPLE_S, self._look_again)

    def _look_again(self) -> None:
        self._look_soon()
        self.look(perf_counter())

    def _whole(self) -> dict[str, Any]:
        """Everything, as far as the others know it: the next change is one for all."""
        moments, history = self._moments, self._history
        now = moments.look()
        self._facts = self._facts or render_facts(self._service, history, moments)
        return {
            "type": "state",
            "now": now,
            **self._facts,
            "samples": [moments.sample(sample) for sample in history.samples],
            "segments": [moments.segment(segment) for segment in history.lanes],
            "requests": [moments.request(ended) for ended in history.requests],
        }

    def _changes(self, segments: Sequence[Segment]) -> dict[str, Any]:
        moments, history = self._moments, self._history
        now = moments.look()
        facts = render_facts(self._service, history, moments)
        changed = {name: fact for name, fact in facts.items() if fact != self._facts.get(name)}
        self._facts = facts
        return {
            "type": "change",
            "now": now,
            **changed,
            "samples": [moments.sample(history.samples[-1])],
            "segments": [moments.segment(segment) for segment in segments],
            "requests": [moments.request(each) for each in history.requests if each.number > self._n_told],
        }
