"""An engine process as the front sees it: spawn, frames in both directions, kill."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from corral.core.result import Event
from corral.core.settings import EngineSettings
from corral.core.task import Command, MemoryGranted, Stop
from corral.link.frame import FrameAssembler, decode_events, encode_frame
from corral.link.log import relay_log

_LAST_LINES_S = 1.0  # to log its last lines


def spawn_module(
    module: str, fds: Sequence[int], log_name: str, arguments: Sequence[str] = ()
) -> tuple[subprocess.Popen[bytes], threading.Thread]:
    """Run a module in a process that inherits `fds`; a thread relays its stderr to the log `log_name`. Raises
    OSError."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *map(str, fds), *arguments],
        pass_fds=fds,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,  # the front handles Ctrl-C
    )
    log = threading.Thread(target=relay_log, args=(process.stderr, log_name), daemon=True)
    try:
        log.start()
    except RuntimeError as error:  # no more threads
        process.kill()
        process.wait()
        raise OSError(errno.EAGAIN, str(error)) from None
    return process, log


class EngineTransport(Protocol):
    """An engine as the front reaches it: `EngineProcess`, or an engine elsewhere."""

    log_name: str  # of the logger for its lines

    @property
    def pid(self) -> int | None:
        """Its process, if that runs on this machine."""
        ...

    @property
    def is_remote(self) -> bool:
        """Whether it can be lost by what happens between the machines."""
        ...

    async def spawn(self, settings: EngineSettings) -> None:
        """Start it; raises OSError if that fails."""
        ...

    def send(self, command: Command | MemoryGranted, fd: int = -1) -> None: ...

    def kill(self) -> None: ...

    async def wait(self) -> None:
        """Return when it is gone."""
        ...

    async def stop(self, timeout_s: float) -> None: ...

    async def close(self) -> int | None: ...


OnEvents = Callable[[EngineTransport, list[Event]], None]
OpenTransport = Callable[[OnEvents], EngineTransport]


class EngineProcess(asyncio.Protocol):
    """An engine process. Events are passed on as they arrive; `wait` returns when the process is gone."""

    module = "corral.link.worker"
    arguments: Sequence[str] = ()
    is_remote = False
    log_name = "corral.engine"

    def __init__(self, on_events: OnEvents) -> None:
        self._on_events = on_events
        self._frames = FrameAssembler()
        self._gone = asyncio.Event()
        self._transport: asyncio.WriteTransport | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._parcels: socket.socket | None = None
        self._log: threading.Thread | None = None

    async def spawn(self, settings: EngineSettings) -> None:
        ours, theirs = socket.socketpair()
        self._parcels, theirs_parcels = socket.socketpair()
        self._parcels.setblocking(False)
        with theirs, theirs_parcels:
            fds = [theirs.fileno(), theirs_parcels.fileno()]
            self._process, self._log = spawn_module(self.module, fds, self.log_name, self.arguments)
        self._transport, _ = await asyncio.get_running_loop().create_connection(lambda: self, sock=ours)
        self._transport.write(encode_frame(settings))

    def send(self, command: Command | MemoryGranted, fd: int = -1) -> None:
        """Send a command, and the descriptor that belongs to it."""
        if self._transport is not None and not self._gone.is_set():
            if fd >= 0 and self._parcels is not None:
                socket.send_fds(self._parcels, [b"."], [fd])
            self._transport.write(encode_frame(command))

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    async def wait(self) -> None:
        await self._gone.wait()

    async def stop(self, timeout_s: float) -> None:
        """Ask it to exit, and wait until it has written its caches."""
        self.send(Stop())
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._gone.wait(), timeout_s)

    async def close(self) -> int | None:
        """Make sure the process is gone; returns its exit code."""
        self.kill()
        if self._transport is not None:
            self._transport.close()
        if self._parcels is not None:
            self._parcels.close()
        return await asyncio.to_thread(self._reap)

    def _reap(self) -> int | None:
        code = self._process.wait() if self._process is not None else None
        if self._log is not None:
            self._log.join(_LAST_LINES_S)
        return code

    def data_received(self, data: bytes) -> None:
        for body in self._frames.feed(data):
            self._on_events(self, decode_events(body))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._gone.set()
