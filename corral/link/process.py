"""An engine process as the front sees it: spawn, frames in both directions, kill."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator

from corral.core.result import Event
from corral.core.settings import EngineSettings
from corral.core.task import Order
from corral.link.frame import LENGTH_BYTES, decode_events, encode_frame, parse_length


class EngineProcess:
    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def spawn(cls, settings: EngineSettings) -> EngineProcess:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "corral.link.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is the front's business
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        writer.write(encode_frame(settings))
        return cls(process, reader, writer)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def events(self) -> AsyncIterator[list[Event]]:
        """Frames until the process is gone."""
        try:
            while True:
                header = await self._reader.readexactly(LENGTH_BYTES)
                yield decode_events(await self._reader.readexactly(parse_length(header)))
        except (asyncio.IncompleteReadError, OSError):
            return

    def send(self, order: Order) -> None:
        if not self._writer.is_closing():
            self._writer.write(encode_frame(order))

    def kill(self) -> None:
        self._process.kill()

    async def close(self) -> int:
        """Make sure the process is gone; returns its exit code."""
        self._writer.close()
        self._process.kill()
        return await asyncio.to_thread(self._process.wait)
