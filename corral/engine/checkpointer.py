"""Take checkpoints of slots while prompts are evaluated, and keep their memory within the budget."""

from __future__ import annotations

from collections.abc import Sequence

from corral.engine.generation import Work
from corral.engine.kv import KvStore
from corral.engine.prefix import MIN_REUSE
from corral.engine.request import Request, RequestPhase
from corral.engine.scheduler import Scheduler
from corral.engine.slot import Slot


class Checkpointer:
    def __init__(self, scheduler: Scheduler, kv: KvStore) -> None:
        self._scheduler = scheduler
        self._kv = kv

    def begin(self) -> None:
        """Take a checkpoint of what slots have before a prompt is evaluated there: the end of the last
        answer."""
        for slot, request in (
            self._scheduler.running(RequestPhase.PREFILL) if self._kv.takes_checkpoints else ()
        ):
            if MIN_REUSE <= request.n_past == request.n_cached == len(slot.tokens):
                self._take(slot)

    def room(self, request: Request) -> int:
        """Return how many of a request's pending tokens there are before the next checkpoint."""
        n = request.n_past
        return min([len(request.pending), *(place - n for place in self._kv.places(request) if place > n)])

    def take(self, work: Sequence[Work]) -> None:
        """Take the checkpoints that are due after a batch."""
        for slot, request, _ in work if self._kv.takes_checkpoints else ():
            if slot.request is request and len(slot.tokens) in self._kv.places(request):
                self._take(slot)

    def _take(self, slot: Slot) -> None:
        if all(checkpoint.n != len(slot.tokens) for checkpoint in slot.checkpoints):
            self._kv.take_checkpoint(slot)
            self._kv.fit_checkpoints(self._scheduler.slots)
