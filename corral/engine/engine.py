"""The engine: takes commands, and steps while there is work.

One thread calls everything except `abort_if_...` and `heartbeat`. Knows tokens and text, not JSON or
HTTP; results go to `emit`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from typing import get_args

from corral.core.errors import CorralError
from corral.core.result import BatchExact, Decodes, Event, Failed, Heartbeat, LastResult
from corral.core.task import Cancel, Command, Stop
from corral.engine.coroutine import NO_RESERVATIONS, Coroutines, Wakeup
from corral.engine.slot import Slot
from corral.engine.worker import PlannedBatch, Worker

_ENDS = frozenset(get_args(LastResult))
_SLICE_MS = 85.0  # time between two steps for work of other threads, while no stream waits


class Engine:
    warm_up: Callable[[], None]
    calibrate: Callable[[Callable[[], bool]], None]  # in a pause; ends early once that `is_over`

    def __init__(
        self,
        workers: Sequence[Worker],
        coroutines: Coroutines,
        wakeup: Wakeup,
        emit: Callable[[list[Event]], None],
        clock: Callable[[], float],
        slots: Sequence[Slot] = (),
        share_ms: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """`share_ms`: how long each worker may keep streams waiting; infinity while there are none."""
        self._workers = workers
        self._worker_of = {kind: worker for worker in workers for kind in worker.handles}
        self._coroutines = coroutines
        self._wakeup = wakeup
        self._emit = emit
        self._clock = clock
        self._slots = slots
        self._share_ms = share_ms
        self._n_commands = 0
        self._has_rested = False  # the last step did nothing, and no command came since
        self.is_stopping = False  # set from any thread: nothing else is begun
        self.is_stopped = False

    @property
    def batch_exact(self) -> BatchExact:
        """What is promised of answers beside others; nothing, unless an engine knows more."""
        return BatchExact()

    @property
    def is_calibrated(self) -> bool:
        """Whether all is measured that makes answers faster, but that no answer needs."""
        return True

    @property
    def has_work(self) -> bool:
        return bool(self._coroutines) or any(worker.has_work for worker in self._workers)

    @property
    def is_waiting(self) -> bool:
        """Whether nothing can be done until another thread wakes the engine, or a command comes."""
        return self._has_rested and not self._wakeup.is_set and self._coroutines.are_waiting(self._idle())

    def step(self) -> None:
        """Run one round of continuous batching: every stream gets its next token; prompts, embeddings and
        media share the remaining time."""
        self._wakeup.is_set = False
        has_news = self._admit()
        share_ms = self._share_ms()
        batches = self._plan(share_ms)
        for batch in batches:
            self._run(batch)
        self._has_rested = not (batches or has_news)
        self._end_step(min(share_ms, _SLICE_MS) if batches else math.inf)

    def _admit(self) -> bool:
        """Give free slots to requests and coroutines in order of arrival. False: nothing was done."""
        events = self._admit_requests()
        if self._coroutines:
            events += self._coroutines.run(self._idle())
            events += self._admit_requests()
        self._send(events)
        return bool(events)

    def _admit_requests(self) -> list[Event]:
        reserved = self._coroutines.reservations(self._idle()) if self._coroutines else NO_RESERVATIONS
        now = self._clock()
        return [event for worker in self._workers for event in worker.admit(now, reserved)]

    def _plan(self, share_ms: float) -> list[PlannedBatch]:
        yields = any(worker.is_urgent for worker in self._workers)
        for worker in self._workers:
            worker.yields = yields
        return [batch for worker in self._workers for batch in worker.plan(share_ms)]

    def _run(self, batch: PlannedBatch) -> None:
        self._send(batch.begun)
        events = batch.run()
        if not _ENDS.isdisjoint(map(type, events)):
            events = [self._decodes(), *events]
        self._send(events)

    def _decodes(self) -> Decodes:
        all = [worker.decodes for worker in self._workers]
        return Decodes(sum(each.n for each in all), sum(each.n_busy for each in all))

    def _end_step(self, ms: float) -> None:
        for worker in self._workers:
            worker.end_step(ms)

    def handle(self, command: Command) -> None:
        self._n_commands += 1
        self._has_rested = False
        if isinstance(command, Cancel):
            self._coroutines.cancel(command.task_id)
            for worker in self._workers:
                worker.cancel(command.task_id)
        elif isinstance(command, Stop):
            for worker in self._workers:
                worker.close()
            self.is_stopped = True
        else:
            self._send(self._answer(command))

    def _answer(self, command: Command) -> list[Event]:
        id = getattr(command, "id", -1)
        try:
            answer = self._worker_of[type(command)].handle(command, self._n_commands)
        except CorralError as error:
            return [Failed(id, error.info())]
        if isinstance(answer, Generator):
            return self._coroutines.start(id, self._n_commands, answer)
        return [] if answer is None else [answer]

    def abort_if_running(self, task_id: int) -> None:
        """From any thread: abort the evaluation if it works only for this task."""
        for worker in self._workers:
            worker.abort_if_running(task_id)

    def abort_if_yielding(self) -> None:
        """From any thread: abort the evaluation of nothing but batches, since other work has come."""
        for worker in self._workers:
            worker.abort_if_yielding()

    def heartbeat(self) -> Heartbeat:
        """From any thread: report how long the current evaluation has been running."""
        beats = [worker.heartbeat() for worker in self._workers]
        return max(beats, key=lambda heartbeat: heartbeat.decode_ms)

    def _idle(self) -> list[int]:
        return [slot.id for slot in self._slots if slot.is_idle]

    def _send(self, events: list[Event]) -> None:
        if events:
            self._emit(events)
