"""`corral rpc-worker`: a model on a device elsewhere, also when that is lost."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys

import psutil
import pytest

from tests.system.process import START_S, CorralProcess, Stream, run_corral
from tests.tools.wait import wait_until

QUESTION = {"prompt": "hello world", "n_predict": 200, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def worker(port):
    command = [sys.executable, "-m", "corral", "rpc-worker", "--port", port, "--device", "CPU", "-t", 1]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
    wait_until(lambda: is_listening(port), 0.05)
    yield process
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=START_S)
    assert process.returncode == 0


def is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


async def test_streams_continue_when_a_worker_is_lost(worker, port, tiny):
    with CorralProcess("-m", tiny, "-c", 512, "--rpc", f"127.0.0.1:{port}", "-ngl", 99) as server:
        undisturbed = Stream(server.url, **QUESTION)
        await undisturbed.task
        stream = Stream(server.url, **QUESTION)
        await stream.reach(20)
        (child,) = psutil.Process(worker.pid).children()
        child.kill()
        await stream.task
        assert stream.tokens == undisturbed.tokens
        assert len(stream.tokens) == QUESTION["n_predict"]
        wait_until(lambda: server.get("/health").status_code == 200)


def test_a_signal_before_it_is_started_again_ends_it(worker):
    (child,) = psutil.Process(worker.pid).children()
    child.kill()
    assert any("it is started again" in line for line in worker.stderr)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(START_S) == 0


def test_what_cannot_be_offered_is_refused(port):
    for options, said in (
        (["--device", "CUDA77"], "CUDA77"),
        (["--host", "198.51.100.1"], "--allow-insecure-cluster"),
    ):
        refused = run_corral("rpc-worker", "--port", port, *options)
        assert refused.returncode == 1
        assert said in refused.stderr
    with socket.create_server(("127.0.0.1", port)):
        assert run_corral("rpc-worker", "--port", port, "--device", "CPU").returncode == 1
