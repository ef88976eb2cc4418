"""The processes that are measured: plain loops on libllama, the server, and any server."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from bench.client import get

COMMAND = str(Path(sys.executable).with_name("corral"))
_START_S = 300


class Process:
    """A child that ends with `close`."""

    _process: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def mb(self) -> float:
        """Resident memory, without that of its own children."""
        return float(psutil.Process(self._process.pid).memory_info().rss) / 1e6

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


class RawLoop(Process):
    """A yardstick, as `python -m MODULE ARGUMENTS`: one JSON command per line, one number back."""

    def __init__(self, module: str, *arguments: object) -> None:
        command = [sys.executable, "-m", module, *map(str, arguments)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def measure(self, do: str, **arguments: object) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


class Corral(Process):
    """The real command, as a user starts it."""

    def __init__(self, model: str, *options: object) -> None:
        self._directory = tempfile.TemporaryDirectory()
        saves = ("--slots", "--slot-save-path", self._directory.name)
        command = [COMMAND, "-m", model, "--port", "0", *saves, *map(str, options)]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.url = self._wait_until_ready()

    @property
    def engine_mb(self) -> float:
        children = psutil.Process(self._process.pid).children(recursive=True)
        return float(sum(child.memory_info().rss for child in children)) / 1e6

    def close(self) -> None:
        super().close()
        self._directory.cleanup()

    def _wait_until_ready(self) -> str:
        assert self._process.stderr is not None
        lines: list[str] = []
        for line in self._process.stderr:
            lines.append(line)
            if found := re.search(r"ready on (\S+)", line):
                return found[1]
        self.close()
        raise RuntimeError("corral did not start:\n" + "".join(lines))


class Server(Process):
    """A program that takes llama-server's options, from its command on; its log is thrown away."""

    def __init__(self, program: str, model: str, *options: object) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [program, "-m", model, "--host", "127.0.0.1", "--port", str(port), *map(str, options)]
        self._started = time.perf_counter()
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
        )

    async def first_answer_s(self) -> float:
        """Seconds from the command until `/health` says anything."""
        return await self._until(lambda status: status > 0)

    async def healthy_s(self) -> float:
        """Seconds from the command until `/health` says that all is well."""
        return await self._until(lambda status: status == 200)

    def cpu_s(self) -> dict[str, float]:
        """Seconds of CPU time so far: of the program itself, and of each module that it runs."""
        root = psutil.Process(self.pid)
        processes = {"itself": root, **{_module_of(child): child for child in root.children(recursive=True)}}
        times = {name: process.cpu_times() for name, process in processes.items()}
        return {name: each.user + each.system for name, each in times.items()}

    async def _until(self, is_reached: Callable[[int], bool]) -> float:
        while not is_reached((await get(self.url, "/health"))[0]):
            if self._process.poll() is not None or time.perf_counter() - self._started > _START_S:
                self.close()
                raise RuntimeError(f"{self._process.args!r} did not start")
            await asyncio.sleep(0.005)
        return time.perf_counter() - self._started


def _module_of(process: psutil.Process) -> str:
    """The last part of `python -m MODULE`; the name of any other program."""
    line = process.cmdline()
    return line[line.index("-m") + 1].rpartition(".")[2] if "-m" in line else process.name()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])
