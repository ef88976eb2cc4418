"""Start and stop the Ray processes of this machine. They, and all that they start, have a mark in their
environment, by which they are found: `ray stop` would end every Ray cluster of the machine.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
from collections.abc import Sequence

import psutil

from corral.core.errors import CorralError
from corral.fleet.ray.join import check_token, import_ray, split_address, token_path
from corral.fleet.ray.tls import check_cluster

_MARK = "CORRAL_CLUSTER"
_GRACE_S = 10.0
_NO_LOG_MONITOR = "--include-log-monitor=false"  # engines send their log themselves
_OBJECT_STORE_BYTES = 512 << 20  # states of slots on their way


def start_head(
    host: str, port: int, n_cpus: int | None, n_gpus: int | None, has_dashboard: bool = False
) -> None:
    """Start a cluster that listens on one address of this machine. Raises CorralError."""
    import_ray(host)
    _write_token()
    dashboard = [f"--include-dashboard={has_dashboard}", f"--dashboard-host={host}"]
    _start(
        f"{host}:{port}",
        ["--head", f"--node-ip-address={host}", f"--port={port}", *dashboard],
        n_cpus,
        n_gpus,
    )


def start_worker(address: str, host: str, n_cpus: int | None, n_gpus: int | None) -> None:
    """Have this machine join a cluster. Raises CorralError."""
    head, port = split_address(address)
    ray = import_ray(head)
    check_cluster(head, port)
    check_token(ray, head, port)
    own = [f"--node-ip-address={host}"] if host else []
    _start(address, [f"--address={address}", *own], n_cpus, n_gpus)


def running_address() -> str:
    """Return the address of the cluster that runs on this machine, or ""."""
    return next((address for _, address in marked_processes()), "")


def stop() -> int:
    """End all processes; returns their number."""
    found = _with_children([process for process, _ in marked_processes()])
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = psutil.wait_procs(found, _GRACE_S)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, _GRACE_S)
    return len(found)


def _start(address: str, arguments: list[str], n_cpus: int | None, n_gpus: int | None) -> None:
    if running := running_address():
        raise CorralError(f"the cluster {running} is running here already")
    numbers = {"--num-cpus": n_cpus, "--num-gpus": n_gpus, "--object-store-memory": _OBJECT_STORE_BYTES}
    given = [f"{name}={number}" for name, number in numbers.items() if number is not None]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *arguments, *given, _NO_LOG_MONITOR]
    started = subprocess.run(
        command,
        env={**os.environ, _MARK: address},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if started.returncode:
        stop()
        raise CorralError(f"Ray cannot be started:\n{started.stdout.strip()}")


def marked_processes() -> list[tuple[psutil.Process, str]]:
    """Return the marked processes, and their clusters."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if (address := process.environ().get(_MARK)) and process.pid != os.getpid():
                found.append((process, address))
    return found


def _with_children(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Add the processes that have overwritten their environment with a title."""
    found = set(processes)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.update(process.children(recursive=True))
    return list(found)


def _write_token() -> None:
    """Have Ray ask for a secret, which it reads from a file."""
    path = token_path()
    if path.exists() or {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ):
        return
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    except OSError as error:
        raise CorralError(f"{path} cannot be written: {error.strerror}") from None
