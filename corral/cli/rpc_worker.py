"""`corral rpc-worker`: offer this machine's devices to a server with `--rpc`, for models that need several.

ggml's server is a child process, which is started again when it crashes.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

from corral.cli.cluster_address import ALLOW, check_private
from corral.core.cpu_set import physical_cores
from corral.core.errors import CorralError
from corral.fleet.ray.child_process import tied_command

_PORT = 50052  # as that of llama.cpp
_PAUSE_S = 1.0


def run_rpc_worker(args: Sequence[str]) -> int:
    options = _parse(args)
    check_private(f"{options.host}:{options.port}", options.allow_insecure_cluster)
    endpoint, n_threads = f"{options.host}:{options.port}", options.threads or physical_cores()
    arguments = [endpoint, str(n_threads), *([options.device] if options.device else [])]
    command = tied_command("corral.llama.rpc_server", *arguments)
    sys.stderr.write(f"devices for --rpc {endpoint}\n")
    return _keep_running(command)


def _parse(args: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="corral rpc-worker",
        description="Offer this machine's GPUs, or its CPU, to a server elsewhere: corral --rpc HOST:PORT. "
        "Clients that reach it can do anything to this process: use a private network.",
        allow_abbrev=False,
    )
    parser.add_argument("--host", metavar="ADDRESS", default="127.0.0.1", help="(default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=_PORT, help=f"(default: {_PORT})")
    parser.add_argument("-dev", "--device", metavar="NAME,...", help="of --list-devices, or CPU")
    parser.add_argument("-t", "--threads", type=int, default=0, help="of a CPU (default: physical cores)")
    parser.add_argument(ALLOW, action="store_true", help="also on an address that is not private")
    return parser.parse_args(args)


def _keep_running(command: Sequence[str]) -> int:
    """Run a process until a signal comes. Raises CorralError if it ends by itself, with what it says."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        while True:
            _run(command)
            time.sleep(_PAUSE_S)
    except KeyboardInterrupt:
        return 0


def _run(command: Sequence[str]) -> None:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        _, said = process.communicate()
    finally:
        process.kill()
        process.wait()
    if process.returncode > 0:
        raise CorralError(said.strip().rpartition("\n")[2] or f"it ended with {process.returncode}")
    name = signal.Signals(-process.returncode).name if process.returncode else "no reason"
    sys.stderr.write(f"the RPC server ended with {name}; it is started again\n")


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
