"""Starting, stopping and staying quiet."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from tests.system.process import CorralProcess, Stream


def run(*options: object, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "corral", *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **env})


def test_version_and_help():
    assert run("--version").stdout.startswith("corral ")
    assert "--parallel" in run("--help").stdout


def test_an_unknown_option_exits_with_2():
    result = run("--contxt-shift")
    assert result.returncode == 2
    assert "did you mean '--context-shift'?" in result.stderr


def test_a_missing_model_is_said_plainly(tmp_path):
    result = run("-m", tmp_path / "none.gguf")
    assert result.returncode == 1
    assert "does not exist" in result.stderr


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF\x03\0\0\0" + b"\xff" * 64, os.urandom(4096)])
def test_a_broken_model_ends_with_a_message(tmp_path, content):
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    result = run("-m", path, "--port", 0)
    assert result.returncode == 1
    assert "broken.gguf': it " in result.stderr
    assert "Traceback" not in result.stderr


def test_a_port_in_use_is_an_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = run("--port", taken.getsockname()[1])
    assert result.returncode == 1
    assert "address already in use" in result.stderr.lower()


def test_it_says_what_it_does_and_ends_with_the_signal():
    with CorralProcess("-np", 2, "-c", 1024) as server:
        engine = server.engine
        printed = "".join(server.lines)
        assert "loading" in printed
        assert server.url in printed
        assert "Q4_1" in printed
        server.wait_for(r"slots +2, each with a context of 512 tokens")
        assert server.stop() == 0
        psutil.wait_procs([engine], timeout=10)
        assert not engine.is_running()


def test_the_engine_does_not_outlive_a_killed_front():
    server = CorralProcess("-c", 512)
    engine = server.engine
    server.process.kill()
    server.stop()
    psutil.wait_procs([engine], timeout=10)
    assert not engine.is_running()


async def test_a_running_request_is_finished_before_the_end():
    server = CorralProcess("-c", 512)
    stream = Stream(server.url, prompt="Once upon a time", n_predict=40, ignore_eos=True)
    await stream.reach(3)
    server.process.send_signal(signal.SIGTERM)
    await stream.task
    assert len(stream.tokens) == 40
    assert await asyncio.to_thread(server.stop) == 0


def test_an_idle_server_costs_nothing(corral):
    processes = [corral.engine, psutil.Process(corral.process.pid)]
    corral.complete(prompt="Hello", n_predict=4)
    time.sleep(1)
    before = [sum(p.cpu_times()[:2]) for p in processes]
    time.sleep(3)
    after = [sum(p.cpu_times()[:2]) for p in processes]
    assert all(b - a <= 0.09 for a, b in zip(before, after, strict=True))
