"""What a host does with what the bridge of its front says, and says itself: commands, events, and files."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from concurrent.futures import Future
from typing import IO, Protocol

from corral.core.result import Failed, HandedOver, SlotReport
from corral.fleet.ray.message import Frame, Frames, FromHost, Part, Saved, decode_to_host, read_parts
from corral.link.frame import decode_events, wrap_frame


class EngineLine(Protocol):
    """The way to the engine process."""

    def write(self, body: bytes) -> None: ...

    def pass_file(self, fd: int) -> None:
        """Send a descriptor, before the frame that refers to it."""
        ...


class FrontLine(Protocol):
    """The way to the bridge: a `Wire`."""

    def send(self, message: object) -> None: ...

    def receive(self) -> bytes | None: ...


class BridgeChannel:
    """Whoever has something for the bridge waits until it has come. Safe from any thread."""

    def __init__(self, engine: EngineLine) -> None:
        self._engine = engine
        self._front: Future[FrontLine] = Future()
        self._file: IO[bytes] | None = None  # of the next frame
        self._lock = threading.Lock()
        self._saves: dict[int, IO[bytes]] = {}  # files that the engine writes; guarded

    def run(self, front: FrontLine) -> None:
        """Take what the bridge sends, until it is gone."""
        self._front.set_result(front)
        while (body := front.receive()) is not None:
            self._take(decode_to_host(body))

    def receive(self, body: bytes) -> None:
        """Pass on a frame of events, after the files that it speaks of."""
        if self._saves:
            self._send_saved(body)
        self.say(Frames(wrap_frame(body)))

    def say(self, message: FromHost) -> None:
        with contextlib.suppress(OSError):  # the bridge is gone, and this actor will be
            self._front.result().send(message)

    def _take(self, message: Part | Frame) -> None:
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
                with self._lock:
                    self._saves[message.id] = file
            else:
                file.close()
        elif (unfinished := self._pop(message.id)) is not None:
            unfinished.close()
            self.say(Saved(message.id))
        self._engine.write(message.body)

    def _send_saved(self, body: bytes) -> None:
        for event in decode_events(body):
            if not isinstance(event, (SlotReport, HandedOver, Failed)):
                continue
            file = self._pop(event.task_id)
            if file is None:
                continue
            with file:
                for data in read_parts(file.fileno()) if not isinstance(event, Failed) else ():
                    self.say(Saved(event.task_id, data))
            self.say(Saved(event.task_id))

    def _pop(self, id: int) -> IO[bytes] | None:
        with self._lock:
            return self._saves.pop(id, None)


def _open_file() -> IO[bytes]:
    return tempfile.TemporaryFile()
