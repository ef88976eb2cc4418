"""The log of an answer: its encoded events, written once, and read by its client and by those that come back.

compat: /v1/stream: a log has the id of the header `X-Conversation-Id`; offsets count bytes. Events of a
durable request have ids: `ID.OFFSET`, the offset after the event. For one event loop.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any

from starlette.types import Message

from corral.generate.disconnect import ClientGone
from corral.storage.budget import who_makes_room

MAX_BYTES = 4 << 20  # of one stream; older events are dropped
TOTAL_BYTES = 256 << 20  # of all keys, each with its share
MAX_LOGS = 1024  # the same
KEPT_S = 300  # after its end
_EVENTS = b"text/event-stream"
_BOUNDARY = b"\n\n"
_COMMENT_S = 1.0  # between two comments about the queue


class AnswerLog:
    """Mutable. `n_bytes`: all that were written; `n_kept`: those that can still be read. `keeps_all`: nothing
    is dropped before its end. `has_ids`: its clients get ids of events. `ping_s`: between two comments that a
    waiting client gets, which are not in the log; 0: none. `queued` says what clients are told while it waits
    for a slot; empty: it does not wait. `is_replaying`: what an earlier server has sent is not complete yet.
    `error`: what ended it."""

    def __init__(self, id: str, is_replaying: bool = False, keeps_all: bool = False) -> None:
        self.id = id
        self.has_ids = False
        self.ping_s = 0.0
        self.queued: Callable[[], str] = lambda: ""
        self.is_replaying = is_replaying
        self.error: BaseException | None = None
        self.started_at = int(time.time())
        self.ended_at = 0
        self.start: Message | None = None
        self.is_stream = False  # of events, as far as is known
        self.n_bytes = 0
        self.n_kept = 0
        self._keeps_all = keeps_all
        self._events: list[bytes] = []
        self._ends = array("Q")  # the offset after each of them
        self._n_dropped = 0  # before the first of them
        self._partial = bytearray()  # of the next one
        self._waiting: set[asyncio.Future[bool]] = set()  # readers
        self._task: asyncio.Task[None] | None = None

    def run(self, work: Coroutine[Any, Any, None], on_end: Callable[[], object] = lambda: None) -> None:
        """Have a task write the answer."""
        self._task = asyncio.create_task(work)
        self._task.add_done_callback(self._end)  # also of one that is cancelled before it begins
        self._task.add_done_callback(lambda _: on_end())

    async def stop(self) -> None:
        if self._task is not None:
            await asyncio.sleep(0)  # then the task has begun, and frees what it holds
            self._task.cancel()
            await asyncio.wait({self._task})

    async def send(self, message: Message) -> None:
        """Write what the application answers."""
        if message["type"] == "http.response.start":
            self.start = message
            self.is_stream = dict(message["headers"]).get(b"content-type", b"").startswith(_EVENTS)
        elif body := message.get("body", b""):
            self._write(body)
        self._wake()

    async def started(self) -> Message | None:
        """Wait for the start of the answer; None: there is none."""
        while self.start is None and not self.ended_at:
            await self._wait()
        return self.start

    def end_replay(self) -> None:
        self.is_replaying = False
        self._wake()

    async def has_offset(self, offset: int) -> bool:
        """Whether the log can be followed from there; waits for its start, and for what an earlier server has
        sent."""
        while not self.ended_at and (self.start is None or (self.is_replaying and self.n_bytes < offset)):
            await self._wait()
        return self.is_stream and self.n_bytes - self.n_kept <= offset <= self.n_bytes

    def follow(self, offset: int = 0, has_ids: bool = False) -> AsyncGenerator[bytes]:
        """Yield the bytes from an offset on, also those to come. Events have ids if the log has them, or if
        the client asks for them. Raises ClientGone if bytes are dropped before they are read."""
        n_lost = self.n_bytes - self.n_kept
        if offset < n_lost:
            return self._follow(-1)
        place = bisect_right(self._ends, offset)
        skipped = offset - (self._ends[place - 1] if place else n_lost)
        ids = None
        if self.has_ids or has_ids:
            ids = f"{self.id}.".encode() if self.has_ids else b""
        return self._follow(self._n_dropped + place, skipped, ids)

    def follow_events(self, number: int) -> AsyncGenerator[bytes]:
        """Yield the events from this number on, also those to come."""
        return self._follow(number)

    async def _follow(self, number: int, skipped: int = 0, ids: bytes | None = None) -> AsyncGenerator[bytes]:
        clock = asyncio.get_running_loop().time
        told_at = clock() - _COMMENT_S
        while number >= self._n_dropped:
            if number < (n_events := self._n_dropped + len(self._events)):
                yield self._join(number - self._n_dropped, skipped, ids)
                number, skipped = n_events, 0
            elif self.ended_at:
                return
            elif not (queued := self.queued()):
                if not await self._wait(self.ping_s):
                    yield b": \n\n"
            elif clock() - told_at >= _COMMENT_S:
                told_at = clock()
                yield f": {queued}\n\n".encode()
            else:
                await self._wait(max(0.01, told_at + _COMMENT_S - clock()))
        raise ClientGone

    def _join(self, place: int, skipped: int, ids: bytes | None) -> bytes:
        events = self._events[place:]
        if skipped:
            events[0] = events[0][skipped:]
        if ids is None or not self.is_stream:
            return b"".join(events)
        numbered = zip(self._ends[place:], events, strict=True)
        return b"".join(b"id: %s%d\n%s" % (ids, end, event) for end, event in numbered)

    def _write(self, body: bytes) -> None:
        """Add an event, once it is whole. What is no stream of events is added as it comes."""
        if self._partial or (self.is_stream and not body.endswith(_BOUNDARY)):
            self._partial += body
            if not self._partial.endswith(_BOUNDARY):
                return
            body, self._partial = bytes(self._partial), bytearray()
        self._add(body)

    def _add(self, event: bytes) -> None:
        self.n_bytes += len(event)
        self.n_kept += len(event)
        self._events.append(event)
        self._ends.append(self.n_bytes)
        if self.is_stream and not self._keeps_all:
            self._drop()

    def _drop(self) -> None:
        n = 0
        while self.n_kept - len(self._events[n]) >= MAX_BYTES:
            self.n_kept -= len(self._events[n])
            n += 1
        if n:
            del self._events[:n], self._ends[:n]
            self._n_dropped += n

    def _end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.error = task.exception()  # the application has logged it
        if self._partial:
            self._add(bytes(self._partial))
        self.ended_at = int(time.time())
        self._wake()

    def _wake(self) -> None:
        for reader in self._waiting:
            _resolve(reader, True)

    async def _wait(self, timeout_s: float = 0) -> bool:
        """Wait for news; False: there are none for a while. Readers wait for each event: a future costs less
        than `asyncio.wait_for`."""
        loop = asyncio.get_running_loop()
        reader: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_later(timeout_s, _resolve, reader, False) if timeout_s else None
        self._waiting.add(reader)
        try:
            return await reader
        finally:
            self._waiting.remove(reader)
            if timer is not None:
                timer.cancel()


def _resolve(reader: asyncio.Future[bool], has_news: bool) -> None:
    if not reader.done():
        reader.set_result(has_news)


class AnswerLogs:
    """Mutable: the logs that clients of all keys can come back to, oldest first."""

    def __init__(self) -> None:
        self._logs: dict[tuple[str, str], AnswerLog] = {}

    async def open(self, owner: str, id: str) -> AnswerLog:
        """Begin a log; the writer of one with the same id is stopped."""
        await self.remove(owner, id)
        self._make_room(owner)
        log = self._logs[owner, id] = AnswerLog(id)
        return log

    def restore(self, owner: str, id: str) -> AnswerLog:
        """Begin a log that an earlier server had."""
        log = self._logs[owner, id] = AnswerLog(id, is_replaying=True)
        return log

    def find(self, owner: str, id: str) -> AnswerLog | None:
        self._make_room()
        return self._logs.get((owner, id))

    def lookup(self, owner: str, id: str) -> Iterator[AnswerLog]:
        """Yield the log of an id, and those of its variants `id::model`."""
        self._make_room()
        for (key, other), log in self._logs.items():
            if key == owner and (other == id or other.startswith(f"{id}::")):
                yield log

    async def remove(self, owner: str, id: str) -> None:
        """Stop a stream and forget it, if there is one."""
        log = self._logs.pop((owner, id), None)
        if log is not None:
            await log.stop()

    def forget(self, owner: str, log: AnswerLog) -> None:
        """Forget a log that is not a stream; a newer one with its id stays."""
        if self._logs.get((owner, log.id)) is log:
            del self._logs[owner, log.id]

    async def close(self) -> None:
        for owner, id in list(self._logs):
            await self.remove(owner, id)

    def _make_room(self, opener: str | None = None) -> None:
        """Forget streams that ended long ago. If there are too many, also others that have ended, oldest
        first, of the keys that have most. `opener`: the key that begins one more."""
        now = time.time()
        for place, log in list(self._logs.items()):
            if log.ended_at and log.ended_at + KEPT_S < now:
                del self._logs[place]
        counts = Counter(owner for owner, _ in self._logs)
        if opener is not None:
            counts[opener] += 1
        self._keep_to(MAX_LOGS, counts, lambda _: 1)
        sizes = Counter[str]()
        for (owner, _), log in self._logs.items():
            sizes[owner] += log.n_kept
        self._keep_to(TOTAL_BYTES, sizes, lambda log: log.n_kept)

    def _keep_to(self, limit: int, held: Counter[str], size_of: Callable[[AnswerLog], int]) -> None:
        """Forget streams that have ended until the rest keeps to a limit."""
        if held.total() <= limit:
            return
        ended: dict[str, list[str]] = {}
        for (owner, id), log in self._logs.items():
            if log.ended_at:
                ended.setdefault(owner, []).append(id)
        while (greedy := who_makes_room(held, limit, ended)) is not None:
            held[greedy] -= size_of(self._logs.pop((greedy, ended[greedy].pop(0))))
            if not ended[greedy]:
                del ended[greedy]
