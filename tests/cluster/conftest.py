from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from tests.cluster.shape import OPTIONS
from tests.system.drill import ask, finish
from tests.system.process import CorralProcess
from tests.tools.tiny_models import llama_bpe
from tests.tools.wait import wait_until

if importlib.util.find_spec("ray") is None:
    collect_ignore_glob = ["test_*"]  # `make cluster-test` installs it

_MARK = "CORRAL_TEST_NODES"  # in the environment of all processes of the cluster
_N_STARTS = 5  # a node gives up if its agents need more than 20 s to start, as they may on a busy machine


class Nodes:
    """A cluster of three nodes."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.nodes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, _MARK: "1"},
        )
        self.address = self._hear()

    @contextlib.contextmanager
    def one_less(self) -> Iterator[None]:
        self._tell("remove")
        try:
            yield
        finally:
            self._tell("add")

    @property
    def engines(self) -> list[psutil.Process]:
        return _marked("corral.link.worker")

    @property
    def rpc_workers(self) -> list[psutil.Process]:
        return _marked("corral.llama.rpc_server")

    @property
    def hosts(self) -> list[psutil.Process]:
        """The actors."""
        return [engine.parent() for engine in self.engines]

    def close(self) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def _tell(self, command: str) -> None:
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        assert self._hear() == "done"

    def _hear(self) -> str:
        """Return what the cluster says next; "" if it has ended."""
        for line in self._process.stdout:
            if line.startswith("corral: "):
                return line.removeprefix("corral: ").strip()
        return ""


def _marked(module: str = "") -> list[psutil.Process]:
    """Return the processes of the cluster, or those that run a module."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            is_asked = not module or module in process.cmdline()
            if is_asked and process.status() != psutil.STATUS_ZOMBIE and _MARK in process.environ():
                found.append(process)
    return found


def _start() -> Nodes:
    for _ in range(_N_STARTS):
        nodes = Nodes()
        if nodes.address:
            return nodes
        nodes.close()
        for process in _marked():
            with contextlib.suppress(psutil.Error):
                process.kill()
    raise AssertionError("no cluster")


@pytest.fixture(scope="session")
def nodes():
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_AUTH_MODE", "token")  # for servers and commands, too
    patch.setenv("RAY_AUTH_TOKEN", "secret" * 6)
    nodes = _start()
    yield nodes
    nodes.close()
    patch.undo()
    wait_until(lambda: not _marked(), 0.1)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    return llama_bpe(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def local(tiny):
    """The answers of a server without Ray."""

    async def run(server: CorralProcess) -> list:
        return await finish(ask(server))

    with CorralProcess("-m", tiny, *OPTIONS) as server:
        return asyncio.run(run(server))
