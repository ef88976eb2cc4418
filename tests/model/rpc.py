"""A real RPC server of ggml with the CPU as its devices, in a process of its own."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

START_S = 120


@contextlib.contextmanager
def rpc_server(n_devices: int = 1) -> Iterator[str]:
    """Where it listens, as HOST:PORT."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    devices = ",".join(["CPU"] * n_devices)
    command = [sys.executable, "-m", "corral.llama.rpc_server", f"127.0.0.1:{port}", "1", devices]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        _wait(port, process)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, "the RPC server could not start"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise AssertionError("the RPC server does not listen")
