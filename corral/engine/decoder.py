"""Evaluating batches: measured, and watched from other threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from corral.core.chunk import Chunk, DecodeStatus
from corral.core.result import Heartbeat
from corral.engine.cost import CostModel, Load
from corral.engine.ports import Evaluator


class Decoder:
    """Mutable. One thread decodes; any thread may abort or ask how long it has been."""

    def __init__(self, backend: Evaluator, clock: Callable[[], float]) -> None:
        self._backend = backend
        self._clock = clock
        self.cost = CostModel()
        self._started = 0.0
        self._predicted_ms = 0.0
        self._abortable: int | None = None
        self._abort_lock = threading.Lock()

    def decode(self, chunks: Sequence[Chunk], load: Load, only_of: int | None) -> DecodeStatus:
        """Evaluate. What is only work for one task, and nothing its stream waits for, can be cut short."""
        self._predicted_ms = self.cost.predict_ms(load)
        self._started = started = self._clock()
        self._abortable = only_of
        try:
            status = self._backend.decode(chunks)
        finally:
            self._started = 0.0
            with self._abort_lock:
                self._abortable = None
                self._backend.clear_abort()
        if status is DecodeStatus.OK:
            self.cost.observe(load, (self._clock() - started) * 1e3)
        return status

    def abort_if_running(self, task_id: int) -> None:
        """Cut the decode short if all it does is for this task."""
        with self._abort_lock:
            if self._abortable == task_id:
                self._backend.abort()

    def heartbeat(self) -> Heartbeat:
        """How long the decode under way has been running."""
        started = self._started
        return Heartbeat((self._clock() - started) * 1e3 if started else 0.0, self._predicted_ms)
