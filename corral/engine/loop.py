"""The engine thread: take orders, step while there is work, sleep when there is none."""

from __future__ import annotations

import queue

from corral.core.task import Order
from corral.engine.engine import Engine


def run(engine: Engine, orders: queue.SimpleQueue[Order]) -> None:
    """Never returns; costs nothing while nobody asks for anything."""
    while True:
        if not engine.has_work:
            engine.handle(orders.get())
        while not orders.empty():
            engine.handle(orders.get())
        if engine.has_work:
            engine.step()
