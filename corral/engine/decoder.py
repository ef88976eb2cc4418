"""Evaluate batches, measured, and observable from other threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from corral.core.chunk import Chunk, DecodeStatus
from corral.core.result import Decodes, Heartbeat
from corral.engine.cost import CostModel, Load
from corral.engine.ports import Evaluator


class Decoder:
    """Mutable. One thread decodes; any thread may abort or ask how long it has been running."""

    def __init__(self, backend: Evaluator, cost: CostModel, clock: Callable[[], float]) -> None:
        self._backend = backend
        self._clock = clock
        self.cost = cost
        self._started = 0.0
        self._predicted_ms = 0.0
        self._abortable: int | None = None
        self._yields = False
        self.must_yield = False  # other work has come since the step was planned
        self._abort_lock = threading.Lock()
        self.decodes = Decodes(0, 0)

    def decode(
        self, chunks: Sequence[Chunk], load: Load, only_of: int | None, yields: bool = False
    ) -> DecodeStatus:
        """Evaluate chunks. `only_of`: the task that alone needs the result, so that the decode can be aborted
        with it; `yields`: it can be aborted for any task that comes first."""
        self._predicted_ms = self.cost.predict_ms(load)
        self._started = started = self._clock()
        self._abortable, self._yields = only_of, yields
        try:
            status = self._backend.decode(chunks)
        finally:
            self._started = 0.0
            with self._abort_lock:
                self._abortable, self._yields = None, False
                self._backend.clear_abort()
        if status is DecodeStatus.OK:
            self.cost.observe(load, (self._clock() - started) * 1e3)
            self.decodes = Decodes(self.decodes.n + 1, self.decodes.n_busy + len(chunks))
        return status

    def abort_if_running(self, task_id: int) -> None:
        """Abort the decode if it works only for this task."""
        with self._abort_lock:
            if self._abortable == task_id:
                self._backend.abort()

    def abort_if_yielding(self) -> None:
        """Abort the decode if all its work comes after that of a new task; what is planned like it waits."""
        with self._abort_lock:
            self.must_yield = True
            if self._yields:
                self._backend.abort()

    def heartbeat(self) -> Heartbeat:
        """Report how long the current decode has been running."""
        started = self._started
        return Heartbeat((self._clock() - started) * 1e3 if started else 0.0, self._predicted_ms)
