"""The front: the application, the state that its routes use, and its observers.

Imported while the server already listens and the engine loads, since this import is the slowest of the
start.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Sequence, Sized
from concurrent.futures import ThreadPoolExecutor

import anyio.to_thread
import msgspec
from starlette.applications import Starlette

from corral.api.durable_runner import DurableRunner, start_durable
from corral.api.engine import Engine
from corral.core.client import ANONYMOUS
from corral.core.result import ModelInfo
from corral.core.settings import ServerSettings, Settings
from corral.link.quick_tokenizer import QuickTokenizer
from corral.link.renderer import Renderer
from corral.link.tokenizer import Tokenizer
from corral.server.access import Keys
from corral.server.app import create_app
from corral.server.chat import chat_settings
from corral.server.defaults import check_tokens, default_guidance, default_params
from corral.server.services import open_services
from corral.server.system_prompt import read_system_prompt, tokenize_system_file
from corral.telemetry.dispatcher import Telemetry
from corral.telemetry.live import Monitor
from corral.telemetry.request_observer import RequestObserver
from corral.text.vocab import Vocab, VocabFile

_SWITCH_S = 0.001  # between two threads that compute: the event loop should not wait for all of them


class Front:
    """Responds that the model is loading until `open`."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        telemetry: Telemetry,
        tokenizer: Tokenizer,
        renderer: Renderer,
        hub: Starlette | None = None,
    ) -> None:
        """Call from any thread. Raises CorralError for invalid options of the server. `tokenizer`: started,
        and closed with the front; so is `renderer` of a server for one model. `hub`: the application of a
        server for many models, which has the keys, and the documents of all models."""
        shared = hub.state.services if hub is not None else None
        self.services = open_services(settings, engine, telemetry, default_params(settings), shared)
        self._is_alone = hub is None
        self._tokenizer, self._renderer = tokenizer, renderer
        self._quick = QuickTokenizer(tokenizer)
        self.services.admission.rely_on(
            tokenizer=lambda: tokenizer.is_ready, renderer=lambda: renderer.is_ready
        )
        self._system_text = read_system_prompt(settings.server.system_prompt_file)
        self._durable: DurableRunner | None = None
        self.app = create_app(self.services, hub.state.keys if hub is not None else None)

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
        """Start background work; call on the event loop."""
        if self._is_alone:
            prepare_loop(self.services.settings.server)
            self.app.state.hardware.start()
        self.services.telemetry.loop.start(lambda: len(connections) > 0)
        self.monitor.start()
        if self.services.batches is not None:
            self.services.batches.start(self.app.state.stored_work.run)
        if self._is_alone:
            self._durable = start_durable(
                self.services, self.app.state.stored_work.run, lambda: self.services.admission.is_open
            )
        if self.app.state.metrics is not None:
            self.app.state.metrics.watch_connections(lambda: len(connections))
            self.app.state.metrics.watch_tokenizer(lambda: self._tokenizer.n_restarts)

    def share(self, address: str) -> None:
        """Serve together with others that have the same storage. Raises CorralError if they cannot know how
        to reach this one."""
        services = self.services
        if services.sharing is not None:
            services.sharing.start(
                address,
                services.batches,
                self._durable,
                services.telemetry.ledger,
                lambda: services.admission.is_open,
            )

    def read_vocabulary(self, path: str) -> Vocab:
        """Read the vocabulary; call from any thread, and only after the engine process has loaded the
        file."""
        vocab = self._tokenizer.open(VocabFile(path, self.services.settings.engine.overrides))
        vocab.tokenize_soon = self._quick.tokenize_all
        return vocab

    async def open(self, info: ModelInfo, vocab: Vocab, path: str) -> None:
        """Serve the model once the engine is ready. `path`: as in the options, or where the file was
        downloaded to."""
        services, settings = self.services, self.services.settings
        server, defaults = settings.server, services.defaults
        chat = await asyncio.to_thread(
            chat_settings, server, vocab.chat_templates, vocab, self._renderer.template
        )
        check_tokens(defaults.params.sampling, info.n_vocab)
        services.adapters.open(info.adapters, settings.engine.lora, not server.lora_init_without_apply)
        if info.can_generate:
            defaults.guide(await asyncio.to_thread(default_guidance, server, vocab, info.n_ctx))
            if defaults.params.constraint or defaults.params.guidance:
                # Only the engine can check a grammar and whether guidance fits.
                await services.runner.evaluate([0], defaults.params)
            if self._system_text is not None:
                system = await services.pools.run_prompt(
                    ANONYMOUS, tokenize_system_file, self._system_text, vocab, info.n_ctx
                )
                params = msgspec.structs.replace(defaults.params, constraint=None)
                # Evaluated once, it is cached for all slots.
                await services.runner.evaluate(list(system.tokens), system.within(params))
                defaults.system_prompt = system
        services.model.open(path, vocab, chat, vocab.chat_templates.get("rerank", ""))
        gc.collect()
        gc.freeze()  # nothing of this becomes garbage: scanning it would pause the event loop

    def rest(self) -> None:
        """Free what an unloaded model does not need until its next request."""
        self._tokenizer.rest()

    async def close(self) -> None:
        self._quick.close()
        await asyncio.to_thread(self._tokenizer.close)
        if self._is_alone:
            await asyncio.to_thread(self._renderer.close)
        sharing = self.services.sharing if self._is_alone else None
        if self._is_alone:
            if sharing is not None:
                await sharing.stop()
            if self.services.journal is not None:
                self.services.journal.stop()
            if self._durable is not None:
                await self._durable.close()
            if self.services.batches is not None:
                await self.services.batches.close()
            await self.services.streams.close()
            if self.services.mcp is not None:
                await self.services.mcp.close()
            await self.services.responses.close()
            if self.services.journal is not None:
                await self.services.journal.close()
            await self.services.telemetry.ledger.close()
        await self.services.storage.sessions.close()
        if self.app.state.tracer is not None:
            await asyncio.to_thread(self.app.state.tracer.close)
        if sharing is not None:
            await sharing.close()


def prepare_loop(server: ServerSettings) -> None:
    """Set up the threads of the process; call once, on the event loop."""
    use_threads(server.n_threads_http)
    sys.setswitchinterval(_SWITCH_S)


def use_threads(n: int) -> None:
    """Limit the threads for blocking work; -1: the libraries' defaults."""
    if n > 0:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(n, "http"))
        anyio.to_thread.current_default_thread_limiter().total_tokens = n
