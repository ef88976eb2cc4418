"""Uvicorn with our own sockets, signal handlers, client limits and shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Iterator, Sized
from functools import partial
from typing import Protocol

import uvicorn
from starlette.types import ASGIApp

from corral.core.errors import CorralError
from corral.core.settings import ServerSettings
from corral.server.acceptor import Acceptor, raise_open_files, share_for_connections
from corral.server.connection import bounded_protocol
from corral.server.drain import Drain
from corral.server.listen import Listener
from corral.server.tls import reload_tls

_log = logging.getLogger("corral")


class Renewable(Protocol):
    def reload(self) -> None:
        """Read the file again. Raises CorralError, and keeps the old content, if that fails."""


class HttpServer(uvicorn.Server):
    """Uvicorn's server. The first signal starts a graceful shutdown, the second stops at once; both
    exit with 0."""

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        listener: Listener,
        tls: ssl.SSLContext | None,
        on_listening: Callable[[str], None],
        drain: Drain,
    ) -> None:
        super().__init__(_config(app, settings))
        self._settings = settings
        self._sockets = listener.sockets
        self._tls = tls
        self._on_listening = on_listening
        self._drain = drain
        self.address = listener.address
        self.keys: Renewable | None = None

    @property
    def connections(self) -> Sized:
        return self.server_state.connections

    async def run_here(self) -> None:
        await self.serve(self._sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        n_connections = share_for_connections(raise_open_files())
        door = Acceptor(sockets or [], self._protocol, self.connections, n_connections, self._tls)
        self.servers = [door]  # type: ignore[list-item]
        self.started = True
        self._on_listening(self.address)

    def _protocol(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(self.config, self.server_state, {})  # type: ignore[call-arg]

    def stop(self) -> None:
        self.should_exit = True
        self._drain.hurry()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down as uvicorn does, for as long as `Drain` runs."""
        ending = asyncio.create_task(super().shutdown(sockets))
        draining = asyncio.create_task(self._drain.run(self.server_state))
        tasks = {ending, draining}
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        yield

    def _on_signal(self) -> None:
        if self.should_exit:
            self._drain.insist()
        else:
            self.should_exit = True
            self._drain.begin()

    def _on_hangup(self) -> None:
        """Reload the files that may have been renewed. Those that are invalid keep their old content."""
        files = self._renewable()
        done = [what for what, reload in files.items() if self._reload(what, reload)]
        if done:
            _log.info("SIGHUP: reloaded %(files)s", {"files": " and ".join(done)})
        elif not files:
            _log.info("SIGHUP: nothing to reload, neither --api-key-file nor --ssl-cert-file is set")

    def _renewable(self) -> dict[str, Callable[[], None]]:
        files: dict[str, Callable[[], None]] = {}
        if self._settings.api_key_file:
            files["the keys of --api-key-file"] = self._reload_keys
        if self._tls is not None:
            files["the certificate of --ssl-cert-file"] = partial(reload_tls, self._tls, self._settings)
        return files

    def _reload_keys(self) -> None:
        if self.keys is None:
            raise CorralError("the server is still starting; send SIGHUP again later")
        self.keys.reload()

    @staticmethod
    def _reload(what: str, reload: Callable[[], None]) -> bool:
        try:
            reload()
        except CorralError as error:
            fields = {"file": what, "reason": error.message}
            _log.error("SIGHUP: cannot reload %(file)s, the old version stays in use: %(reason)s", fields)
            return False
        return True


def _config(app: ASGIApp, settings: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=bounded_protocol(settings.timeout_s, send_timeout_s=settings.send_timeout_s),
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # `peers.py` reads them after checking the socket's address
        lifespan="off",
        timeout_keep_alive=60,
        server_header=False,
    )
