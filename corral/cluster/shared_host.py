"""The Ray actor of an engine that several fronts share. Whichever comes first has it started.

It has a name that the fronts know, belongs to none of them, and ends when no front is there for a while.
Fronts know each other only by the load: the queue is the engine's, which shares slots between API keys,
whatever front their requests come from.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator

import msgspec

from corral import __version__
from corral.cluster.engine_run import EngineRun, refuse
from corral.cluster.event_split import HOST, first_id, front_of, split
from corral.cluster.message import Exit, Lines, decode_place, encode
from corral.cluster.seat import Seat
from corral.core.result import Foreign, Heartbeat, LoadFailed, Loading, Opened, Ready
from corral.core.task import Busy, SlotAction, Stop, Verb
from corral.link.heartbeat import LOOK_S, HeartbeatMonitor

LEASE_S = 10.0  # without a sign of life of a front
_LINGER_S = 3.0  # without a front
_ORPHAN_S = 60.0  # before the first one
_FLUSH_S = 60.0  # for the engine to write its caches
_FAREWELL_S = 0.5  # for the last events to arrive
_SOONER = 0.75  # of the fronts' timeout: none should come back to an engine that is about to end
_TOLD = [str(kind.__struct_config__.tag) for kind in (Loading, Opened, Ready, LoadFailed)]
_BEAT, _READY = Heartbeat.__struct_config__.tag, Ready.__struct_config__.tag
_decode_beat = msgspec.msgpack.Decoder(Heartbeat).decode


class SharedHost(EngineRun):
    """An async actor; all methods run on its event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._seats: dict[int, Seat] = {}
        self._launching: asyncio.Task[bytes] | None = None
        self._told: dict[str, bytes] = {}  # the last event of each kind while it loads, for later fronts
        self._settling: dict[int, asyncio.Future[None]] = {}  # by front that has left
        self._answers: dict[int, asyncio.Future[None]] = {}  # by own command
        self._n_commands = self._n_attaching = 0
        self._left_at = time.monotonic()
        self._is_over = False
        self._orphan = threading.Timer(_ORPHAN_S, os._exit, (0,))
        self._orphan.daemon = True
        self._orphan.start()

    async def attach(self, front: int, version: str, body: bytes, n_cpus: int, timeout_s: float) -> bytes:
        """Let a front use the engine, which the first one starts; returns its `Place`, or nothing if the
        engine has ended."""
        self._orphan.cancel()
        if version != __version__:
            return refuse(f"it has Corral {__version__}, the front {version}")
        self._n_attaching += 1
        try:
            if self._launching is None:
                self._monitor = HeartbeatMonitor(_SOONER * timeout_s)
                self._launching = asyncio.create_task(self._launch(version, body, n_cpus))
            place = await asyncio.shield(self._launching)
            self._detach(front, 1)
            if (settling := self._settling.pop(front, None)) is not None:
                await settling
        finally:
            self._n_attaching -= 1
        if decode_place(place).refusal:
            return place
        if self._is_over:
            return b""
        seat = self._seats[front] = Seat(self, lambda: self._detach(front, 0))
        for tag in _TOLD:
            if tag in self._told:
                seat.receive(self._told[tag])
        return place

    async def feed(self, front: int, n: int, message: bytes) -> None:
        """Take the n-th message of a front."""
        if (seat := self._seats.get(front)) is not None:
            seat.heard_at = time.monotonic()
            seat.feed(n, message)

    async def events(self, front: int) -> AsyncIterator[bytes]:
        """Yield lists of what comes for a front, until it or the engine has ended."""
        if (seat := self._seats.get(front)) is None:
            yield encode([Exit(1)])
            return
        async for items in seat.outbox:
            yield encode(items)

    async def ping(self, front: int) -> None:
        if (seat := self._seats.get(front)) is not None:
            seat.heard_at = time.monotonic()

    async def leave(self, front: int) -> None:
        self._detach(front, 0)

    def on_frame(self, body: bytes) -> None:
        for front, part in split(body, self._seats, self).items():
            self._seats[front].receive(part)

    def on_other(self, tag: str, raw: msgspec.Raw) -> None:
        """Note signs of life, and what a front that comes later has missed."""
        if tag in _TOLD:
            self._told[tag] = encode([raw])
        elif tag == _BEAT and self._monitor.on_beat(_decode_beat(raw)):
            self.kill()

    def on_last(self, id: int) -> None:
        if (seat := self._seats.get(front_of(id))) is not None:
            seat.live.discard(id)
        elif (answer := self._answers.pop(id, None)) is not None and not answer.done():
            answer.set_result(None)

    def n_foreign(self, front: int) -> int:
        return sum(len(seat.live) for number, seat in self._seats.items() if number != front)

    def on_line(self, line: Lines) -> None:
        if (seat := next(iter(self._seats.values()), None)) is not None:  # one of them is enough
            seat.outbox.put(line)

    async def on_exit(self, code: int) -> None:
        self._is_over = True
        for answer in self._answers.values():
            if not answer.done():  # the front that waited for it may have gone
                answer.set_result(None)
        for seat in self._seats.values():
            seat.outbox.put(Exit(code))
        await asyncio.sleep(_FAREWELL_S)
        os._exit(0)

    async def _launch(self, version: str, body: bytes, n_cpus: int) -> bytes:
        place = await self.launch(version, body, n_cpus)
        self._is_over = bool(decode_place(place).refusal)
        self._watching = asyncio.create_task(self._watch())
        return place

    async def _watch(self) -> None:
        """End the engine when it is silent, fronts when they are, and the actor when none is left."""
        before = time.monotonic()
        while not self._is_over:
            await asyncio.sleep(LOOK_S)
            now = time.monotonic()
            away_s, before = now - before - LOOK_S, now
            if self._monitor.check():
                self.kill()
            for front, seat in list(self._seats.items()):
                seat.heard_at += away_s  # its signs may be queued
                if now - seat.heard_at > LEASE_S:
                    self._detach(front, 1)
                elif seat.has_news(n := self.n_foreign(front)):
                    seat.receive(encode([Foreign(n)]))
            if not (self._seats or self._n_attaching) and now - self._left_at > _LINGER_S:
                await self._stop()
        if self._process is None:
            await asyncio.sleep(_FAREWELL_S)
            os._exit(0)

    async def _stop(self) -> None:
        self._is_over = True
        if _READY in self._told:
            self.write(encode(Stop()))
        else:
            self.kill()  # it reads no commands yet
        await asyncio.sleep(_FLUSH_S)  # `on_exit` ends this
        os._exit(0)

    def _detach(self, front: int, code: int) -> None:
        seat = self._seats.pop(front, None)
        if seat is None:
            return
        seat.end(code)
        if seat.live:
            self._settling[front] = self._settle()
        self._left_at = time.monotonic()

    def _settle(self) -> asyncio.Future[None]:
        """Return what is done when all commands so far have had their effect: a front that comes back uses
        the same ids again."""
        id = first_id(HOST) + self._n_commands
        self._n_commands += 1
        self.write(encode(SlotAction(id=id, verb=Verb.TOKENS, slot=-1, busy=Busy.IGNORE)))
        future = self._answers[id] = asyncio.get_running_loop().create_future()
        return future
