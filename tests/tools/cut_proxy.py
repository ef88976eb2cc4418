"""A network that can be cut: a TCP proxy in threads, before a server on this machine."""

from __future__ import annotations

import contextlib
import socket
import threading

from typing_extensions import Self


class CutProxy:
    """Mutable: has an address of its own, `url`. For clients the network is lost between `cut` and `mend`."""

    def __init__(self, port: int) -> None:
        """`port`: of the server."""
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._is_cut = False
        self._open: set[socket.socket] = set()
        self.n_cut = 0  # connections
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End all connections, and those that clients try to open."""
        with self._lock:
            self._is_cut = True
            opened, self._open = self._open, set()
        self.n_cut += len(opened) // 2
        for end in opened:
            _close(end)

    def mend(self) -> None:
        self._is_cut = False

    def close(self) -> None:
        self.cut()
        _close(self._listener)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                self._join(self._listener.accept()[0])

    def _join(self, client: socket.socket) -> None:
        """Connect a client with the server."""
        with self._lock:
            if self._is_cut:
                _close(client)
                return
            server = socket.create_connection(("127.0.0.1", self._port))
            self._open |= {client, server}
        for source, target in ((client, server), (server, client)):
            threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        with self._lock:
            self._open -= {source, target}
        _close(source)
        _close(target)


def _close(end: socket.socket) -> None:
    """Close a socket on which another thread may wait."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
