"""The Ray actor of an engine: starts the usual engine process on its node, and relays frames, files and log.

Not a Ray Serve replica: a front and an engine have one long conversation in both directions, and a Serve
handle sends every call to any replica (`choose_replica` reserves one for a single call).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
from collections.abc import AsyncIterator

from corral import __version__
from corral.cluster.conversation import Conversation
from corral.cluster.join import node_address
from corral.cluster.message import Exit, Lines, Place, encode
from corral.cluster.node_share import missing_files, with_threads
from corral.core.settings import EngineSettings
from corral.link.frame import FrameAssembler, decode_settings, encode_frame, wrap_frame
from corral.link.process import spawn_module

_ENGINE = "corral.link.worker"
_LOG = "corral.engine"


class EngineHost(asyncio.Protocol):
    """An async actor; all methods run on its event loop, in the order in which they were called."""

    def __init__(self) -> None:
        self._front = Conversation(self)
        self._frames = FrameAssembler()
        self._settings: EngineSettings | None = None
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self, version: str, body: bytes, n_cpus: int) -> bytes:
        """Start the engine with the settings in a frame; returns its `Place`."""
        if version != __version__:
            return _refuse(f"it has Corral {__version__}, the front {version}")
        settings = decode_settings(body)
        if missing := missing_files(settings):
            return _refuse(f"it has no file {missing[0]}")
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
        pid = self._process.pid if self._process is not None else -1
        return encode(Place(socket.gethostname(), pid, model, address=node_address()))

    async def feed(self, n: int, message: bytes) -> None:
        """Take the n-th message."""
        self._front.feed(n, message)

    async def events(self) -> AsyncIterator[bytes]:
        """Yield lists of what comes from the engine, until it has ended."""
        async for items in self._front.outbox:
            yield encode(items)

    def write(self, body: bytes) -> None:
        self._transport.write(wrap_frame(body))

    def pass_file(self, fd: int) -> None:
        socket.send_fds(self._parcels, [b"."], [fd])

    def data_received(self, data: bytes) -> None:
        for body in self._frames.feed(data):
            self._front.receive(body)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._ending = asyncio.create_task(self._end())

    async def _end(self) -> None:
        assert self._process is not None
        code = await asyncio.to_thread(self._process.wait)
        await asyncio.to_thread(self._log.join, 1.0)
        self._front.outbox.put(Exit(code))

    def _relay_log(self) -> None:
        log = logging.getLogger(_LOG)
        log.setLevel(logging.DEBUG)
        log.propagate = False
        log.addHandler(_LogHandler(asyncio.get_running_loop(), self._front))


class _LogHandler(logging.Handler):
    def __init__(self, loop: asyncio.AbstractEventLoop, front: Conversation) -> None:
        super().__init__()
        self._loop, self._front = loop, front

    def emit(self, record: logging.LogRecord) -> None:
        line = Lines(f"<{record.levelno:02}>{record.getMessage()}\n")
        self._loop.call_soon_threadsafe(self._front.outbox.put, line)


def _refuse(reason: str) -> bytes:
    """Return the `Place` of a process that does not run."""
    return encode(Place(socket.gethostname(), refusal=reason))
