"""What a host and the bridge of one front say to each other: messages in their order, files, an outbox."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from typing import IO, NamedTuple, Protocol

from corral.cluster.message import Exit, Frame, Frames, FromHost, Part, decode_to_host, read_parts
from corral.core.result import Failed, HandedOver, SlotReport
from corral.link.frame import decode_events, wrap_frame


class EngineLine(Protocol):
    """The way to the engine process."""

    def write(self, body: bytes) -> None: ...

    def pass_file(self, fd: int) -> None:
        """Send a descriptor, before the frame that refers to it."""
        ...


class Conversation:
    """Runs on the host's event loop."""

    def __init__(self, engine: EngineLine) -> None:
        self.outbox = Outbox()
        self._engine = engine
        self._early: dict[int, bytes] = {}  # messages that have overtaken others
        self._next = 0
        self._file: IO[bytes] | None = None  # of the next frame
        self._saves: dict[int, IO[bytes]] = {}

    def feed(self, n: int, message: bytes) -> None:
        """Take the n-th message."""
        self._early[n] = message
        while (due := self._early.pop(self._next, None)) is not None:
            self._next += 1
            self._apply(decode_to_host(due))

    def receive(self, body: bytes) -> None:
        """Pass on a frame of events."""
        if self._saves:
            self._take_saved(body)
        self.outbox.put(Frames(wrap_frame(body)))

    def close(self) -> None:
        for file in (self._file, *self._saves.values()):
            if file is not None:
                file.close()

    def _apply(self, message: Part | Frame) -> None:
        if isinstance(message, Part):
            self._file = self._file or _open_file()
            self._file.write(message.data)
            return
        if message.takes or message.saves:
            file = self._file or _open_file()
            file.flush()
            self._file = None
            self._engine.pass_file(file.fileno())
            if message.saves:
                self._saves[message.id] = file
            else:
                file.close()
        elif message.id in self._saves:
            self._saves.pop(message.id).close()
            self.outbox.put(Part(b"", message.id))
        self._engine.write(message.body)

    def _take_saved(self, body: bytes) -> None:
        """Send the file of every save that has ended, ahead of the event that says so."""
        for event in decode_events(body):
            if isinstance(event, (SlotReport, HandedOver, Failed)) and event.task_id in self._saves:
                self.outbox.put_file(event.task_id, self._saves.pop(event.task_id))


class Outbox:
    """What waits for the bridge. What waits together is sent together."""

    def __init__(self) -> None:
        self._items: list[FromHost | _File] = []
        self._some = asyncio.Event()

    def put(self, item: FromHost) -> None:
        self._items.append(item)
        self._some.set()

    def put_file(self, id: int, file: IO[bytes]) -> None:
        self._items.append(_File(id, file))
        self._some.set()

    async def __aiter__(self) -> AsyncIterator[list[FromHost]]:
        while True:
            items, self._items = self._items, []
            ready: list[FromHost] = []
            for item in items:
                if not isinstance(item, _File):
                    ready.append(item)
                    continue
                yield ready
                for part in item.parts():
                    yield [part]
                ready = []
            if ready:
                yield ready
                if isinstance(ready[-1], Exit):
                    return
            if not self._items:
                self._some.clear()
                await self._some.wait()


class _File(NamedTuple):
    """What the engine has saved for command `id`."""

    id: int
    file: IO[bytes]

    def parts(self) -> Iterator[Part]:
        with self.file:
            for data in read_parts(self.file.fileno()):
                yield Part(data, self.id)
        yield Part(b"", self.id)


def _open_file() -> IO[bytes]:
    return tempfile.TemporaryFile()
