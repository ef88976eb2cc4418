"""The engine of a server that does nothing but embed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from corral.core.errors import NotSupported
from corral.core.result import Beat, Event, Failed
from corral.core.task import Cancel, Embed, FreeAdapter, LoadAdapter, Order, SlotAction, Stop
from corral.engine.adapter import AdapterDesk
from corral.engine.embedder import Embedder
from corral.engine.ports import AdapterPort, Encoder


class EmbeddingEngine:
    """One thread calls everything here but `abort_if_running` and `beat`."""

    is_waiting = False

    def __init__(
        self,
        encoder: Encoder,
        adapters: AdapterPort,
        emit: Callable[[list[Event]], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._emit = emit
        self._embedder = Embedder(lambda: encoder, emit, clock)
        self._adapters = AdapterDesk(adapters)
        self.is_stopped = False
        self.abort_if_running = self._embedder.abort_if_running
        self.warm_up = self._embedder.warm_up

    @property
    def has_work(self) -> bool:
        return self._embedder.has_work

    def handle(self, order: Order) -> None:
        if isinstance(order, Embed):
            self._embedder.add(order)
        elif isinstance(order, Cancel):
            self._embedder.cancel(order.task_id)
            self._adapters.tidy(self._embedder.adapters_in_use)
        elif isinstance(order, Stop):
            self.is_stopped = True
        elif isinstance(order, LoadAdapter | FreeAdapter):
            self._emit(self._adapters.handle(order))
            self._adapters.tidy(self._embedder.adapters_in_use)
        else:
            if isinstance(order, SlotAction) and order.fd >= 0:
                os.close(order.fd)
            self._emit([Failed(order.id, NotSupported("this server only embeds").info())])

    def step(self) -> None:
        self._embedder.step()
        self._adapters.tidy(self._embedder.adapters_in_use)

    def beat(self) -> Beat:
        return self._embedder.beat()
