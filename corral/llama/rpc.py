"""Check a ggml RPC server before libllama connects: native code aborts the process on failure.

Implements only the client's greeting. No native code.
"""

from __future__ import annotations

import contextlib
import socket
import struct

from corral.core.errors import CorralError

_TIMEOUT_S = 10.0
_HELLO = 14
_N_CAPABILITIES = 24  # bytes
_VERSION = (7, 0)  # of the required libllama; another major or a newer minor version is refused
_SIZE = struct.Struct("<Q")
_ANSWER = struct.Struct(f"<BBBx{_N_CAPABILITIES}s")


def check_server(endpoint: str) -> None:
    """Raise CorralError unless a compatible server answers."""
    host, port = _parse(endpoint)
    try:
        with socket.create_connection((host, port), _TIMEOUT_S) as connection:
            connection.sendall(bytes([_HELLO]) + _SIZE.pack(_N_CAPABILITIES) + bytes(_N_CAPABILITIES))
            with contextlib.closing(connection.makefile("rb")) as answers:
                answer = answers.read(_SIZE.size + _ANSWER.size)
    except TimeoutError:
        raise CorralError(
            f"--rpc {endpoint}: no answer within {_TIMEOUT_S:g} s; a server works for one client at a time"
        ) from None
    except OSError as error:
        raise CorralError(f"--rpc {endpoint}: cannot be reached: {error.strerror or error}") from None
    _check_answer(endpoint, answer)


def _parse(endpoint: str) -> tuple[str, int]:
    host, colon, port = endpoint.partition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise CorralError(f"--rpc {endpoint}: expected HOST:PORT")
    return host, int(port)


def _check_answer(endpoint: str, answer: bytes) -> None:
    if len(answer) < _SIZE.size + _ANSWER.size or _SIZE.unpack_from(answer)[0] != _ANSWER.size:
        raise CorralError(f"--rpc {endpoint}: not an RPC server of llama.cpp, or of another version")
    major, minor, patch, _ = _ANSWER.unpack_from(answer, _SIZE.size)
    if major != _VERSION[0] or minor > _VERSION[1]:
        ours = ".".join(map(str, _VERSION))
        raise CorralError(
            f"--rpc {endpoint}: the server speaks version {major}.{minor}.{patch}, libllama {ours}: "
            "use builds of about the same date"
        )
