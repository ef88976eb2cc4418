from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import psutil
import pytest

from corral.cluster.node import marked_processes
from tests.tools.tiny_models import llama_bpe
from tests.tools.wait import wait_until

if importlib.util.find_spec("ray") is None:
    collect_ignore_glob = ["test_*"]  # `make cluster-test` installs it


class Nodes:
    """A cluster of three nodes; every process in it has the mark of `corral cluster up`."""

    def __init__(self) -> None:
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "secret" * 6}
        os.environ.update(token)  # for servers and commands, too
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.nodes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "CORRAL_CLUSTER": "three nodes"},
        )
        self.address = self._hear()

    def remove_node(self) -> None:
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        assert self._hear() == "removed"

    @property
    def engines(self) -> list[psutil.Process]:
        return _running("corral.link.worker")

    @property
    def hosts(self) -> list[psutil.Process]:
        """The actors."""
        return [engine.parent() for engine in self.engines]

    def close(self) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def _hear(self) -> str:
        for line in self._process.stdout:
            if line.startswith("corral: "):
                return line.removeprefix("corral: ").strip()
        raise AssertionError("no cluster")


def _running(module: str) -> list[psutil.Process]:
    found = []
    for process, _ in marked_processes():
        try:
            if module in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture(scope="session")
def nodes():
    nodes = Nodes()
    yield nodes
    nodes.close()
    wait_until(lambda: not marked_processes(), 0.1)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    return llama_bpe(tmp_path_factory.mktemp("models"))
