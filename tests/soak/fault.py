"""What is done to the server meanwhile: engines killed and stopped, sockets that say little or nothing."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import signal
import time
from dataclasses import dataclass, field

import psutil

from tests.soak.score import Score
from tests.soak.wire import Wire, encode

_LOOK_S = 0.05


@dataclass(slots=True)
class EngineFaults:
    """Mutable: kills or stops the engine again and again; waits each time until there is a new one."""

    front: psutil.Process
    address: tuple[str, int]
    score: Score
    rng: random.Random
    every_s: tuple[float, float]
    patience_s: float
    recovery_s: list[float] = field(default_factory=list)
    _is_enough: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Until it is enough; then there is an engine that works."""
        self._is_enough.clear()
        for number, what in itertools.cycle([(signal.SIGKILL, "killed"), (signal.SIGSTOP, "stopped")]):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._is_enough.wait(), self.rng.uniform(*self.every_s))
                return
            engine = engine_of(self.front)
            if engine is None:
                continue
            with contextlib.suppress(psutil.NoSuchProcess):
                engine.send_signal(number)
                self.score.count(f"engines {what}")
                await self._await_another(engine.pid)

    def end(self) -> None:
        self._is_enough.set()

    async def _await_another(self, lost: int) -> None:
        began = time.monotonic()
        again = self.rng.random() < 0.1
        while time.monotonic() - began < self.patience_s:
            engine = engine_of(self.front)
            if engine is not None and engine.pid != lost:
                if again:  # while it loads
                    again, lost = False, engine.pid
                    with contextlib.suppress(psutil.NoSuchProcess):
                        engine.kill()
                        self.score.count("engines killed while loading")
                elif await is_healthy(self.address):
                    self.recovery_s.append(time.monotonic() - began)
                    return
            await asyncio.sleep(_LOOK_S)
        self.score.blame(f"no new engine within {self.patience_s:g} s")


@dataclass(slots=True)
class Crowd:
    """Mutable: connections that are held open. Those that the server cuts off are opened again."""

    address: tuple[str, int]
    score: Score
    n_idle: int
    n_dribbling: int
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def gather(self) -> None:
        """Returns once all of them are there."""
        begins = [b"", encode("GET", "/health")]
        for i in range(self.n_idle):
            self._tasks.append(asyncio.create_task(self._stay_idle(begins[i % 2])))
        heads = [encode("GET", "/health"), encode("POST", "/completion", b" " * 100_000)]
        for i in range(self.n_dribbling):
            self._tasks.append(asyncio.create_task(self._dribble(heads[i % 2], i % 2 == 1)))
        await asyncio.sleep(1)

    async def disperse(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _stay_idle(self, first: bytes) -> None:
        """Says nothing at all, or nothing more."""
        while True:
            reader, writer = await asyncio.open_connection(*self.address)
            self.score.count("idle sockets opened")
            try:
                writer.write(first)
                with contextlib.suppress(ConnectionError):
                    while await reader.read(4096):
                        pass
            finally:
                writer.transport.abort()
            await asyncio.sleep(1)

    async def _dribble(self, request: bytes, has_body: bool) -> None:
        """A byte a second, of the header or behind it."""
        while True:
            reader, writer = await asyncio.open_connection(*self.address)
            self.score.count("dribbling sockets opened")
            end = asyncio.ensure_future(reader.read(1))
            try:
                at = request.index(b"\r\n\r\n") + 4 if has_body else 1
                writer.write(request[:at])
                while at < len(request) and not end.done():
                    await asyncio.wait({end}, timeout=1)
                    writer.write(request[at : at + 1])
                    at += 1
            finally:
                writer.transport.abort()
                end.cancel()
                with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                    await end
            await asyncio.sleep(1)


def engine_of(front: psutil.Process) -> psutil.Process | None:
    """The engine process, if there is one right now."""
    engines = [child for child in front.children() if _is_engine(child)]
    return engines[-1] if engines else None


async def is_healthy(address: tuple[str, int]) -> bool:
    wire = Wire(address)
    received = await wire.exchange(encode("GET", "/health"))
    wire.close()
    return received.status == 200


def _is_engine(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):  # it has just ended
        return "corral.link.worker" in process.cmdline()
    return False
