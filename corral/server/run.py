"""A server's life: listen at once, load the model, serve, stop on a signal with nothing half-done."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Protocol

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
from corral.server.defaults import default_guidance, default_params
from corral.server.system_prompt import evaluate_system_prompt, read_system_prompt


class Reporter(Protocol):
    """Tells a person what goes on."""

    def listening(self, address: str) -> None: ...

    def loading(self, fraction: float) -> None: ...

    def ready(self, address: str, info: ModelInfo) -> None: ...

    def restarting(self, reason: str) -> None: ...


async def serve(settings: Settings, reporter: Reporter) -> None:
    """Serve until a signal; raises CorralError if the model cannot be loaded."""
    engine = Supervisor(
        settings.engine,
        settings.server.engine_timeout_s,
        on_loading=reporter.loading,
        on_restart=reporter.restarting,
    )
    service = Service(settings, engine, default_params(settings))
    system_text = read_system_prompt(settings.server.system_prompt_file)
    server = _Server(_uvicorn_config(settings, service), reporter.listening)
    http = asyncio.create_task(server.serve())
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


async def _load(service: Service, engine: Supervisor, system_text: SystemText | None) -> ModelInfo:
    info = await engine.start()
    # Only a file that the engine process has survived is opened here, and only for its vocabulary.
    model = await asyncio.to_thread(_open_vocabulary, service.settings)
    chat = chat_settings(service.settings.server, model.chat_templates, model.vocab)
    server = service.settings.server
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
        create_app(service),
        host=settings.server.host,
        port=settings.server.port,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_keep_alive=60,
        timeout_graceful_shutdown=int(settings.server.timeout_s),
        server_header=False,
    )


class _Server(uvicorn.Server):
    """Uvicorn with our signals: the first asks it to finish, the second to stop at once; both exit with 0."""

    def __init__(self, config: uvicorn.Config, on_listening: Callable[[str], None]) -> None:
        super().__init__(config)
        self._on_listening = on_listening
        self.address = ""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit:
            where = f"{self.config.host}:{self.config.port}"
            raise CorralError(f"cannot listen on {where}; choose another --port or --host") from None
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        self._on_listening(self.address)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        yield

    def _on_signal(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
