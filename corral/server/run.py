"""The life cycle of a server: listen, load the model, serve, shut down cleanly on a signal.

The slow steps run in parallel: the engine process loads, and `Front` is imported and built in a thread,
while a `LoadingApp` responds. So this module must not import anything slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from corral.core.result import Loading, ModelInfo
from corral.core.settings import Settings
from corral.link.client import EngineClient
from corral.server.blocking_job import BlockingJob, ReportProgress
from corral.server.drain import Drain
from corral.server.edge import Edge
from corral.server.http_server import HttpServer
from corral.server.listen import Listener, open_listener
from corral.server.loading_app import LoadingApp
from corral.server.peers import warn_without_key
from corral.server.record_middleware import RecordMiddleware
from corral.server.tls import open_tls
from corral.telemetry.access_log import AccessLog
from corral.telemetry.dispatcher import Telemetry

if TYPE_CHECKING:
    from corral.link.fleet import Fleet
    from corral.server.front import Front
    from corral.text.vocab import Vocab


class Reporter(Protocol):
    """Reports progress to the user at the terminal."""

    def listening(self, address: str) -> None: ...

    def loading(self, loading: Loading) -> None: ...

    def ready(self, address: str, info: ModelInfo) -> None: ...

    def restarting(self, reason: str) -> None: ...

    def located(self, settings: Settings) -> None: ...


Locate = Callable[[ReportProgress], Settings]


async def serve(settings: Settings, reporter: Reporter, locate: Locate | None = None) -> None:
    """Serve until a signal. Raises CorralError if an option is invalid or the model cannot be loaded.

    `locate` blocks while it downloads files, and returns the settings with their paths.
    """
    tls = open_tls(settings.server)
    with open_listener(settings.server) as listener:
        warn_without_key(settings.server, listener)
        await _Life(settings, reporter, listener, tls, locate).run()


class _Life:
    def __init__(
        self,
        settings: Settings,
        reporter: Reporter,
        listener: Listener,
        tls: ssl.SSLContext | None,
        locate: Locate | None,
    ) -> None:
        server = settings.server
        self._settings = settings
        self._locate = locate
        self._reporter = reporter
        self._telemetry = Telemetry()
        self._engine = _open_engine(settings, self._telemetry, reporter)
        self._loading_app = LoadingApp(lambda: self._engine.loading)
        self._edge = Edge(self._loading_app, server, listener.reach)
        self._middleware = RecordMiddleware(self._edge, [AccessLog()])
        self._drain = Drain(server.timeout_s, self._engine.lifecycle.dismiss)
        self._server = HttpServer(
            self._middleware, server, listener, tls, on_listening=reporter.listening, drain=self._drain
        )

    async def run(self) -> None:
        http = asyncio.create_task(self._server.run_here())
        located = asyncio.create_task(self._find_files())
        started = asyncio.create_task(self._start(located))
        built = asyncio.create_task(self._build())
        loaded = asyncio.create_task(self._load(started, built))
        try:
            await asyncio.wait({loaded, http}, return_when=asyncio.FIRST_COMPLETED)
            if loaded.done():
                self._reporter.ready(self._server.address, loaded.result())
            loaded.cancel()
            await http
        finally:
            self._server.stop()
            self._loading_app.give_up()
            located.cancel()
            await self._engine.lifecycle.close()
            _, front = await asyncio.gather(started, built, return_exceptions=True)
            with contextlib.suppress(asyncio.CancelledError):
                await http
            if not isinstance(front, BaseException):
                await front.close()

    async def _find_files(self) -> None:
        if self._locate is not None:
            self._settings = await BlockingJob(self._locate, self._note_loading).run()
            self._engine.lifecycle.settings = self._settings.engine
            self._reporter.located(self._settings)

    def _note_loading(self, loading: Loading) -> None:
        self._engine.lifecycle.loading = loading

    async def _start(self, located: asyncio.Task[None]) -> ModelInfo:
        await located
        return await self._engine.lifecycle.start()

    async def _build(self) -> Front:
        """Build the front, which then responds to requests, although the model is still loading."""
        thread = ThreadPoolExecutor(1, "front")
        building = asyncio.get_running_loop().run_in_executor(
            thread, _import_front, self._settings, self._engine, self._telemetry
        )
        thread.shutdown(wait=False)
        front = await building
        front.start(self._server.connections)
        self._middleware.add_observers(*front.observers)
        self._drain.join(front.services.admission.drain, front.monitor.close)
        self._server.keys = front.keys
        self._edge.application = front.app
        self._loading_app.open(front.app)
        front.share(self._server.address)
        return front

    async def _load(self, started: asyncio.Task[ModelInfo], built: asyncio.Task[Front]) -> ModelInfo:
        """Wait for engine and front, then give the front the loaded model. The vocabulary is read while the
        engine warms up."""
        # First, so that errors in options are reported before errors in the model.
        front = await asyncio.shield(built)
        reading = asyncio.create_task(self._read_vocabulary(front))
        try:
            info, vocab = await asyncio.gather(asyncio.shield(started), reading)
        finally:
            reading.cancel()
        await front.open(info, vocab, self._settings.engine.model)
        return info

    async def _read_vocabulary(self, front: Front) -> Vocab:
        path = await self._engine.lifecycle.opened()
        return await asyncio.to_thread(front.read_vocabulary, path)


def _open_engine(settings: Settings, telemetry: Telemetry, reporter: Reporter) -> EngineClient | Fleet:
    server = settings.server
    common: dict[str, Any] = {
        "n_failures": server.engine_restarts,
        "sleep_idle_s": server.sleep_idle_s,
        "on_loading": reporter.loading,
        "on_restart": reporter.restarting,
    }
    if server.n_engines == 1 and not server.ray:
        return EngineClient(settings.engine, server.engine_timeout_s, telemetry, **common)
    from corral.link.fleet import Fleet  # few servers need it

    if server.engines_min >= 0:
        from corral.link.autoscale import ScaleLimits

        wait_s, idle_s = server.engines_wait_ms / 1e3, server.engines_idle_seconds
        common["scale"] = ScaleLimits(min(server.engines_min, server.n_engines), wait_s, idle_s)
    if server.ray:
        from corral.cluster.end import open_in_cluster
        from corral.cluster.node_share import shares_on_nodes

        common |= {"open_end": partial(open_in_cluster, server), "share_out": shares_on_nodes}
    return Fleet(settings.engine, server.n_engines, server.engine_timeout_s, telemetry, **common)


def _import_front(settings: Settings, engine: EngineClient | Fleet, telemetry: Telemetry) -> Front:
    """The import takes longest of all, so the other processes begin before it."""
    from corral.server.text_processes import start_renderer, start_tokenizer

    with contextlib.ExitStack() as if_it_fails:
        tokenizer = start_tokenizer(settings.server)
        if_it_fails.callback(tokenizer.close)
        renderer = start_renderer(settings.server)
        if_it_fails.callback(renderer.close)
        gc.disable()  # what is imported stays, and `Front.open` looks at all of it once
        try:
            from corral.server.front import Front

            front = Front(settings, engine, telemetry, tokenizer, renderer)
        finally:
            gc.enable()
        if_it_fails.pop_all()
        return front
