"""The life of a server: listen, open its models, serve, shut down cleanly on a signal.

The slow steps run in parallel: a model begins to load, and the application is imported and built in a
thread, while a `LoadingApp` responds. So this module must not import anything slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from corral.core.result import Loading
from corral.core.settings import Settings
from corral.server.drain import Drain
from corral.server.edge import Edge
from corral.server.http_server import HttpServer
from corral.server.listen import Listener, open_listener
from corral.server.loading_app import LoadingApp
from corral.server.peers import warn_without_key
from corral.server.record_middleware import RecordMiddleware
from corral.server.tls import open_tls
from corral.telemetry.access_log import AccessLog
from corral.telemetry.ledger import Ledger
from corral.telemetry.loop_meter import LoopMeter

if TYPE_CHECKING:
    from corral.models.protocol import Models
    from corral.server.app import Application


class ModelsLife(Protocol):
    """How models live: what begins before the application is imported, and how they are loaded."""

    def loading(self) -> Loading | None:
        """Return the progress of the start; None: the server is healthy while models load."""
        ...

    def begin(self) -> None:
        """Begin at once, on the event loop."""
        ...

    def open_models(self, if_it_fails: contextlib.ExitStack) -> Models:
        """Import and build what the application needs; in a thread."""
        ...

    async def load(self, models: Any, address: str) -> None:
        """Load what is needed from the start. Raises CorralError if the server cannot do without it."""
        ...

    def dismiss(self) -> None:
        """End all running tasks with an error."""
        ...

    async def stop(self) -> None:
        """End what was begun."""
        ...


OpenLife = Callable[[Ledger, LoopMeter], ModelsLife]


async def serve(settings: Settings, on_listening: Callable[[str], None], open_life: OpenLife) -> None:
    """Serve until a signal. Raises CorralError if an option is invalid or the only model cannot be loaded."""
    tls = open_tls(settings.server)
    with open_listener(settings.server) as listener:
        warn_without_key(settings.server, listener)
        await _ServerLifecycle(settings, on_listening, listener, tls, open_life).run()


class _ServerLifecycle:
    def __init__(
        self,
        settings: Settings,
        on_listening: Callable[[str], None],
        listener: Listener,
        tls: ssl.SSLContext | None,
        open_life: OpenLife,
    ) -> None:
        server = settings.server
        self._settings = settings
        self._ledger, self._loop = Ledger(), LoopMeter()
        self._models = open_life(self._ledger, self._loop)
        self._loading_app = LoadingApp(self._models.loading)
        self._edge = Edge(self._loading_app, server, listener.reach)
        self._recorded = RecordMiddleware(self._edge, [AccessLog()])
        self._drain = Drain(server.timeout_s, self._models.dismiss)
        self._server = HttpServer(
            self._recorded, server, listener, tls, on_listening=on_listening, drain=self._drain
        )

    async def run(self) -> None:
        http = asyncio.create_task(self._server.run_here())
        self._models.begin()
        built = asyncio.create_task(self._build())
        loaded = asyncio.create_task(self._load(built))
        try:
            await asyncio.wait({loaded, http}, return_when=asyncio.FIRST_COMPLETED)
            if loaded.done():
                loaded.result()
            loaded.cancel()
            await http
        finally:
            self._server.stop()
            self._loading_app.give_up()
            await self._models.stop()
            (application,) = await asyncio.gather(built, return_exceptions=True)
            with contextlib.suppress(asyncio.CancelledError):
                await http
            if not isinstance(application, BaseException):
                await application.close()

    async def _build(self) -> Application:
        """Build the application, which then responds to requests, although models are still loading."""
        thread = ThreadPoolExecutor(1, "front")
        building = asyncio.get_running_loop().run_in_executor(thread, self._open)
        thread.shutdown(wait=False)
        application = await building
        application.start(self._server.connections, self._server.address)
        self._recorded.add_observers(*application.observers)
        self._drain.join(application.drain)
        self._server.keys = application.keys
        self._edge.application = application
        self._loading_app.open(application)
        return application

    def _open(self) -> Application:
        with contextlib.ExitStack() as if_it_fails, _without_gc():
            models = self._models.open_models(if_it_fails)
            from corral.server.app import create_app

            application = create_app(self._settings, models, self._ledger, self._loop)
            if_it_fails.pop_all()
            return application

    async def _load(self, built: asyncio.Task[Application]) -> None:
        # First, so that errors in options are reported before errors in the model.
        application = await asyncio.shield(built)
        await self._models.load(application.models, self._server.address)


@contextlib.contextmanager
def _without_gc() -> Iterator[None]:
    """Collect no garbage: what is imported stays, and `Front.open` looks at all of it once."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
