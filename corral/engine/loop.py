"""The engine thread: take commands, step while there is work, sleep when there is none."""

from __future__ import annotations

import contextlib
import queue

from corral.core.task import Command
from corral.engine.engine import Engine

WAKE = None  # not a command: check again what can be done
_PAUSE_S = 2.0  # without a command; after the start the front needs the cores for its own

Inbox = queue.SimpleQueue[Command | None]


def run(engine: Engine, inbox: Inbox) -> None:
    """Run until stopped; uses no CPU while idle."""
    while not engine.is_stopped:
        if not (engine.has_work or engine.is_calibrated or engine.is_stopping):
            _use_pause(engine, inbox)
        elif not engine.has_work or engine.is_waiting:
            _take(engine, inbox)
        while not inbox.empty():
            _take(engine, inbox)
        if engine.has_work:
            engine.step()


def _use_pause(engine: Engine, inbox: Inbox) -> None:
    """Calibrate the engine, unless a command comes: none waits for more than a decode."""
    with contextlib.suppress(queue.Empty):
        _take(engine, inbox, _PAUSE_S)
        return
    engine.calibrate(lambda: engine.is_stopping or not inbox.empty())


def _take(engine: Engine, inbox: Inbox, timeout_s: float | None = None) -> None:
    command = inbox.get(timeout=timeout_s)
    if command is not WAKE:
        engine.handle(command)
