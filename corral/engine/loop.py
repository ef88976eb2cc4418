"""The engine thread: take orders, step while there is work, sleep when there is none."""

from __future__ import annotations

import queue

from corral.core.task import Order
from corral.engine.engine import Engine

WAKE = None  # no order: look again what can be done

Inbox = queue.SimpleQueue[Order | None]


def run(engine: Engine, inbox: Inbox) -> None:
    """Until it is told to stop; costs nothing while nobody asks for anything."""
    while not engine.is_stopped:
        if not engine.has_work or engine.is_waiting:
            _take(engine, inbox)
        while not inbox.empty():
            _take(engine, inbox)
        if engine.has_work:
            engine.step()


def _take(engine: Engine, inbox: Inbox) -> None:
    order = inbox.get()
    if order is not WAKE:
        engine.handle(order)
