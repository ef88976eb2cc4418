"""Ray's TLS: check files and the cluster before Ray does, which waits for minutes and names no reason."""

from __future__ import annotations

import os
import socket
import ssl
from pathlib import Path

from corral.core.errors import CorralError

_USE = "RAY_USE_TLS"
_CERT, _KEY, _AUTHORITY = FILES = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")
_ANSWER_S = 5.0


def uses_tls() -> bool:
    return os.environ.get(_USE, "").lower() in ("1", "true")


def secure(plain: socket.socket, is_server: bool) -> ssl.SSLSocket:
    """Return a connection between two nodes with Ray's certificates, which both must have."""
    if not is_server:
        return _own_context().wrap_socket(plain)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_verify_locations(os.environ[_AUTHORITY])
    context.load_cert_chain(os.environ[_CERT], os.environ[_KEY])
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0  # for other connections, which there are none of
    return context.wrap_socket(plain, server_side=True)


def check_files() -> None:
    """Raise CorralError if Ray is to use TLS, and its files cannot be used."""
    if not uses_tls():
        return
    for name in FILES:
        path = os.environ.get(name, "")
        if not path:
            raise CorralError(f"{_USE} is set, but {name} is not; it is the path of a PEM file")
        try:
            Path(path).open("rb").close()
        except OSError as error:
            raise CorralError(f"{name}: {path} cannot be read: {error.strerror}") from None
    try:
        _own_context()
    except ssl.SSLError as error:
        raise CorralError(f"{', '.join(FILES)}: the files cannot be used: {error.reason or error}") from None


def check_cluster(host: str, port: int) -> None:
    """Raise CorralError unless a cluster answers, with TLS if this process uses it, and without if not."""
    where = f"{host}:{port}"
    try:
        with socket.create_connection((host, port), _ANSWER_S) as plain:
            _check_own(plain, host, where) if uses_tls() else _check_none(plain, where)
    except OSError as error:
        raise CorralError(f"no Ray cluster answers at {where}: {error.strerror or error}") from None


def _check_own(plain: socket.socket, host: str, where: str) -> None:
    try:
        with _own_context().wrap_socket(plain, server_hostname=host) as secure:
            is_accepted = bool(secure.recv(1))  # otherwise it closes the connection after the handshake
    except (ssl.SSLError, ConnectionError) as error:
        reason = getattr(error, "verify_message", "") or getattr(error, "reason", "") or error.strerror
        raise CorralError(f"the Ray cluster at {where} cannot be reached with TLS: {reason}") from None
    if not is_accepted:
        raise CorralError(f"the Ray cluster at {where} does not accept {_CERT} {os.environ[_CERT]}")


def _check_none(plain: socket.socket, where: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        context.wrap_socket(plain).close()
    except OSError:
        return
    raise CorralError(f"the Ray cluster at {where} uses TLS: set {_USE}=1, {', '.join(FILES)}")


def _own_context() -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=os.environ[_AUTHORITY])
    context.load_cert_chain(os.environ[_CERT], os.environ[_KEY])
    context.set_alpn_protocols(["h2"])  # gRPC requires it
    context.check_hostname = False  # gRPC also takes an address that is given as a name
    return context
