"""How the only model of a server lives: it is loaded at once, and the server ends if that fails.

The slow steps run in parallel: its engine process loads while the application is imported. So this module
must not import anything slow.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from corral.core.result import Loading, ModelInfo
from corral.core.settings import Settings
from corral.models.blocking_job import BlockingJob, ReportProgress
from corral.models.engines import open_engines
from corral.telemetry.dispatcher import Telemetry
from corral.telemetry.ledger import Ledger
from corral.telemetry.loop_meter import LoopMeter

if TYPE_CHECKING:
    from corral.models.only_model import OnlyModel

Locate = Callable[[ReportProgress], Settings]


class Reporter(Protocol):
    """Reports progress to the user at the terminal."""

    def loading(self, loading: Loading) -> None: ...

    def ready(self, address: str, info: ModelInfo) -> None: ...

    def restarting(self, reason: str) -> None: ...

    def located(self, settings: Settings) -> None: ...


class OnlyLife:
    """A `ModelsLife`. Create it on the event loop."""

    def __init__(
        self,
        settings: Settings,
        reporter: Reporter,
        ledger: Ledger,
        loop: LoopMeter,
        locate: Locate | None = None,
    ) -> None:
        """`locate` blocks while it downloads files, and returns the settings with their paths."""
        self._settings = settings
        self._reporter = reporter
        self._locate = locate
        self._telemetry = Telemetry(ledger, loop)
        self._engine = open_engines(
            settings.engine, settings.server, self._telemetry, reporter.restarting, reporter.loading
        )
        self._located: asyncio.Task[None] | None = None
        self._started: asyncio.Task[ModelInfo] | None = None

    def loading(self) -> Loading:
        return self._engine.loading

    def dismiss(self) -> None:
        self._engine.lifecycle.dismiss()

    def begin(self) -> None:
        self._located = asyncio.create_task(self._find_files())
        self._started = asyncio.create_task(self._start(self._located))

    def open_models(self, if_it_fails: contextlib.ExitStack) -> OnlyModel:
        """The import takes longest of all, so the other processes begin before it."""
        from corral.models.text_processes import start_renderer, start_tokenizer

        tokenizer = start_tokenizer(self._settings.server)
        if_it_fails.callback(tokenizer.close)
        renderer = start_renderer(self._settings.server)
        if_it_fails.callback(renderer.close)
        from corral.models.only_model import OnlyModel

        return OnlyModel(self._settings, self._engine, self._telemetry, tokenizer, renderer)

    async def load(self, models: OnlyModel, address: str) -> None:
        """Give the front the loaded model."""
        assert self._started is not None
        lifecycle = self._engine.lifecycle
        info = await models.front.bring_up(lifecycle, self._started, lambda: self._settings.engine.model)
        self._reporter.ready(address, info)

    async def stop(self) -> None:
        if self._located is not None:
            self._located.cancel()
        await self._engine.lifecycle.close()
        if self._started is not None:
            await asyncio.gather(self._started, return_exceptions=True)

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
