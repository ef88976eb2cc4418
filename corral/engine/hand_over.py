"""Hand running tasks over to another engine: the state of a slot leaves in a file, and arrives with the task.

    here   | prompt | answer, delivered | p |      everything but the pending tokens is evaluated
    there  | prompt | answer, delivered | p |      they are evaluated next, as they would have been here

A task that cannot be handed over is not lost: what is known of it is evaluated again, here or there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from corral.core.errors import Conflict, CorralError
from corral.core.file import file_error
from corral.core.result import HandedOver
from corral.core.task import Command, HandOver
from corral.engine.coroutine import Coroutine
from corral.engine.kv import KvStore
from corral.engine.request import Request, RequestPhase
from corral.engine.saved import SavedState
from corral.engine.scheduler import Scheduler
from corral.engine.ses1 import Ses1
from corral.engine.slot import Slot
from corral.engine.worker import Worker


class HandOvers(Worker):
    handles = (HandOver,)

    def __init__(
        self, scheduler: Scheduler, kv: KvStore, ses1: Ses1, find: Callable[[int], Request | None]
    ) -> None:
        """`find`: returns the request of a task, wherever it is."""
        self._scheduler = scheduler
        self._kv = kv
        self._ses1 = ses1
        self._find = find
        self._files = ThreadPoolExecutor(2, "hand-over")

    def handle(self, command: Command, _arrival: int) -> Coroutine:
        """Give a task away. Commands are handled between two steps, and so is its state read."""
        assert isinstance(command, HandOver)
        try:
            request = self._find(command.task_id)
            if request is None or command.fd < 0 or not _can_leave(request):
                raise Conflict("the task cannot be handed over now")
            saved, n_past = self._take_out(self._scheduler.slot_of(request), request)
            try:
                yield self._files.submit(self._write, command.fd, saved)
            except CorralError:
                self._scheduler.requeue(request)
                raise
            request.close()
            return HandedOver(command.id, n_past)
        finally:
            if command.fd >= 0:
                os.close(command.fd)

    def receive(self, request: Request) -> Generator[Future[SavedState], SavedState, SavedState | None]:
        """Read the state that has come with a task; None: it is of no use."""
        task = request.task
        if task.fd < 0:
            return None
        try:
            saved = yield self._files.submit(self._ses1.read, task.fd, True)
        except CorralError:
            return None
        finally:
            os.close(task.fd)
        is_fit = saved.lora_key == request.lora_key and len(saved.tokens) <= task.n_past < len(request.known)
        return replace(saved, tenant=task.tenant) if is_fit else None

    def _take_out(self, slot: Slot, request: Request) -> tuple[SavedState, int]:
        """End a request here; returns the content of its slot, and how many known tokens that stands for."""
        n_known = request.n_prompt + len(request.delivered)
        n_past = min(request.n_evaluated, n_known - 1)
        n_over = request.n_evaluated - n_past
        # A window that was shifted is summed in another order once it is restored.
        is_moved = request.truncated and self._kv.n_fixed_saved(len(slot.tokens)) > 0
        is_foreign = slot.reuse_key.is_imported
        if n_past < 1 or is_foreign or is_moved or (n_over and not self._can_cut(slot, request)):
            raise Conflict("the state cannot be handed over")
        if n_over:
            self._kv.trim(slot, len(slot.tokens) - n_over)
        saved = self._kv.save(slot)
        self._scheduler.remove(request.id)
        if saved is None:
            self._scheduler.requeue(request)
            raise Conflict("the state cannot be read now")
        return replace(saved, tenant=b""), n_past

    def _can_cut(self, slot: Slot, request: Request) -> bool:
        """Whether what was evaluated but not delivered can be cut off: the last token that stays must have
        been evaluated alone, and so was no token that a grammar forced."""
        return self._kv.can_cut(slot) and request.grammar is None and bool(request.delivered)

    def _write(self, fd: int, saved: SavedState) -> None:
        try:
            self._ses1.write(fd, saved)
        except OSError as error:
            raise file_error("the state cannot be written", error) from None


def _can_leave(request: Request) -> bool:
    """Whether another engine can continue from its slot alone: not where draws depend on earlier logits, on a
    second sequence, on media, or on tokens that are being repeated."""
    is_single = request.negative is None and request.positive is None and request.media is None
    is_stable = request.is_evaluated and not request.is_redoing and request.repeated_token is None
    can_begin = request.phase is RequestPhase.GENERATING or len(request.pending) > 0
    return is_single and is_stable and can_begin and not request.task.params.sampling.remembers_draws
