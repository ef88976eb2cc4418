"""What a host and the bridge of one front say to each other: messages in their order, files, an outbox."""

from __future__ import annotations

import os
import queue
import tempfile
import threading
from collections.abc import Iterator
from typing import IO, Protocol

from corral.cluster.message import PART_BYTES, Exit, Frame, Frames, FromHost, Part, Saved, decode_to_host
from corral.core.result import Failed, HandedOver, SlotReport
from corral.link.frame import decode_events, wrap_frame


class EngineLine(Protocol):
    """The way to the engine process."""

    def write(self, body: bytes) -> None: ...

    def pass_file(self, fd: int) -> None:
        """Send a descriptor, before the frame that refers to it."""
        ...


class Conversation:
    """Safe from any thread."""

    def __init__(self, engine: EngineLine) -> None:
        self.outbox: queue.SimpleQueue[FromHost] = queue.SimpleQueue()
        self._engine = engine
        self._lock = threading.Lock()  # guards everything below
        self._early: dict[int, bytes] = {}  # messages that have overtaken others
        self._next = 0
        self._file: IO[bytes] | None = None  # of the next frame
        self._saves: dict[int, IO[bytes]] = {}  # the engine writes them
        self._saved: dict[int, IO[bytes]] = {}  # the bridge reads them

    def feed(self, n: int, message: bytes) -> None:
        """Take the n-th message."""
        with self._lock:
            self._early[n] = message
            while (due := self._early.pop(self._next, None)) is not None:
                self._next += 1
                self._apply(decode_to_host(due))

    def receive(self, body: bytes) -> None:
        """Pass on a frame of events."""
        with self._lock:
            if self._saves:
                self._take_saved(body)
        self.outbox.put(Frames(wrap_frame(body)))

    def read(self, id: int, at: int) -> bytes:
        """Return a part of a saved file, which is forgotten at its end; empty there, or without one."""
        with self._lock:
            file = self._saved.get(id)
            data = os.pread(file.fileno(), PART_BYTES, at) if file is not None else b""
            if file is not None and not data:
                self._saved.pop(id).close()
            return data

    def say(self) -> Iterator[list[FromHost]]:
        """Yield what is for the bridge, until the engine has ended. What waits together is sent together."""
        items: list[FromHost] = []
        while not (items and isinstance(items[-1], Exit)):
            items = [self.outbox.get()]
            while not self.outbox.empty():
                items.append(self.outbox.get())
            yield items

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
            self.outbox.put(Saved(message.id))
        self._engine.write(message.body)

    def _take_saved(self, body: bytes) -> None:
        """Announce the file of every save that has ended, ahead of the event that says so."""
        for event in decode_events(body):
            if isinstance(event, (SlotReport, HandedOver, Failed)) and event.task_id in self._saves:
                self._saved[event.task_id] = self._saves.pop(event.task_id)
                self.outbox.put(Saved(event.task_id))


def _open_file() -> IO[bytes]:
    return tempfile.TemporaryFile()
