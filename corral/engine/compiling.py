"""Requests that wait for their grammar: it is made ready in another thread, and nobody else waits for it."""

from __future__ import annotations

import concurrent.futures
from concurrent.futures import Future
from typing import Any

from corral.engine.request import Request

_PATIENCE_S = 0.05


class Compiling:
    def __init__(self) -> None:
        self._waiting: list[tuple[Request, Future[Any]]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, request: Request, grammar: Future[Any]) -> None:
        self._waiting.append((request, grammar))

    def remove(self, task_id: int) -> None:
        self._waiting = [pair for pair in self._waiting if pair[0].id != task_id]

    def wait(self) -> None:
        """Sleep until a grammar is ready, but not for long: orders may have come."""
        concurrent.futures.wait([grammar for _, grammar in self._waiting], _PATIENCE_S, "FIRST_COMPLETED")

    def take_ready(self) -> list[tuple[Request, Future[Any]]]:
        ready = [pair for pair in self._waiting if pair[1].done()]
        self._waiting = [pair for pair in self._waiting if not pair[1].done()]
        return ready
