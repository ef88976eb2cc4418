"""The engine thread: take orders, step while there is work, sleep when there is none."""

from __future__ import annotations

import queue
from typing import Protocol

from corral.core.result import Heartbeat
from corral.core.task import Command

WAKE = None  # no order: look again what can be done

Inbox = queue.SimpleQueue[Command | None]


class AnyEngine(Protocol):
    """One thread calls everything here but `abort_if_running` and `beat`."""

    @property
    def is_stopped(self) -> bool: ...

    @property
    def has_work(self) -> bool: ...

    @property
    def is_waiting(self) -> bool:
        """All that is left to do waits for other threads."""
        ...

    def handle(self, command: Command) -> None: ...

    def step(self) -> None: ...

    def warm_up(self) -> None: ...

    def abort_if_running(self, task_id: int) -> None: ...

    def heartbeat(self) -> Heartbeat: ...


def run(engine: AnyEngine, inbox: Inbox) -> None:
    """Until it is told to stop; costs nothing while nobody asks for anything."""
    while not engine.is_stopped:
        if not engine.has_work or engine.is_waiting:
            _take(engine, inbox)
        while not inbox.empty():
            _take(engine, inbox)
        if engine.has_work:
            engine.step()


def _take(engine: AnyEngine, inbox: Inbox) -> None:
    command = inbox.get()
    if command is not WAKE:
        engine.handle(command)
