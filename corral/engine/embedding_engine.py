"""The engine of a server that only computes embeddings."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from corral.core.errors import NotSupported
from corral.core.result import Event
from corral.core.task import Command, SlotAction, Task
from corral.engine.adapter import AdapterRegistry
from corral.engine.coroutine import Coroutines, Wakeup
from corral.engine.embedder import Embedder
from corral.engine.engine import Engine
from corral.engine.media import MediaEncoder
from corral.engine.ports import AdapterPort, Encoder, Projector
from corral.engine.worker import Worker


class EmbeddingEngine(Engine):
    def __init__(
        self,
        encoder: Encoder,
        adapters: AdapterPort,
        emit: Callable[[list[Event]], None],
        clock: Callable[[], float] = time.perf_counter,
        wake: Callable[[], None] = lambda: None,
        projector: Projector | None = None,
        cache_media_bytes: int = 0,
    ) -> None:
        """`wake` is called, from any thread, when an engine that `is_waiting` can continue."""
        wakeup = Wakeup(wake)
        self._media = MediaEncoder(projector, cache_media_bytes, wakeup)
        self._embedder = embedder = Embedder(lambda: encoder, clock, self._media)
        registry = AdapterRegistry(adapters, lambda: embedder.adapters_in_use)
        workers = (self._media, self._embedder, registry, _Refusal())
        super().__init__(workers, Coroutines(wakeup), wakeup, emit, clock)
        self.warm_up = self._embedder.warm_up


class _Refusal(Worker):
    handles = (Task, SlotAction)

    def handle(self, command: Command, _arrival: int) -> None:
        if isinstance(command, SlotAction | Task) and command.fd >= 0:
            os.close(command.fd)
        raise NotSupported("this server only computes embeddings")
