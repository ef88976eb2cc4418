"""Streams that outlive their connection: what was sent is kept for a while, and more clients can follow.

compat: /v1/stream: a session has the id of the header `X-Conversation-Id`; offsets count bytes. Events of a
durable request have ids: `ID.OFFSET`, the offset after the event. For one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any

from starlette.types import Message

from corral.api.disconnect import ClientGone
from corral.storage.budget import who_makes_room

MAX_BYTES = 4 << 20  # of one stream; older bytes are dropped
TOTAL_BYTES = 256 << 20  # of all keys, each with its share
MAX_SESSIONS = 1024  # the same
KEPT_S = 300  # after its end
_EVENTS = b"text/event-stream"
_BOUNDARY = b"\n\n"
_ASIDE_S = 1.0  # between two comments about the queue


class _Aside(bytes):
    """A comment that only those get who wait at the moment: no part of the stream."""


_PING = _Aside(b": \n\n")


class StreamSession:
    """Mutable: one stream. `n_dropped`: bytes at its beginning that are not kept. `has_ids`: its clients get
    ids of events. `ping_s`: between two comments that a waiting client gets, which the stream itself has not;
    0: none. `queued` says what its clients are told while it waits for a slot; empty: it does not wait.
    `is_replaying`: what an earlier server has sent is not complete yet. `error`: what ended it."""

    def __init__(self, id: str, is_replaying: bool = False) -> None:
        self.id = id
        self.has_ids = False
        self.ping_s = 0.0
        self.queued: Callable[[], str] = lambda: ""
        self.is_replaying = is_replaying
        self.error: BaseException | None = None
        self.started_at = int(time.time())
        self.ended_at = 0
        self.n_dropped = 0
        self.start: Message | None = None
        self._bytes = bytearray()
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_stream(self) -> bool:
        """Whether it is an event stream, as far as is known."""
        headers = dict(self.start["headers"]) if self.start is not None else {}
        return bool(headers.get(b"content-type", b"").startswith(_EVENTS))

    @property
    def n_bytes(self) -> int:
        return self.n_dropped + len(self._bytes)

    @property
    def n_kept(self) -> int:
        return len(self._bytes)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.create_task(work)
        self._task.add_done_callback(self._end)  # also of one that is cancelled before it begins

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def send(self, message: Message) -> None:
        """Take in what the application answers."""
        if message["type"] == "http.response.start":
            self.start = message
        self._bytes += message.get("body", b"")
        n_over = len(self._bytes) - MAX_BYTES
        if n_over > 0 and self.is_stream:
            del self._bytes[:n_over]
            self.n_dropped += n_over
        self._wake()

    async def started(self) -> Message | None:
        """Wait for the start of the answer; None: there is none."""
        while self.start is None and not self.ended_at:
            await self._news.wait()
        return self.start

    def end_replay(self) -> None:
        self.is_replaying = False
        self._wake()

    async def has_offset(self, offset: int) -> bool:
        """Whether the stream can be followed from there; waits for its start, and for what an earlier server
        has sent."""
        while not self.ended_at and (self.start is None or (self.is_replaying and self.n_bytes < offset)):
            await self._news.wait()
        return self.is_stream and self.n_dropped <= offset <= self.n_bytes

    def events(self, offset: int, has_ids: bool = False) -> AsyncGenerator[bytes]:
        """Yield the bytes from an offset on, with ids if the stream has them or the client asks for them."""
        parts = self.follow(offset)
        if not (self.has_ids or has_ids):
            return parts
        return number_events(parts, offset, f"{self.id}." if self.has_ids else "")

    async def follow(self, offset: int) -> AsyncGenerator[bytes]:
        """Yield the bytes from an offset on, also those to come. Raises ClientGone if they are dropped
        before."""
        is_between = True  # two events
        clock = asyncio.get_running_loop().time
        told_at = clock() - _ASIDE_S
        while offset >= self.n_dropped:
            news, queued = self._news, self.queued()
            part = bytes(self._bytes[offset - self.n_dropped :])
            if part:
                offset, is_between = offset + len(part), part.endswith(_BOUNDARY)
                yield part
            elif self.ended_at:
                return
            elif queued and is_between and clock() - told_at >= _ASIDE_S:
                told_at = clock()
                yield _Aside(f": {queued}\n\n".encode())
            elif queued:
                await _wait(news, max(0.01, told_at + _ASIDE_S - clock()))
            elif not await _wait(news, self.ping_s) and is_between:
                yield _PING
        raise ClientGone

    def _end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.error = task.exception()  # the application has logged it
        self.ended_at = int(time.time())
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


async def _wait(news: asyncio.Event, timeout_s: float) -> bool:
    """Wait for news; False: there are none for a while."""
    try:
        await asyncio.wait_for(news.wait(), timeout_s or None)
    except asyncio.TimeoutError:
        return False
    return True


async def number_events(parts: AsyncGenerator[bytes], offset: int, prefix: str = "") -> AsyncGenerator[bytes]:
    """Yield whole events with ids: the offset after each, at which `follow` continues."""
    held = b""
    async for part in parts:
        if isinstance(part, _Aside):
            yield part
            continue
        *events, held = (held + part).split(_BOUNDARY)
        for event in events:
            offset += len(event) + len(_BOUNDARY)
            yield b"id: %s%d\n" % (prefix.encode(), offset) + event + _BOUNDARY


class StreamSessions:
    """Mutable: the sessions of all keys, oldest first."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, str], StreamSession] = {}

    async def open(self, owner: str, id: str) -> StreamSession:
        """Begin a session; one with the same id is stopped."""
        await self.remove(owner, id)
        self._make_room(owner)
        session = self._sessions[owner, id] = StreamSession(id)
        return session

    def restore(self, owner: str, id: str) -> StreamSession:
        """Begin a session that an earlier server had."""
        session = self._sessions[owner, id] = StreamSession(id, is_replaying=True)
        return session

    def find(self, owner: str, id: str) -> StreamSession | None:
        self._make_room()
        return self._sessions.get((owner, id))

    def lookup(self, owner: str, id: str) -> Iterator[StreamSession]:
        """Yield the session of an id, and those of its variants `id::model`."""
        self._make_room()
        for (key, other), session in self._sessions.items():
            if key == owner and (other == id or other.startswith(f"{id}::")):
                yield session

    async def remove(self, owner: str, id: str) -> None:
        """Stop a stream and forget it, if there is one."""
        session = self._sessions.pop((owner, id), None)
        if session is not None:
            await session.stop()

    def forget(self, owner: str, session: StreamSession) -> None:
        """Forget a session that is not a stream; a newer one with its id stays."""
        if self._sessions.get((owner, session.id)) is session:
            del self._sessions[owner, session.id]

    async def close(self) -> None:
        for owner, id in list(self._sessions):
            await self.remove(owner, id)

    def _make_room(self, opener: str | None = None) -> None:
        """Forget streams that ended long ago. If there are too many, also others that have ended, oldest
        first, of the keys that have most. `opener`: the key that begins one more."""
        now = time.time()
        for place, session in list(self._sessions.items()):
            if session.ended_at and session.ended_at + KEPT_S < now:
                del self._sessions[place]
        counts = Counter(owner for owner, _ in self._sessions)
        if opener is not None:
            counts[opener] += 1
        self._keep_to(MAX_SESSIONS, counts, lambda _: 1)
        sizes = Counter[str]()
        for (owner, _), session in self._sessions.items():
            sizes[owner] += session.n_kept
        self._keep_to(TOTAL_BYTES, sizes, lambda session: session.n_kept)

    def _keep_to(self, limit: int, held: Counter[str], size_of: Callable[[StreamSession], int]) -> None:
        """Forget streams that have ended until the rest keeps to a limit."""
        if held.total() <= limit:
            return
        ended: dict[str, list[str]] = {}
        for (owner, id), session in self._sessions.items():
            if session.ended_at:
                ended.setdefault(owner, []).append(id)
        while (greedy := who_makes_room(held, limit, ended)) is not None:
            held[greedy] -= size_of(self._sessions.pop((greedy, ended[greedy].pop(0))))
            if not ended[greedy]:
                del ended[greedy]
