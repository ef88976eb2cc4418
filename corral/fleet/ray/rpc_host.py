"""The Ray actor of an RPC worker: runs ggml's RPC server on its node, on a free port of the node's address.

It is not started again: an engine that has lost a worker ends, and the next one gets other workers.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess

import psutil

from corral import __version__
from corral.core.address import is_private
from corral.fleet.ray.child_process import tied_command
from corral.fleet.ray.join import node_address
from corral.fleet.ray.message import EnginePlace, encode
from corral.fleet.ray.node_share import threads_of

_LOOK_S = 0.05


class RpcHost:
    """An async actor."""

    def __init__(self) -> None:
        self._place = EnginePlace(socket.gethostname())
        self._end: asyncio.Task[str] | None = None

    async def start(self, version: str, n_threads: int, n_cpus: int, may_be_public: bool) -> bytes:
        """Start the server; returns its `EnginePlace`. `n_threads`: 0: as many as `n_cpus` have cores."""
        address = node_address()
        if version != __version__:
            return self._refuse(f"it has Corral {__version__}, the front {version}")
        if not (may_be_public or is_private(address)):
            return self._refuse(f"{address} is not a private address, and RPC has no authentication")
        command = tied_command(
            "corral.llama.rpc_server", f"{address}:0", str(n_threads or threads_of(n_cpus))
        )
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self._end = asyncio.create_task(asyncio.to_thread(_outlive, process))
        while not (port := _port(process.pid)):
            if self._end.done():
                return self._refuse(self._end.result())
            await asyncio.sleep(_LOOK_S)
        self._place = EnginePlace(
            socket.gethostname(), process.pid, "(RPC worker)", endpoint=f"{address}:{port}"
        )
        return await self.describe()

    async def describe(self) -> bytes:
        return encode(self._place)

    async def ended(self) -> str:
        """Wait until the server has ended; returns why."""
        return await self._end if self._end is not None else "it has not started"

    def _refuse(self, reason: str) -> bytes:
        return encode(EnginePlace(socket.gethostname(), refusal=reason))


def _outlive(process: subprocess.Popen[str]) -> str:
    """Return why the process has ended."""
    _, said = process.communicate()
    if process.returncode < 0:
        return f"it was ended by {signal.Signals(-process.returncode).name}"
    return said.strip().rpartition("\n")[2] or f"it ended with code {process.returncode}"


def _port(pid: int) -> int:
    """Return the port that a process listens on; 0: none yet."""
    try:
        found = psutil.Process(pid).net_connections("inet")
    except psutil.Error:
        return 0
    return next((each.laddr.port for each in found if each.status == psutil.CONN_LISTEN), 0)
