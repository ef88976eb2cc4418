"""The real command as a child process, and streams over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import Future
from typing import ClassVar

import httpx
import psutil
from typing_extensions import Self

from tests.tools.wait import wait_until as wait_until

START_S = 300  # generous: a busy machine may take long to start
N_LINES = 15  # of a log, when a test fails: the end says why


def children(pid: int, module: str) -> list[psutil.Process]:
    """Those that run a module."""
    found = []
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.Error):  # it has just ended
            if module in child.cmdline():
                found.append(child)
    return found


class CorralProcess:
    """`python -m corral` with a free port; collects what it prints."""

    known: ClassVar[weakref.WeakSet[CorralProcess]] = weakref.WeakSet()

    def __init__(self, *options: object, wait: bool = True, env: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "corral", "--port", "0", *map(str, options)]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(env or {})},
        )
        self.lines: list[str] = []
        self._arrived: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = ""
        self.known.add(self)
        if wait:
            self._wait_ready()

    @property
    def end_of_log(self) -> str:
        return "".join(self.lines[-N_LINES:])

    def _wait_ready(self) -> None:
        try:
            self.url = self.wait_for(r"ready on (\S+)")
        except BaseException:
            self.stop()  # nobody else can
            raise

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            self._arrived.put(line)
        self._arrived.put(None)

    def wait_for(self, pattern: str) -> str:
        deadline = time.monotonic() + START_S
        while (line := self._arrived.get(timeout=deadline - time.monotonic())) is not None:
            if found := re.search(pattern, line):
                return found[found.re.groups and 1]
        raise AssertionError(f"no line like {pattern!r} at the end of:\n{self.end_of_log}")

    @property
    def engine(self) -> psutil.Process:
        """Wait until there is one: it may just be replaced."""
        found: list[psutil.Process] = []

        def is_alone() -> bool:
            found[:] = self.engines
            return len(found) == 1

        wait_until(is_alone)
        return found[0]

    def next_engine(self, lost: psutil.Process) -> psutil.Process:
        """Wait for the process that replaces a lost engine; answers may end before it starts."""
        found: list[psutil.Process] = []
        wait_until(lambda: found.extend(each for each in self.engines if each.pid != lost.pid) or found)
        return found[0]

    @property
    def engines(self) -> list[psutil.Process]:
        return children(self.process.pid, "corral.link.worker")

    @property
    def tokenizer(self) -> psutil.Process:
        (tokenizer,) = children(self.process.pid, "corral.link.tokenizer_worker")
        return tokenizer

    @property
    def renderer(self) -> psutil.Process:
        return children(self.process.pid, "corral.link.renderer_worker")[0]

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=START_S, verify=False)  # certificates take long to load

    def post(self, path: str, **body: object) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=START_S, verify=False)

    def complete(self, **body: object) -> dict:
        response = self.post("/completion", **body)
        assert response.status_code == 200, response.text
        return response.json()

    def kill(self) -> None:
        """SIGKILL for all processes at once."""
        front = psutil.Process(self.process.pid)
        for process in (front, *front.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):  # the others end by themselves without the front
                process.kill()
        self.stop()

    def stop(self) -> int:
        """SIGTERM; returns the exit code, when `lines` has all of its output."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(START_S)
        self._reader.join(START_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Stream:
    """One streamed completion; events can be awaited one by one."""

    def __init__(self, url: str, **body: object) -> None:
        self.events: list[dict] = []
        self._url = url
        self._body = {**body, "stream": True}
        self._progress = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    @property
    def text(self) -> str:
        return "".join(event["content"] for event in self.events)

    @property
    def tokens(self) -> list[int]:
        return [token for event in self.events for token in event["tokens"]]

    async def _run(self) -> None:
        async with (
            httpx.AsyncClient(timeout=START_S) as http,
            http.stream("POST", self._url + "/completion", json=self._body) as response,
        ):
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    self.events.append(json.loads(line.removeprefix("data: ")))
                    self._progress.set()

    async def reach(self, n: int) -> None:
        """Wait for the n-th event."""
        while len(self.events) < n:
            self._progress.clear()
            waiter = asyncio.create_task(self._progress.wait())
            await asyncio.wait({waiter, self.task}, return_when=asyncio.FIRST_COMPLETED)
            waiter.cancel()
            assert len(self.events) >= n or not self.task.done(), self.events[-1:]


def wait_until_busy(server: CorralProcess, model: str, answer: Future) -> None:
    """Wait until a slot of a model works on a request, or has already answered it."""
    path = f"/slots?model={model}"
    wait_until(lambda: answer.done() or any(slot["is_processing"] for slot in server.get(path).json()))


async def settle(http: httpx.AsyncClient) -> None:
    """Wait until the server has read the requests sent before: it answers later ones after them."""
    for _ in range(10):
        await http.get("/health")


def run_corral(*options: object, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "corral", *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=START_S, env={**os.environ, **env})
