"""The Ray actor of a front: runs a whole server on its node, without engines of its own, and relays its log.

A server that ends unasked takes the actor along, and Ray starts another one. The server ends with the actor.
"""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import Future

from corral import __version__
from corral.cluster.join import is_restarted, node_address
from corral.cluster.marker import unseen
from corral.cluster.message import FrontReport, Place, decode_report, encode
from corral.cluster.tied import tied_command
from corral.link.frame import BlockingChannel, wrap_frame

_SERVER = "corral.cli.front"
_PAUSE_S = 1.0
_LAST_LINES_S = 1.0
_WILDCARDS = ("//0.0.0.0:", "//[::]:")


class FrontHost:
    """An async actor."""

    def __init__(self, order: bytes) -> None:
        """`order`: a `FrontOrder`."""
        self._order = order
        self._report: Future[FrontReport] = Future()
        self._code: Future[int] = Future()
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._is_stopping = False
        self._process: subprocess.Popen[str] | None = None
        self._is_restarted = is_restarted()
        if self._is_restarted:
            self._start()

    async def check(self, version: str, markers: list[str]) -> str:
        """Return why this node cannot run the front, or ""."""
        if version != __version__:
            return f"it has Corral {__version__}, the command {version}"
        if missing := unseen(markers):
            return f"it does not see the same directory {missing[0]}"
        return ""

    async def start(self) -> bytes:
        """Start the server; returns a `FrontReport` when it serves, or why it does not."""
        if self._process is None:
            self._start()
        return encode(await asyncio.wrap_future(self._report))

    async def lines(self) -> AsyncIterator[str]:
        """Yield what the server logs, until it has ended."""
        while line := await asyncio.to_thread(self._lines.get):
            yield line

    async def signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    async def stop(self) -> int:
        """Have the server end, at once if it is asked again; returns its exit code."""
        self._is_stopping = True
        if self._process is None:
            return 0
        self._process.send_signal(signal.SIGTERM)
        return await asyncio.wrap_future(self._code)

    async def describe(self) -> bytes:
        pid = self._process.pid if self._process is not None else -1
        return encode(Place(socket.gethostname(), pid, "(front)"))

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = process = subprocess.Popen(
                tied_command(_SERVER, str(theirs.fileno()), node_address()),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        channel = BlockingChannel(ours)
        channel.send_frames(wrap_frame(self._order))
        logging = threading.Thread(target=self._read_log, args=(process,), daemon=True)
        logging.start()
        threading.Thread(target=self._outlive, args=(process, channel, logging), daemon=True).start()

    def _read_log(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self._lines.put(line)

    def _outlive(
        self, process: subprocess.Popen[str], channel: BlockingChannel, log: threading.Thread
    ) -> None:
        body = channel.receive()
        if body is not None:
            report: FrontReport = decode_report(body)
            self._report.set_result(FrontReport(_reachable(report.address), report.refusal))
        code = process.wait()
        log.join(_LAST_LINES_S)
        if body is None:
            self._report.set_result(FrontReport(refusal=f"it ended with code {code}"))
        self._lines.put("")
        self._code.set_result(code)
        has_served = bool(self._report.result().address)
        time.sleep(_PAUSE_S)  # for the last lines to be read, and between servers that cannot start
        if (has_served or self._is_restarted) and not self._is_stopping:
            os._exit(1)


def _reachable(address: str) -> str:
    """Return an address for clients of other machines."""
    for wildcard in _WILDCARDS:
        address = address.replace(wildcard, f"//{node_address()}:")
    return address
