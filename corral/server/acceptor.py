"""Accept connections on the listening sockets, up to the limit that open file descriptors allow.

Replaces asyncio's servers: when descriptors run out, one kind may stop listening for good, and another
retries millions of times. It knows nothing about HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Sized

_AT_ONCE = 64  # connections accepted per event loop callback
_RETRY_S = 0.5
_HANDSHAKE_S = 10.0
_SILENCE_S = 60.0  # between two equal log lines
_MAX_FILES = 1 << 20
_UNIX = getattr(socket, "AF_UNIX", None)
_MODEST_FILES = 10_240  # the limit on macOS
_log = logging.getLogger("corral")


def raise_open_files() -> int:
    """Raise the limit of open files as far as the system allows. Returns the limit, or 0 if it is unknown."""
    try:
        import resource
    except ImportError:
        return 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    for wanted in (most, min(most, _MODEST_FILES)):
        if soft != resource.RLIM_INFINITY and soft < wanted:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                return wanted
    return most if soft == resource.RLIM_INFINITY else soft


def share_for_connections(n_files: int) -> int:
    """Return how many connections leave enough descriptors for files, pipes and a new engine; 0:
    unlimited."""
    return n_files * 3 // 4


class Acceptor:
    """Listens from creation to `close`."""

    def __init__(
        self,
        sockets: list[socket.socket],
        make_protocol: Callable[[], asyncio.Protocol],
        connections: Sized,
        max_connections: int = 0,
        tls: ssl.SSLContext | None = None,
        handshake_s: float = _HANDSHAKE_S,
    ) -> None:
        """`connections`: the open connections, without those still in the TLS handshake."""
        self.sockets = sockets
        self._make_protocol = make_protocol
        self._connections = connections
        self._max_connections = max_connections
        self._tls = tls
        self._handshake_s = handshake_s
        self._loop = asyncio.get_running_loop()
        self._arriving: set[asyncio.Task[None]] = set()
        self._warned_at = -_SILENCE_S
        self._is_closed = False
        for listening in sockets:
            listening.setblocking(False)
            self._listen(listening)

    def close(self) -> None:
        """Stop accepting. Established connections stay open; those that are arriving are closed."""
        self._is_closed = True
        for listening in self.sockets:
            if listening.fileno() >= 0:
                self._loop.remove_reader(listening)
        if self._tls is not None:  # only handshakes take long; uvloop closes others unannounced
            for task in self._arriving:
                task.cancel()

    async def wait_closed(self) -> None:
        if self._arriving:
            await asyncio.wait(self._arriving)

    def _listen(self, listening: socket.socket) -> None:
        if not self._is_closed:
            self._loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._warn(f"cannot accept connections: {error.strerror}")
                self._loop.remove_reader(listening)
                self._loop.call_later(_RETRY_S, self._listen, listening)
                return
            if self._is_full():
                self._warn(f"limit of {self._max_connections} connections reached, refusing further ones")
                connection.close()
                continue
            task = self._loop.create_task(self._welcome(connection))
            self._arriving.add(task)
            task.add_done_callback(self._arriving.discard)

    def _is_full(self) -> bool:
        n = len(self._arriving) + len(self._connections)
        return bool(self._max_connections) and n >= self._max_connections

    async def _welcome(self, connection: socket.socket) -> None:
        with contextlib.ExitStack() as on_error:
            on_error.callback(connection.close)
            with contextlib.suppress(OSError):  # not TLS, handshake timeout, or already closed
                connection.setblocking(False)
                if connection.family != _UNIX:  # asyncio does not set it, and tokens would be delayed
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                transport, _ = await self._loop.connect_accepted_socket(
                    self._make_protocol,
                    connection,
                    ssl=self._tls,
                    ssl_handshake_timeout=self._handshake_s if self._tls is not None else None,
                )
                on_error.pop_all()
                if self._is_closed:
                    transport.close()

    def _warn(self, message: str) -> None:
        now = self._loop.time()
        if now - self._warned_at >= _SILENCE_S:
            self._warned_at = now
            _log.warning(message)
