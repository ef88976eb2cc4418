"""A port to which nothing should be sent."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

from typing_extensions import Self


class Canary:
    """Mutable: what has arrived, by TCP and by UDP, on one port."""

    def __init__(self) -> None:
        self.arrived: list[str] = []
        self._stream = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._stream.getsockname()[1]
        self._datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._datagram.bind(("127.0.0.1", self.port))
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._accept, self._receive)]

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in (self._stream, self._datagram):
            with contextlib.suppress(OSError):  # the socket is not connected
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._stream.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(1)
                try:
                    said = connection.recv(200)
                except OSError:
                    said = b""
                if said:  # browsers open connections ahead of time, which no policy stops
                    self.arrived.append(said.decode("latin-1").split("\r\n")[0])

    def _receive(self) -> None:
        while True:
            try:
                said, _ = self._datagram.recvfrom(200)
            except OSError:
                return
            if not said:
                return
            self.arrived.append(f"a datagram of {len(said)} bytes")
