"""The engine thread: take commands, step while there is work, sleep when there is none."""

from __future__ import annotations

import queue

from corral.core.task import Command
from corral.engine.engine import Engine

WAKE = None  # not a command: check again what can be done

Inbox = queue.SimpleQueue[Command | None]


def run(engine: Engine, inbox: Inbox) -> None:
    """Run until stopped; uses no CPU while idle."""
    while not engine.is_stopped:
        if not engine.has_work or engine.is_waiting:
            _take(engine, inbox)
        while not inbox.empty():
            _take(engine, inbox)
        if engine.has_work:
            engine.step()


def _take(engine: Engine, inbox: Inbox) -> None:
    command = inbox.get()
    if command is not WAKE:
        engine.handle(command)
