"""The processes that are measured: plain loops on libllama, and the server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile

import psutil


class RawLoop:
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

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class Corral:
    """The real command, as a user starts it."""

    def __init__(self, model: str, *options: object) -> None:
        self._directory = tempfile.TemporaryDirectory()
        saves = ("--slots", "--slot-save-path", self._directory.name)
        command = [sys.executable, "-m", "corral", "-m", model, "--port", "0", *saves, *map(str, options)]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        for line in self._process.stderr:
            found = re.search(r"ready on (\S+)", line)
            if found:
                self.url = found[1]
                return
        raise RuntimeError("corral did not start")

    @property
    def front_mb(self) -> float:
        return psutil.Process(self._process.pid).memory_info().rss / 1e6

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._directory.cleanup()
