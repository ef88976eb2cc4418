"""The engine of a server that does nothing but embed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from corral.core.errors import NotSupported
from corral.core.result import Event, Failed, Heartbeat, MediaLayout
from corral.core.task import (
    Cancel,
    Command,
    Embed,
    FreeAdapter,
    LayoutMedia,
    LoadAdapter,
    SlotAction,
    Stop,
    Task,
)
from corral.engine.adapter import AdapterRegistry
from corral.engine.embedder import Embedder
from corral.engine.job import Jobs, Steps
from corral.engine.media import MediaEncoder
from corral.engine.ports import AdapterPort, Encoder, Projector

_SLICE_MS = 50.0  # for the projector, between two batches of others


class EmbeddingEngine:
    """One thread calls everything here but `abort_if_running` and `beat`."""

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
        """`wake` is called, from any thread, when an engine that `is_waiting` can go on."""
        self._emit = emit
        self._media = MediaEncoder(projector, cache_media_bytes, wake)
        self._embedder = Embedder(lambda: encoder, emit, clock, self._media)
        self._adapters = AdapterRegistry(adapters)
        self._jobs = Jobs(wake)
        self._has_rested = False
        self.is_stopped = False
        self.abort_if_running = self._embedder.abort_if_running
        self.warm_up = self._embedder.warm_up

    @property
    def has_work(self) -> bool:
        return self._embedder.has_work or bool(self._jobs) or self._media.is_busy

    @property
    def is_waiting(self) -> bool:
        if self._media.is_busy:
            has_to_wait = self._has_rested and self._media.is_waiting
        else:
            has_to_wait = bool(self._jobs) and not self._embedder.has_work
        return has_to_wait and self._jobs.are_waiting(())

    def handle(self, command: Command) -> None:
        if isinstance(command, Embed):
            self._embedder.add(command)
        elif isinstance(command, LayoutMedia):
            self._emit(self._jobs.start(command.id, command.id, self._layout_media(command)))
        elif isinstance(command, Cancel):
            self._embedder.cancel(command.task_id)
            self._jobs.cancel(command.task_id)
            self._adapters.tidy(self._embedder.adapters_in_use)
        elif isinstance(command, Stop):
            self.is_stopped = True
        elif isinstance(command, LoadAdapter | FreeAdapter):
            self._emit(self._adapters.handle(command))
            self._adapters.tidy(self._embedder.adapters_in_use)
        else:
            if isinstance(command, SlotAction | Task) and command.fd >= 0:
                os.close(command.fd)
            self._emit([Failed(command.id, NotSupported("this server only embeds").info())])

    def step(self) -> None:
        self._media.pause()
        for media, error in self._media.collect():
            self._embedder.fail(media, error)
        self._emit(self._jobs.run(()))
        self._has_rested = not (self._embedder.has_work and self._embedder.step())
        self._adapters.tidy(self._embedder.adapters_in_use)
        if self._has_rested:
            self._media.go_on()
        else:
            self._media.go_on_for(_SLICE_MS)

    def heartbeat(self) -> Heartbeat:
        heartbeat = self._embedder.heartbeat()
        return heartbeat if heartbeat.decode_ms else self._media.heartbeat()

    def _layout_media(self, command: LayoutMedia) -> Steps:
        return MediaLayout(command.id, (yield self._media.layout_media(command.media)))
