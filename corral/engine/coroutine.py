"""Commands that take more than one step: generators that wait for other threads, or for slots.

A coroutine yields a `Future` and continues with its result, or yields `WaitForSlots` and continues once
those slots are idle, before any request that came later gets them. Its return value is its answer.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from corral.core.errors import CorralError
from corral.core.result import Event, Failed


@dataclass(frozen=True, slots=True)
class WaitForSlots:
    """Wait until these slots are idle and `after` is done.

    `exclusive`: one coroutine at a time waits with this key; the others wait for their turn.
    """

    slots: frozenset[int]
    after: Future[Any] | None = None
    exclusive: int | None = None


Coroutine = Generator[Future[Any] | WaitForSlots, Any, Event | None]


class Reservations(NamedTuple):
    """Slots that coroutines wait for: `arrivals` has the arrival of the first waiting coroutine, `due` the
    slots whose content is used as soon as another thread is done."""

    arrivals: dict[int, int] = {}
    due: Collection[int] = ()


NO_RESERVATIONS = Reservations()


class Wakeup:
    """Mutable. Called from any thread: wakes the engine's loop, and an engine that `is_waiting`."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self.is_set = False

    def __call__(self) -> None:
        self.is_set = True
        self._wake()


@dataclass(slots=True)
class _Pending:
    """Mutable."""

    id: int
    arrival: int
    coroutine: Coroutine
    waits_for: Future[Any] | WaitForSlots | None = None

    @property
    def slots(self) -> frozenset[int]:
        return self.waits_for.slots if isinstance(self.waits_for, WaitForSlots) else frozenset()

    @property
    def exclusive(self) -> int | None:
        return self.waits_for.exclusive if isinstance(self.waits_for, WaitForSlots) else None

    @property
    def future(self) -> Future[Any] | None:
        """The future that the coroutine waits for."""
        return self.waits_for.after if isinstance(self.waits_for, WaitForSlots) else self.waits_for

    @property
    def is_in_work(self) -> bool:
        return self.future is not None and not self.future.done()

    def resume(self) -> Future[Any] | WaitForSlots:
        if not isinstance(self.waits_for, Future):
            return self.coroutine.send(None)
        error = self.waits_for.exception()
        return self.coroutine.throw(error) if error else self.coroutine.send(self.waits_for.result())


class Coroutines:
    """Mutable. `wake` is called, from any thread, when a coroutine can continue."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._pending: list[_Pending] = []

    def __bool__(self) -> bool:
        return bool(self._pending)

    def are_waiting(self, idle: Collection[int]) -> bool:
        """Whether all coroutines wait for other threads, directly or indirectly."""
        return all(one.is_in_work for one in self._first(idle))

    @property
    def reserved(self) -> dict[int, int]:
        """Slots that are waited for, with the arrival of the first waiting coroutine."""
        return {slot: one.arrival for one in reversed(self._pending) for slot in one.slots}

    def reservations(self, idle: Collection[int]) -> Reservations:
        return Reservations(self.reserved, {slot for one in self._first(idle) for slot in one.slots})

    def start(self, id: int, arrival: int, coroutine: Coroutine) -> list[Event]:
        one = _Pending(id, arrival, coroutine)
        self._pending.append(one)
        return self._advance(one)

    def cancel(self, id: int) -> None:
        """Drop a coroutine; work of another thread for it is finished first."""
        for one in [one for one in self._pending if one.id == id]:
            self._pending.remove(one)
            if one.future is None:
                one.coroutine.close()
            else:
                one.future.cancel()
                one.future.add_done_callback(partial(_close, one.coroutine))

    def run(self, idle: Collection[int]) -> list[Event]:
        """Continue all coroutines that can, in order of arrival."""
        ready = [one for one in self._first(idle) if not one.is_in_work]
        return [event for one in ready for event in self._advance(one)]

    def _first(self, idle: Collection[int]) -> list[_Pending]:
        """Return those whose slots are all idle and not waited for by an earlier one; the same for
        `exclusive`."""
        free, first = set(idle), []
        taken: set[int | None] = set()
        for one in self._pending:
            if one.slots <= free and one.exclusive not in taken:
                first.append(one)
            free -= one.slots
            taken |= {one.exclusive} - {None}
        return first

    def _advance(self, one: _Pending) -> list[Event]:
        try:
            one.waits_for = one.resume()
        except StopIteration as stop:
            return self._end(one, stop.value)
        except Exception as error:
            return self._end(one, Failed(one.id, as_corral_error(error).info()))
        if one.future is not None:
            one.future.add_done_callback(lambda _: self._wake())
        return []

    def _end(self, one: _Pending, answer: Event | None) -> list[Event]:
        self._pending.remove(one)
        one.waits_for = None
        return [] if answer is None else [answer]


def _close(coroutine: Coroutine, _done: Future[Any]) -> None:
    coroutine.close()


def as_corral_error(error: Exception) -> CorralError:
    """Convert to the error a client gets; unexpected errors are logged in full."""
    if isinstance(error, CorralError):
        return error
    traceback.print_exception(error)
    return CorralError(f"internal engine error ({type(error).__name__})")
