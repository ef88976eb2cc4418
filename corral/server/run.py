"""A server's life: listen at once, load the model, serve, stop on a signal with nothing half-done.

What is wrong with options of the server itself is said before anything is loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import anyio.to_thread
import uvicorn
from fastapi import FastAPI

from corral.api.monitor import Monitor
from corral.api.service import Service
from corral.api.system_prompt import SystemText
from corral.core.errors import CorralError
from corral.core.result import ModelInfo
from corral.core.settings import ServerSettings, Settings
from corral.link.supervisor import Supervisor
from corral.llama import library
from corral.llama.model import Model
from corral.server.acceptor import Acceptor, raise_open_files, share_for_connections
from corral.server.access import Keys
from corral.server.app import create_app
from corral.server.chat import chat_settings
from corral.server.connection import patient_protocol
from corral.server.cors import Cors, cors_policy
from corral.server.defaults import check_tokens, default_guidance, default_params
from corral.server.drain import Drain
from corral.server.hosts import HostControl, allowed_names
from corral.server.listen import Listener, Reach, open_listener
from corral.server.request_log import RequestLog
from corral.server.system_prompt import evaluate_system_prompt, read_system_prompt
from corral.server.tls import open_tls, reload_tls
from corral.server.traffic import Traffic

_log = logging.getLogger("corral")


class Reporter(Protocol):
    """Tells a person what goes on."""

    def listening(self, address: str) -> None: ...

    def loading(self, fraction: float) -> None: ...

    def ready(self, address: str, info: ModelInfo) -> None: ...

    def restarting(self, reason: str) -> None: ...


async def serve(settings: Settings, reporter: Reporter) -> None:
    """Serve until a signal; raises CorralError if the model cannot be loaded."""
    tls = open_tls(settings.server)
    use_threads(settings.server.n_threads_http)
    engine = Supervisor(
        settings.engine,
        settings.server.engine_timeout_s,
        settings.server.engine_restarts,
        settings.server.sleep_idle_s,
        on_loading=reporter.loading,
        on_restart=reporter.restarting,
    )
    service = Service(settings, engine, default_params(settings))
    system_text = read_system_prompt(settings.server.system_prompt_file)
    app = create_app(service)
    monitor: Monitor = app.state.monitor
    monitor.start()
    drain = Drain(settings.server.timeout_s, (service.drain, monitor.close), (monitor.close, engine.dismiss))
    with open_listener(settings.server) as listener:
        config = _uvicorn_config(settings, app, listener.reach)
        server = _Server(config, settings.server, listener, tls, reporter.listening, drain, app.state.keys)
        if app.state.metrics is not None:
            app.state.metrics.watch_connections(lambda: len(server.server_state.connections))
        try:
            await _serve(server, service, engine, system_text, reporter)
        finally:
            if app.state.tracer is not None:
                await asyncio.to_thread(app.state.tracer.close)


async def _serve(
    server: _Server, service: Service, engine: Supervisor, system_text: SystemText | None, reporter: Reporter
) -> None:
    http = asyncio.create_task(server.run_here())
    try:
        loading = asyncio.create_task(_load(service, engine, system_text))
        await asyncio.wait({loading, http}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            reporter.ready(server.address, loading.result())
        loading.cancel()
        await http
    finally:
        server.stop()
        await engine.close()
        with contextlib.suppress(asyncio.CancelledError):
            await http
        await service.sessions.close()


def use_threads(n: int) -> None:
    """Have so many threads at most do what would hold up the event loop; -1: as many as others think fit."""
    if n > 0:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(n, "http"))
        anyio.to_thread.current_default_thread_limiter().total_tokens = n


async def _load(service: Service, engine: Supervisor, system_text: SystemText | None) -> ModelInfo:
    info = await engine.start()
    # Only a file that the engine process has survived is opened here, and only for its vocabulary.
    model = await asyncio.to_thread(_open_vocabulary, service.settings)
    chat = chat_settings(service.settings.server, model.chat_templates, model.vocab)
    server = service.settings.server
    check_tokens(service.defaults.sampling, info.n_vocab)
    service.adapters.open(info.adapters, service.settings.engine.lora, not server.lora_init_without_apply)
    if info.can_generate:
        service.guide(default_guidance(server, model.vocab, info.n_ctx))
        if service.defaults.constraint or service.defaults.guidance:
            # Only the engine can tell what is wrong with a grammar, and whether there is room to be guided.
            await service.evaluate([0], service.defaults)
        if system_text is not None:
            service.system_prompt = await evaluate_system_prompt(
                system_text, service, model.vocab, info.n_ctx
            )
    service.open(model.vocab, chat, model.chat_templates.get("rerank", ""))
    return info


def _open_vocabulary(settings: Settings) -> Model:
    library.start(verbose=False)
    model = Model.open(settings.engine.model, vocab_only=True, overrides=settings.engine.overrides)
    if not model.vocab.max_piece_bytes:
        raise CorralError(f"model '{settings.engine.model}' has no vocabulary")
    return model


def _uvicorn_config(settings: Settings, app: FastAPI, reach: Reach) -> uvicorn.Config:
    guarded = HostControl(app, allowed_names(settings.server, reach))
    return uvicorn.Config(
        Traffic(Cors(guarded, cors_policy(settings.server)), [RequestLog(), *app.state.listeners]),
        http=patient_protocol(settings.server.timeout_s),
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_keep_alive=60,
        server_header=False,
    )


class _Server(uvicorn.Server):
    """Uvicorn with our signals: the first asks it to finish, the second to stop at once; both exit with 0."""

    def __init__(
        self,
        config: uvicorn.Config,
        settings: ServerSettings,
        listener: Listener,
        tls: ssl.SSLContext | None,
        on_listening: Callable[[str], None],
        drain: Drain,
        keys: Keys,
    ) -> None:
        super().__init__(config)
        self._settings = settings
        self._sockets = listener.sockets
        self._tls = tls
        self._on_listening = on_listening
        self._drain = drain
        self._keys = keys
        self.address = listener.address

    async def run_here(self) -> None:
        """Serve on the running event loop."""
        await self.serve(self._sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        n_connections = share_for_connections(raise_open_files())
        connections = self.server_state.connections
        door = Acceptor(sockets or [], self._protocol, connections, n_connections, self._tls)
        self.servers = [door]  # type: ignore[list-item]
        self.started = True
        self._on_listening(self.address)

    def _protocol(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(self.config, self.server_state, {})  # type: ignore[call-arg]

    def stop(self) -> None:
        """Without waiting for anybody."""
        self.should_exit = True
        self._drain.hurry()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn does it, but for as long as `Drain` says."""
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
        """Read again what may have been renewed; what is no good changes nothing."""
        try:
            self._keys.reload()
        except CorralError as error:
            _log.error("the old keys stay: %s", error.message)
        try:
            if self._tls is not None:
                reload_tls(self._tls, self._settings)
        except CorralError as error:
            _log.error("the old certificate stays: %s", error.message)
        _log.info("keys and certificates were read again")
