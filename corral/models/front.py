"""The front of one model: its services, and the processes that it needs beside its engine.

Imported while the server already listens and the engine loads, since this import is the slowest of the
start.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from corral.core.client import ANONYMOUS
from corral.core.result import ModelInfo
from corral.core.settings import Settings
from corral.generate.engine import Engine
from corral.generate.services import ServerServices
from corral.link.lifecycle import EngineLifecycle
from corral.link.quick_tokenizer import QuickTokenizer
from corral.link.renderer import Renderer
from corral.link.tokenizer import Tokenizer
from corral.models.chat import chat_settings
from corral.models.defaults import check_tokens, default_guidance
from corral.models.services import open_model_services
from corral.models.system_prompt import read_system_prompt, tokenize_system_file
from corral.telemetry.dispatcher import Telemetry
from corral.telemetry.record import RequestRecord
from corral.telemetry.request_observer import Asked
from corral.text.vocab import Vocab, VocabFile

if TYPE_CHECKING:
    from corral.fleet.fleet_lifecycle import FleetLifecycle


class Front:
    """Responds that the model is loading until `bring_up` has ended. A `RequestObserver`."""

    def __init__(
        self,
        of_server: ServerServices,
        settings: Settings,
        engine: Engine,
        telemetry: Telemetry,
        tokenizer: Tokenizer,
        renderer: Renderer,
        wake_engine: Callable[[], None],
    ) -> None:
        """Call from any thread. Raises CorralError for invalid options of the model. `tokenizer`: started,
        and closed with the front. `renderer`: of all models."""
        self.services = open_model_services(of_server, settings, engine, telemetry, wake_engine)
        self._tokenizer, self._renderer = tokenizer, renderer
        self._quick = QuickTokenizer(tokenizer)
        self.services.admission.rely_on(
            tokenizer=lambda: tokenizer.is_ready, renderer=lambda: renderer.is_ready
        )
        self._system_text = read_system_prompt(settings.server.system_prompt_file)

    async def bring_up(
        self,
        lifecycle: EngineLifecycle | FleetLifecycle,
        started: asyncio.Future[ModelInfo],
        path: Callable[[], str],
    ) -> ModelInfo:
        """Serve the model once its engine has started; the vocabulary is read while that warms up.

        `path`: returns the file as in the options, or where it was downloaded to.
        """
        self.services.monitor.start()
        if self.services.metrics is not None:
            self.services.metrics.watch_tokenizer(lambda: self._tokenizer.n_restarts)
        reading = asyncio.create_task(self._read_vocabulary(lifecycle))
        try:
            info, vocab = await asyncio.gather(asyncio.shield(started), reading)
        finally:
            reading.cancel()
        await self._open(info, vocab, path())
        return info

    def on_request_end(self, asked: Asked, record: RequestRecord) -> None:
        self.services.monitor.on_request_end(asked, record)
        if self.services.metrics is not None:
            self.services.metrics.on_request_end(asked, record)

    async def _read_vocabulary(self, lifecycle: EngineLifecycle | FleetLifecycle) -> Vocab:
        """Read the vocabulary as soon as an engine process has opened the file."""
        file = VocabFile(await lifecycle.opened(), self.services.settings.engine.overrides)
        vocab = await asyncio.to_thread(self._tokenizer.open, file)
        vocab.tokenize_soon = self._quick.tokenize_all
        return vocab

    async def _open(self, info: ModelInfo, vocab: Vocab, path: str) -> None:
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
        self.services.monitor.close()
        self._quick.close()
        await asyncio.to_thread(self._tokenizer.close)
        await self.services.states.sessions.close()
