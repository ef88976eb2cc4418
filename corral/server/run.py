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

from corral.api.service import Service
from corral.api.system_prompt import SystemText
from corral.core.errors import CorralError
from corral.core.result import ModelInfo
from corral.core.settings import Settings
from corral.link.supervisor import Supervisor
from corral.llama import library
from corral.llama.model import Model
from corral.server.app import create_app
from corral.server.chat import chat_settings
from corral.server.connection import patient_protocol
from corral.server.defaults import check_tokens, default_guidance, default_params
from corral.server.listen import Listener, open_listener
from corral.server.request_log import RequestLog
from corral.server.system_prompt import evaluate_system_prompt, read_system_prompt
from corral.server.tls import open_tls

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
        on_loading=reporter.loading,
        on_restart=reporter.restarting,
    )
    service = Service(settings, engine, default_params(settings))
    system_text = read_system_prompt(settings.server.system_prompt_file)
    config = _uvicorn_config(settings, service)
    with open_listener(settings.server) as listener:
        await _serve(
            _Server(config, listener, tls, reporter.listening), service, engine, system_text, reporter
        )


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
        server.should_exit = True
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


def _uvicorn_config(settings: Settings, service: Service) -> uvicorn.Config:
    return uvicorn.Config(
        RequestLog(create_app(service)),
        http=patient_protocol(settings.server.timeout_s),
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_keep_alive=60,
        timeout_graceful_shutdown=int(settings.server.timeout_s),
        server_header=False,
    )


class _Server(uvicorn.Server):
    """Uvicorn with our signals: the first asks it to finish, the second to stop at once; both exit with 0."""

    def __init__(
        self,
        config: uvicorn.Config,
        listener: Listener,
        tls: ssl.SSLContext | None,
        on_listening: Callable[[str], None],
    ) -> None:
        super().__init__(config)
        self._sockets = listener.sockets
        self._tls = tls
        self._on_listening = on_listening
        self.address = listener.address

    async def run_here(self) -> None:
        """Serve on the running event loop."""
        await self.serve(self._sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.config.ssl = self._tls
        await super().startup(sockets)
        self._on_listening(self.address)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        yield

    def _on_signal(self) -> None:
        _log.info("stopping at once" if self.should_exit else "stopping, when running requests are done")
        self.force_exit = self.should_exit
        self.should_exit = True
