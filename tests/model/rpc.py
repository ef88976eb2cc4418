"""A real RPC server of ggml with the CPU as its devices, in a process of its own: `python -m tests.model.rpc
PORT N_DEVICES`."""

from __future__ import annotations

import contextlib
import ctypes
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
    command = [sys.executable, "-m", "tests.model.rpc", str(port), str(n_devices)]
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


def _serve(port: int, n_devices: int) -> None:
    from llama_cpp import llama_cpp

    from corral.llama.library import ggml

    pointer = ctypes.c_void_p
    llama_cpp.llama_backend_init()
    cpu = ggml("ggml_backend_dev_by_type", pointer, ctypes.c_int(0))
    devices = (pointer * n_devices)(*[cpu] * n_devices)
    registry = ggml("ggml_backend_reg_by_name", pointer, b"RPC")
    address = ggml("ggml_backend_reg_get_proc_address", pointer, registry, b"ggml_backend_rpc_start_server")
    size = ctypes.c_size_t
    start = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, size, size, pointer)(address)
    start(f"127.0.0.1:{port}".encode(), None, 1, n_devices, ctypes.cast(devices, pointer))


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))
