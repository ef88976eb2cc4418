"""Control a running request: pause, resume and stop it, move its limit, end its reasoning."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from corral.core.result import Controlled, ControlOutcome, Event
from corral.core.task import Command, Control, ControlVerb
from corral.engine.coroutine import Reservations
from corral.engine.generation import Generation
from corral.engine.request import Request
from corral.engine.scheduler import Scheduler
from corral.engine.worker import Worker


class Controls(Worker):
    """`find`: returns the request of a task, wherever it is."""

    handles = (Control,)

    def __init__(
        self, scheduler: Scheduler, generation: Generation, find: Callable[[int], Request | None]
    ) -> None:
        self._scheduler = scheduler
        self._generation = generation
        self._find = find
        self._events: list[Event] = []

    @property
    def has_work(self) -> bool:
        return bool(self._events)

    def admit(self, _now: float, _reserved: Reservations) -> list[Event]:
        events, self._events = self._events, []
        return events

    def handle(self, command: Command, _arrival: int) -> Event:
        assert isinstance(command, Control)
        request = self._find(command.task_id)
        outcome = ControlOutcome.UNKNOWN if request is None else self._apply(command, request)
        return Controlled(command.id, outcome)

    def _apply(self, command: Control, request: Request) -> ControlOutcome:
        if command.verb is ControlVerb.END_REASONING:
            return request.end_reasoning()
        if command.verb is ControlVerb.STOP:
            return self._stop(request)
        if command.verb is ControlVerb.LIMIT:
            params = msgspec.structs.replace(request.task.params, n_predict=command.n_predict)
            request.task = msgspec.structs.replace(request.task, params=params)
        else:
            is_paused = command.verb is ControlVerb.PAUSE
            for each in (request, request.negative):
                if each is not None:
                    each.is_paused = is_paused
        return ControlOutcome.DONE

    def _stop(self, request: Request) -> ControlOutcome:
        slot = next((slot for slot in self._scheduler.slots if slot.request is request), None)
        if slot is not None:
            self._events += self._generation.stop(slot, request)
        elif self._scheduler.remove(request.id) is not None:
            self._events += self._generation.stop_waiting(request)
        else:
            return ControlOutcome.TOO_EARLY
        return ControlOutcome.DONE
