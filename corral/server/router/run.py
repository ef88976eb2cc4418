"""The life cycle of a server for many models: listen, load them when they are used, shut down on a signal."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from starlette.types import ASGIApp

from corral.api.durable_runner import DurableRunner, start_durable
from corral.api.internal import Ask
from corral.api.policy import ModelUse
from corral.api.services import Services
from corral.core.catalog import CatalogModel
from corral.core.settings import Settings
from corral.link.renderer import Renderer
from corral.server.drain import Drain
from corral.server.edge import Edge
from corral.server.front import prepare_loop
from corral.server.http_server import HttpServer
from corral.server.listen import Listener, open_listener
from corral.server.peers import warn_without_key
from corral.server.record_middleware import RecordMiddleware
from corral.server.router.directory import Directory
from corral.server.router.dispatch import ModelDispatch, ModelObserver
from corral.server.router.hub import create_hub
from corral.server.router.lender import Lender
from corral.server.router.model import Locate, ModelStore, Surroundings
from corral.server.router.registry import Registry
from corral.server.tls import open_tls
from corral.telemetry.access_log import AccessLog

Read = Callable[[], Sequence[CatalogModel]]  # the catalog again; it blocks


class ManyReporter(Protocol):
    """Reports to the user at the terminal."""

    def ready_for_many(self, address: str, names: Sequence[str]) -> None: ...


async def serve_many(
    catalog: Sequence[CatalogModel],
    settings: Settings,
    reporter: ManyReporter,
    locate: Locate,
    store: ModelStore | None = None,
    read: Read | None = None,
) -> None:
    """Serve until a signal. Raises CorralError if an option is invalid."""
    tls = open_tls(settings.server)
    with open_listener(settings.server) as listener:
        warn_without_key(settings.server, listener)
        await _Life(catalog, settings, reporter, listener, tls, locate, store, read).run()


class _Life:
    def __init__(
        self,
        catalog: Sequence[CatalogModel],
        settings: Settings,
        reporter: ManyReporter,
        listener: Listener,
        tls: ssl.SSLContext | None,
        locate: Locate,
        store: ModelStore | None,
        read: Read | None,
    ) -> None:
        server = settings.server
        self._reporter = reporter
        self._names = [entry.name for entry in catalog]
        n_parallel = max((entry.settings.engine.n_parallel for entry in catalog), default=1)
        self._hub = hub = create_hub(settings, self._make_dispatch, self._lend, n_parallel)
        edge = Edge(hub, server, listener.reach)
        edge.application = hub
        self._drain = Drain(server.timeout_s, self._dismiss)
        recorded = RecordMiddleware(edge, [AccessLog(), *hub.state.observers])
        self._server = HttpServer(
            recorded,
            server,
            listener,
            tls,
            on_listening=self._on_listening,
            drain=self._drain,
        )
        self._server.keys = hub.state.keys
        self._renderer = Renderer(server.engine_timeout_s)
        around = Surroundings(hub, self._server.connections, self._renderer, locate)
        self.registry = hub.state.registry = Registry(catalog, server, around)
        self._lender = Lender(self.registry, server, hub.state.services)
        recorded.add_observers(ModelObserver(self.registry))
        hub.state.stored_work.add_observers(ModelObserver(self.registry))
        self._directory = hub.state.models = Directory(self.registry, store, read)
        self._settings = settings

    async def run(self) -> None:
        prepare_loop(self._settings.server)
        self._hub.state.monitor.start()
        self._hub.state.hardware.start()
        if self._hub.state.metrics is not None:
            self._hub.state.metrics.watch_connections(lambda: len(self._server.connections))
        batches = self._hub.state.services.batches
        if batches is not None:
            batches.start(self._hub.state.stored_work.run)
        durable = self._start_durable()
        sharing = self._hub.state.services.sharing
        if sharing is not None:
            api: Services = self._hub.state.services
            sharing.start(
                self._server.address,
                batches,
                durable,
                api.telemetry.ledger,
                lambda: not api.admission.is_draining,
            )
        self._drain.join(
            self._hub.state.services.admission.drain, self._hub.state.monitor.close, self._directory.close
        )
        starters = [
            asyncio.create_task(self.registry.load(model))
            for model in self.registry.models.values()
            if model.entry.loads_on_startup
        ]
        try:
            await self._server.run_here()
        finally:
            for task in starters:
                task.cancel()
            await asyncio.gather(*starters, return_exceptions=True)
            services: Services = self._hub.state.services
            if sharing is not None:
                await sharing.stop()
            if services.journal is not None:
                services.journal.stop()
            if durable is not None:
                await durable.close()
            await self._directory.stop_downloads()
            if batches is not None:
                await batches.close()
            await self.registry.close()
            await asyncio.to_thread(self._renderer.close)
            with contextlib.suppress(asyncio.CancelledError):
                await services.responses.close()
            await services.streams.close()
            if services.journal is not None:
                await services.journal.close()
            if services.mcp is not None:
                await services.mcp.close()
            await services.telemetry.ledger.close()
            await services.storage.sessions.close()
            if sharing is not None:
                await sharing.close()

    def _start_durable(self) -> DurableRunner | None:
        services: Services = self._hub.state.services
        run = self._hub.state.stored_work.run
        return start_durable(services, run, lambda: not services.admission.is_draining)

    def _make_dispatch(self, app: ASGIApp) -> ASGIApp:
        return ModelDispatch(app, self.registry, self._lender, self._settings.server)

    def _lend(self, ask: Ask, use: ModelUse | None) -> AbstractAsyncContextManager[Services]:
        return self._lender.lend(ask, use)

    def _dismiss(self) -> None:
        self.registry.dismiss()

    def _on_listening(self, address: str) -> None:
        self._reporter.ready_for_many(address, self._names)
