"""All that answers requests: the service, its application, and who watches them.

It is imported while the server listens and the engine loads, since that takes longer than anything else here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Sized
from concurrent.futures import ThreadPoolExecutor

import anyio.to_thread

from corral.api.service import Service
from corral.core.errors import CorralError
from corral.core.modifier import Override
from corral.core.result import ModelInfo
from corral.core.settings import Settings
from corral.link.client import EngineClient
from corral.llama import library
from corral.llama.model import Model
from corral.server.access import Keys
from corral.server.app import create_app
from corral.server.chat import chat_settings
from corral.server.defaults import check_tokens, default_guidance, default_params
from corral.server.system_prompt import evaluate_system_prompt, read_system_prompt
from corral.telemetry.dispatcher import Telemetry
from corral.telemetry.live import Monitor
from corral.telemetry.middleware import RequestObserver


class Front:
    """Mutable: answers that the model is loading until it was given one."""

    def __init__(self, settings: Settings, engine: EngineClient, telemetry: Telemetry) -> None:
        """In any thread; raises CorralError for options of the server that are wrong."""
        self.service = Service(settings, engine, telemetry, default_params(settings))
        self._system_text = read_system_prompt(settings.server.system_prompt_file)
        self.app = create_app(self.service)

    @property
    def keys(self) -> Keys:
        keys: Keys = self.app.state.keys
        return keys

    @property
    def observers(self) -> Sequence[RequestObserver]:
        observers: Sequence[RequestObserver] = self.app.state.observers
        return observers

    @property
    def monitor(self) -> Monitor:
        monitor: Monitor = self.app.state.monitor
        return monitor

    def start(self, connections: Sized) -> None:
        """On the event loop."""
        use_threads(self.service.settings.server.n_threads_http)
        self.monitor.start()
        if self.app.state.metrics is not None:
            self.app.state.metrics.watch_connections(lambda: len(connections))

    def read_vocabulary(self, path: str) -> Model:
        """In any thread; only of a file that the engine process has survived."""
        return open_vocabulary(path, self.service.settings.engine.overrides)

    async def open(self, info: ModelInfo, model: Model) -> None:
        """The engine is ready: serve its model, of which `model` has the words."""
        service, settings = self.service, self.service.settings
        server = settings.server
        chat = chat_settings(server, model.chat_templates, model.vocab)
        check_tokens(service.defaults.sampling, info.n_vocab)
        service.adapters.open(info.adapters, settings.engine.lora, not server.lora_init_without_apply)
        if info.can_generate:
            service.guide(default_guidance(server, model.vocab, info.n_ctx))
            if service.defaults.constraint or service.defaults.guidance:
                # Only the engine can tell what is wrong with a grammar, and whether guidance has room.
                await service.evaluate([0], service.defaults)
            if self._system_text is not None:
                service.system_prompt = await evaluate_system_prompt(
                    self._system_text, service, model.vocab, info.n_ctx
                )
        service.open(model.vocab, chat, model.chat_templates.get("rerank", ""))

    async def close(self) -> None:
        await self.service.sessions.close()
        if self.app.state.tracer is not None:
            await asyncio.to_thread(self.app.state.tracer.close)


def use_threads(n: int) -> None:
    """Have so many threads at most do what would hold up the event loop; -1: as many as others think fit."""
    if n > 0:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(n, "http"))
        anyio.to_thread.current_default_thread_limiter().total_tokens = n


def open_vocabulary(path: str, overrides: Sequence[Override] = ()) -> Model:
    library.start(verbose=False)
    model = Model.open(path, vocab_only=True, overrides=overrides)
    if not model.vocab.max_piece_bytes:
        raise CorralError(f"model '{path}' has no vocabulary")
    return model
