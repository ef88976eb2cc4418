"""Refuse options of a cluster that do not fit together, and public addresses: clients that reach a Ray
cluster can run any program on its nodes."""

from __future__ import annotations

import socket

from corral.core.address import is_private
from corral.core.errors import CorralError
from corral.core.settings import Settings
from corral.fleet.ray.join import split_address

ALLOW = "--allow-insecure-cluster"


def check_cluster(settings: Settings) -> None:
    """Raise CorralError for options of a cluster that cannot be honoured."""
    server = settings.server
    if server.ray:
        check_private(server.ray, server.allow_insecure_cluster)
    elif server.rpc_workers:
        raise CorralError("--rpc-workers are started in a Ray cluster: name it with --ray")
    if server.rpc_workers and settings.engine.rpc:
        raise CorralError("--rpc-workers have their own addresses: leave out --rpc")


def check_private(address: str, is_allowed: bool) -> None:
    """Raise CorralError unless the host has only loopback and private addresses, or the user allows it."""
    host, _ = split_address(address)
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise CorralError(f"the address of the cluster is unknown: {host}: {error.strerror}") from None
    public = sorted(ip for ip in found if not is_private(ip))
    if public and not is_allowed:
        raise CorralError(
            f"{public[0]} is not a private address: clients that reach a Ray cluster can run programs "
            f"on its nodes. Use a private network, or {ALLOW}"
        )
