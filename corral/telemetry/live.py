"""The feed of the live monitor: the whole last minute first, then the changes twice a second.

Runs on the event loop. Events are rendered once for all clients, and only while one is connected; the
engine is never asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from time import perf_counter
from typing import Any

from corral.core.client import Client
from corral.core.errors import NotFound, Unavailable
from corral.telemetry.detail_json import render_detail
from corral.telemetry.history import SAMPLE_S, History
from corral.telemetry.live_json import Timebase, render_facts, render_prompts
from corral.telemetry.record import RequestRecord
from corral.telemetry.request_observer import Asked
from corral.telemetry.sources import ServerSource
from corral.telemetry.timeline import Span

MAX_WATCHERS = 32


class Monitor:
    def __init__(self, server: ServerSource, model_name: str) -> None:
        self._server = server
        self._model_name = model_name
        self._history = History(server)
        self._timebase = Timebase()
        self._timer: asyncio.TimerHandle | None = None
        self._n_watchers = 0
        self._n_samples = 0
        self._n_sent = 0  # requests
        self._facts: dict[str, Any] = {}  # as sent last; empty if no client was watching
        self._change: dict[str, Any] = {}
        self._sampled = asyncio.Event()
        self._is_closed = False

    def start(self) -> None:
        """Start sampling. Call it on the event loop; a second call changes nothing."""
        if self._timer is None and not self._is_closed:
            self._server.telemetry.observers.append(self._history)
            self._schedule()

    def close(self) -> None:
        """Disconnect all watchers at once, and refuse new ones."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._sampled.set()

    def on_request_end(self, asked: Asked, record: RequestRecord) -> None:
        self._history.on_request_end(asked, record)

    def detail(self, number: int, reader: Client) -> dict[str, Any]:
        """Return the phases of an ended request, and why it was slow and not cached. Raises NotFound for
        those of other clients, unless the reader is an administrator."""
        ended = self._history.find(number)
        if ended is None or not (reader.is_admin or ended.record.client.id == reader.id):
            raise NotFound("there is no such request among the last ones")
        return render_detail(ended, self._history.life, self._timebase)

    def check_capacity(self) -> None:
        if self._is_closed:
            raise Unavailable("The server is shutting down")
        if self._n_watchers >= MAX_WATCHERS:
            raise Unavailable(f"the limit of {MAX_WATCHERS} watching clients is reached")

    async def watch(self, reader: Client | None = None, limit: int = 0) -> AsyncGenerator[dict[str, Any]]:
        """Yield events, at most `limit` unless that is 0. `reader` also gets the first words of its prompts.

        A client that misses a change gets the whole state again.
        """
        self.check_capacity()
        self.start()
        self._n_watchers += 1
        n_events, n_seen, prompts = 0, -1, None
        try:
            while not self._is_closed:
                event = self._change if n_events and n_seen == self._n_samples - 1 else self._whole()
                n_seen = self._n_samples
                if reader is not None and (found := render_prompts(self._server, reader)) != prompts:
                    prompts, event = found, {**event, "prompts": found}
                yield event
                n_events += 1
                if n_events == limit:
                    return
                if n_seen == self._n_samples:
                    await self._sampled.wait()
        finally:
            self._n_watchers -= 1

    def take_sample(self, now: float) -> None:
        """Add a sample to the history, and wake the watchers."""
        spans = self._history.take_sample(now)
        self._n_samples += 1
        if self._n_watchers:
            self._change = self._changes(spans)
        else:
            self._facts = {}
        self._n_sent = self._history.n_requests
        sampled, self._sampled = self._sampled, asyncio.Event()
        sampled.set()

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SAMPLE_S, self._sample_again)

    def _sample_again(self) -> None:
        self._schedule()
        self.take_sample(perf_counter())

    def _whole(self) -> dict[str, Any]:
        """Return the whole state, with the facts that other watchers have, so that the next change fits
        all."""
        timebase, history = self._timebase, self._history
        now = timebase.now()
        self._facts = self._facts or self._render_facts()
        return {
            "type": "state",
            "now": now,
            **self._facts,
            "samples": [timebase.sample(sample) for sample in history.samples],
            "segments": [timebase.span(span) for span in history.timeline],
            "requests": [timebase.request(ended) for ended in history.requests],
        }

    def _changes(self, spans: Sequence[Span]) -> dict[str, Any]:
        timebase, history = self._timebase, self._history
        now = timebase.now()
        facts = self._render_facts()
        changed = {name: fact for name, fact in facts.items() if fact != self._facts.get(name)}
        self._facts = facts
        return {
            "type": "change",
            "now": now,
            **changed,
            "samples": [timebase.sample(history.samples[-1])],
            "segments": [timebase.span(span) for span in spans],
            "requests": [timebase.request(each) for each in history.requests if each.number > self._n_sent],
        }

    def _render_facts(self) -> dict[str, Any]:
        return render_facts(self._server, self._model_name, self._history, self._timebase)
