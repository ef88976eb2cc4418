"""Bind the listening sockets before anything is loaded, and explain failures.

A host that ends with `.sock` is the path of a Unix socket, which the server owns while it runs.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import functools
import os
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from corral.core.address import parse_address
from corral.core.errors import CorralError
from corral.core.settings import ServerSettings

SOCKET_SUFFIX = ".sock"
UNIX = "unix:"  # precedes a path, as http:// precedes a host
_BACKLOG = 2048
_ANSWER_S = 5.0  # for the owner of an existing socket file to respond
_MODE = 0o660  # maximum mode of a socket file; the umask decides whether the group may connect

_REMEDIES = {
    errno.EADDRINUSE: "choose another --port, or stop the server that uses this one",
    errno.EADDRNOTAVAIL: "it is not an address of this machine, choose another --host",
    errno.EACCES: "ports below 1024 need privileges, choose another --port",
}


class Reach(enum.IntEnum):
    """Where clients can connect from, the widest last."""

    UNIX = enum.auto()  # processes that may open the file
    LOCAL = enum.auto()  # this machine
    PUBLIC = enum.auto()  # other machines


@dataclass(frozen=True)
class Listener:
    sockets: list[socket.socket]
    address: str  # for users, and for clients on this machine
    reach: Reach


@contextlib.contextmanager
def open_listener(server: ServerSettings) -> Iterator[Listener]:
    """Listen until the context ends. Raises CorralError that names the option at fault."""
    sockets: list[socket.socket] = []
    port = server.port
    with contextlib.ExitStack() as open_sockets:
        for host in server.hosts:
            if host.endswith(SOCKET_SUFFIX):
                sockets.append(open_sockets.enter_context(_unix_socket(host)))
                continue
            bound = _internet_sockets(host, port, server.reuse_port)
            sockets += map(open_sockets.enter_context, bound)
            port = bound[0].getsockname()[1]  # with --port 0 the first socket chooses it for all
        scheme = "https" if server.ssl_cert_file else "http"
        yield Listener(sockets, _address_of(sockets[0], scheme), max(map(_reach_of, sockets)))


def _address_of(bound: socket.socket, scheme: str) -> str:
    if bound.family == socket.AF_UNIX:
        return UNIX + str(bound.getsockname())
    host, port = bound.getsockname()[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _reach_of(bound: socket.socket) -> Reach:
    if bound.family == socket.AF_UNIX:
        return Reach.UNIX
    return Reach.LOCAL if is_loopback(bound.getsockname()[0]) else Reach.PUBLIC


@functools.lru_cache(256)
def is_loopback(address: str) -> bool:
    """Whether only this machine can reach the address; False for a name."""
    found = parse_address(address)
    return found is not None and found.is_loopback


def without_brackets(host: str) -> str:
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def _internet_sockets(host: str, port: int, reuse_port: bool = False) -> list[socket.socket]:
    """Bind one socket for every address of the host, all with the same port."""
    if not host:
        raise CorralError("--host is empty; use 127.0.0.1 for this machine only, 0.0.0.0 for all networks")
    try:
        found = socket.getaddrinfo(
            without_brackets(host), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a host name"
        raise CorralError(f"cannot listen on '{host}': {reason}; choose another --host") from None
    sockets: list[socket.socket] = []
    with contextlib.ExitStack() as on_error:
        for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
            # With --port 0 the first socket chooses the port for all.
            chosen = (address[0], port or (sockets[0].getsockname()[1] if sockets else 0), *address[2:])
            sockets.append(on_error.enter_context(_bind(family, chosen, reuse_port)))
        on_error.pop_all()
    return sockets


def _bind(family: int, address: tuple[str | int, ...], reuse_port: bool) -> socket.socket:
    takes_ipv4 = address[0] == "::" and socket.has_dualstack_ipv6()  # compat: --host :: accepts IPv4 too
    try:
        return socket.create_server(
            address, family=family, backlog=_BACKLOG, reuse_port=reuse_port, dualstack_ipv6=takes_ipv4
        )
    except OSError as error:
        host, port = address[:2]
        remedy = _REMEDIES.get(error.errno or 0, "choose another --host or --port")
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise CorralError(f"cannot listen on {host}, port {port}: {reason}; {remedy}") from None


@contextlib.contextmanager
def _unix_socket(path: str) -> Iterator[socket.socket]:
    try:
        _make_way(path)
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        raise _unix_error(path, error) from None
    with bound:
        try:
            bound.bind(path)
            made = os.stat(path)
            os.chmod(path, stat.S_IMODE(made.st_mode) & _MODE)  # before clients can connect
            bound.listen(_BACKLOG)
        except OSError as error:
            raise _unix_error(path, error) from None
        try:
            yield bound
        finally:
            _remove(path, made)


def _make_way(path: str) -> None:
    """Remove the socket file of a server that has ended."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise CorralError(f"--host '{path}' exists and is not a socket; choose another path")
        if _answers(path):
            raise CorralError(f"cannot listen on '{path}': another server uses it; choose another --host")
        os.unlink(path)


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_ANSWER_S)
        try:
            client.connect(path)
        except ConnectionRefusedError:
            return False
        except TimeoutError:
            pass  # it exists, but is busy
        return True


def _remove(path: str, made: os.stat_result) -> None:
    """Remove the socket file unless another server has replaced it."""
    with contextlib.suppress(OSError):
        found = os.lstat(path)
        if (found.st_dev, found.st_ino) == (made.st_dev, made.st_ino):
            os.unlink(path)


def _unix_error(path: str, error: OSError) -> CorralError:
    return CorralError(f"cannot listen on '{path}': {error.strerror or error}; choose another --host")
