"""Join a Ray cluster: the only module that imports Ray. An address is HOST:PORT.

Ray replaces a loopback address by that of a network interface, unless its setting for clusters is off.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from corral.core.errors import CorralError
from corral.fleet.ray import tls

NAMESPACE = "corral"
PORT = 6379
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_TOKEN_MS = 2000  # for the cluster to answer
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "45",
    "RAY_worker_niceness": "0",  # Ray's 15 is for tasks in the background
    "RAY_gcs_rpc_server_reconnect_timeout_s": "86400",  # engines outlive a head that is away for a while
}


def split_address(address: str) -> tuple[str, int]:
    """Return host and port. Raises CorralError."""
    host, colon, port = address.rpartition(":")
    if not colon:
        return address, PORT
    if not host or not port.isdecimal():
        raise CorralError(f"not the address of a Ray cluster: {address}; expected HOST:PORT")
    return host, int(port)


def token_path() -> Path:
    """Where Ray looks for the secret of a cluster."""
    return Path.home() / ".ray" / "auth_token"


def prepare_environment(host: str) -> None:
    """Set what Ray reads when it is imported, unless the user has set it."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if token_path().exists():
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0" if host in _LOOPBACK else "1"


def import_ray(host: str) -> Any:
    """Return the module. Raises CorralError if it is not installed, or files for TLS are missing."""
    prepare_environment(host)
    tls.check_files()
    try:
        import ray
    except ImportError:
        raise CorralError("Ray is not installed: pip install '.[ray]' in a clone of Corral") from None
    return ray


def check_token(ray: Any, host: str, port: int) -> None:
    """Raise CorralError if the cluster asks for another secret. Ray itself would try for 20 s, and then blame
    the network."""
    with _quiet():  # Ray prints a warning
        try:
            ray._raylet.InnerGcsClient.standalone(f"{host}:{port}", None, _TOKEN_MS)
            return
        except ray.exceptions.AuthenticationError:
            path = token_path()
        except ray.exceptions.RayError:
            return  # no answer: who joins it finds out why
    has = "has another one" if path.exists() else "does not exist"
    raise CorralError(
        f"the Ray cluster at {host}:{port} asks for its secret, and {path} here {has}: copy that file "
        "from the machine that has started the cluster, or set RAY_AUTH_TOKEN"
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drop what native code writes to stderr."""
    saved = os.dup(2)
    try:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def node_address() -> str:
    """Return the address of this node; for actors."""
    import ray

    address: str = ray.util.get_node_ip_address()
    return address


def join(address: str) -> Any:
    """Become a driver of the cluster; returns the module `ray`. Raises CorralError."""
    host, port = split_address(address)
    ray = import_ray(host)
    tls.check_cluster(host, port)
    check_token(ray, host, port)
    try:
        ray.init(
            f"{host}:{port}",
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise CorralError(
            f"cannot join the Ray cluster at {host}:{port}: {reason} (this machine must be one of its nodes: "
            f"corral cluster up --join {host}:{port})"
        ) from None
    return ray
