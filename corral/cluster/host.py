"""The Ray actor of an engine: starts the usual engine process on its node, and relays frames, files and log.

Not a Ray Serve replica: a front and an engine have one long conversation in both directions, and a Serve
handle sends every call to any replica (`choose_replica` reserves one for a single call).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from typing import IO, NamedTuple

from corral import __version__
from corral.cluster.message import (
    Exit,
    Frame,
    Frames,
    FromHost,
    Lines,
    Part,
    Place,
    decode_to_host,
    encode,
    read_parts,
)
from corral.cluster.node_share import missing_files, with_threads
from corral.core.result import Failed, SlotReport
from corral.core.settings import EngineSettings
from corral.link.frame import FrameAssembler, decode_events, decode_settings, encode_frame, wrap_frame
from corral.link.process import spawn_module

_ENGINE = "corral.link.worker"
_LOG = "corral.engine"


class EngineHost(asyncio.Protocol):
    """An async actor; all methods run on its event loop, in the order in which they were called."""

    def __init__(self) -> None:
        self._frames = FrameAssembler()
        self._outbox = _Outbox()
        self._early: dict[int, bytes] = {}  # messages that have overtaken others
        self._next = 0
        self._file: IO[bytes] | None = None  # of the next frame
        self._saves: dict[int, IO[bytes]] = {}
        self._settings: EngineSettings | None = None

    async def start(self, version: str, body: bytes, n_cpus: int) -> bytes:
        """Start the engine with the settings in a frame; returns its `Place`."""
        if version != __version__:
            return encode(
                Place(socket.gethostname(), refusal=f"it has Corral {__version__}, the front {version}")
            )
        settings = decode_settings(body)
        if missing := missing_files(settings):
            return encode(Place(socket.gethostname(), refusal=f"it has no file {missing[0]}"))
        self._settings = with_threads(settings, n_cpus)
        ours, theirs = socket.socketpair()
        self._parcels, theirs_parcels = socket.socketpair()
        self._relay_log()
        with theirs, theirs_parcels:
            fds = [theirs.fileno(), theirs_parcels.fileno()]
            self._process, self._log = spawn_module("corral.cluster.tied", fds, _LOG, [_ENGINE])
        self._transport, _ = await asyncio.get_running_loop().create_connection(lambda: self, sock=ours)
        self._transport.write(encode_frame(self._settings))
        return await self.describe()

    async def describe(self) -> bytes:
        model = self._settings.model if self._settings is not None else ""
        process: subprocess.Popen[bytes] | None = getattr(self, "_process", None)
        return encode(Place(socket.gethostname(), process.pid if process is not None else -1, model))

    async def feed(self, n: int, message: bytes) -> None:
        """Take the n-th message."""
        self._early[n] = message
        while (due := self._early.pop(self._next, None)) is not None:
            self._next += 1
            self._apply(decode_to_host(due))

    async def events(self) -> AsyncIterator[bytes]:
        """Yield lists of what comes from the engine, until it has ended."""
        async for items in self._outbox:
            yield encode(items)

    def data_received(self, data: bytes) -> None:
        for body in self._frames.feed(data):
            if self._saves:
                self._take_saved(body)
            self._outbox.put(Frames(wrap_frame(body)))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._ending = asyncio.create_task(self._end())

    async def _end(self) -> None:
        code = await asyncio.to_thread(self._process.wait)
        await asyncio.to_thread(self._log.join, 1.0)
        self._outbox.put(Exit(code))

    def _apply(self, message: Part | Frame) -> None:
        if isinstance(message, Part):
            self._file = self._file or _open_file()
            self._file.write(message.data)
            return
        if message.takes or message.saves:
            file = self._file or _open_file()
            file.flush()
            self._file = None
            socket.send_fds(self._parcels, [b"."], [file.fileno()])
            if message.saves:
                self._saves[message.id] = file
            else:
                file.close()
        elif message.id in self._saves:
            self._saves.pop(message.id).close()
            self._outbox.put(Part(b"", message.id))
        self._transport.write(wrap_frame(message.body))

    def _take_saved(self, body: bytes) -> None:
        """Send the file of every save that has ended, ahead of the event that says so."""
        for event in decode_events(body):
            if isinstance(event, (SlotReport, Failed)) and event.task_id in self._saves:
                self._outbox.put_file(event.task_id, self._saves.pop(event.task_id))

    def _relay_log(self) -> None:
        log = logging.getLogger(_LOG)
        log.setLevel(logging.DEBUG)
        log.propagate = False
        log.addHandler(_LogHandler(asyncio.get_running_loop(), self._outbox))


class _Outbox:
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


class _LogHandler(logging.Handler):
    def __init__(self, loop: asyncio.AbstractEventLoop, outbox: _Outbox) -> None:
        super().__init__()
        self._loop, self._outbox = loop, outbox

    def emit(self, record: logging.LogRecord) -> None:
        line = Lines(f"<{record.levelno:02}>{record.getMessage()}\n")
        self._loop.call_soon_threadsafe(self._outbox.put, line)
