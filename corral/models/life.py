"""How the models of a catalog live: they are loaded when requests name them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from corral.core.catalog import CatalogModel
from corral.core.result import Loading
from corral.core.settings import Settings
from corral.models.store import Locate, ModelStore, Read
from corral.telemetry.ledger import Ledger
from corral.telemetry.loop_meter import LoopMeter

if TYPE_CHECKING:
    from corral.models.many import ManyModels


class ManyReporter(Protocol):
    """Reports to the user at the terminal."""

    def ready_for_many(self, address: str, names: Sequence[str]) -> None: ...


class CatalogLife:
    """A `ModelsLife`."""

    def __init__(
        self,
        catalog: Sequence[CatalogModel],
        settings: Settings,
        reporter: ManyReporter,
        ledger: Ledger,
        loop: LoopMeter,
        locate: Locate,
        store: ModelStore | None = None,
        read: Read | None = None,
    ) -> None:
        """`locate` downloads the files of a model; it blocks."""
        self._catalog = catalog
        self._settings = settings
        self._reporter = reporter
        self._ledger, self._loop = ledger, loop
        self._locate, self._store, self._read = locate, store, read
        self._models: ManyModels | None = None
        self._starters: list[asyncio.Task[None]] = []

    def loading(self) -> Loading | None:
        return None

    def begin(self) -> None: ...

    def open_models(self, if_it_fails: contextlib.ExitStack) -> ManyModels:  # noqa: ARG002
        from corral.models.many import ManyModels

        self._models = ManyModels(
            self._catalog,
            self._settings.server,
            self._ledger,
            self._loop,
            self._locate,
            self._store,
            self._read,
        )
        return self._models

    async def load(self, models: ManyModels, address: str) -> None:
        self._reporter.ready_for_many(address, [entry.name for entry in self._catalog])
        self._starters = [
            asyncio.create_task(models.registry.load(model))
            for model in models.registry.models.values()
            if model.entry.loads_on_startup
        ]

    def dismiss(self) -> None:
        if self._models is not None:
            self._models.registry.dismiss()

    async def stop(self) -> None:
        for task in self._starters:
            task.cancel()
        await asyncio.gather(*self._starters, return_exceptions=True)
