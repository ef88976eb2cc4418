"""What cannot be done at once: generators that wait for other threads, or for the turn of a slot.

A job yields a `Future`, and goes on with its result; or a `Turn`, and goes on once those slots are idle,
before any request that came later gets them. What it returns is its answer.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from corral.core.errors import CorralError
from corral.core.result import Event, Failed


@dataclass(frozen=True, slots=True)
class WaitForSlots:
    """When these slots are idle, and another thread has done what they are wanted for.

    `desk`: a place that one job has at a time, for as long as it yields it.
    """

    slots: frozenset[int]
    after: Future[Any] | None = None
    exclusive: int | None = None


Steps = Generator[Future[Any] | WaitForSlots, Any, Event | None]


@dataclass(slots=True)
class _Job:
    """Mutable."""

    id: int
    arrival: int
    steps: Steps
    waits_for: Future[Any] | WaitForSlots | None = None

    @property
    def slots(self) -> frozenset[int]:
        return self.waits_for.slots if isinstance(self.waits_for, WaitForSlots) else frozenset()

    @property
    def exclusives(self) -> set[int]:
        exclusive = self.waits_for.exclusive if isinstance(self.waits_for, WaitForSlots) else None
        return set() if exclusive is None else {exclusive}

    @property
    def work(self) -> Future[Any] | None:
        """What another thread does, or has done, for it."""
        return self.waits_for.after if isinstance(self.waits_for, WaitForSlots) else self.waits_for

    @property
    def is_in_work(self) -> bool:
        return self.work is not None and not self.work.done()

    def resume(self) -> Future[Any] | WaitForSlots:
        if not isinstance(self.waits_for, Future):
            return self.steps.send(None)
        problem = self.waits_for.exception()
        return self.steps.throw(problem) if problem else self.steps.send(self.waits_for.result())


class Jobs:
    """Mutable. `wake` is called, from any thread, when a job can go on."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._jobs: list[_Job] = []

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def are_waiting(self, idle: Collection[int]) -> bool:
        """All of them wait for other threads, or behind one that does."""
        return all(job.is_in_work for job in self._first(idle))

    @property
    def reserved(self) -> dict[int, int]:
        """Slots that jobs wait for, with the order in which the first of those came."""
        return {slot: job.arrival for job in reversed(self._jobs) for slot in job.slots}

    def due(self, idle: Collection[int]) -> set[int]:
        """Slots of jobs that have their turn as soon as another thread is done."""
        return {slot for job in self._first(idle) for slot in job.slots}

    def start(self, id: int, arrival: int, steps: Steps) -> list[Event]:
        job = _Job(id, arrival, steps)
        self._jobs.append(job)
        return self._advance(job)

    def cancel(self, id: int) -> None:
        """Drop a job; what another thread is doing for it comes to its end first."""
        for job in [job for job in self._jobs if job.id == id]:
            self._jobs.remove(job)
            if job.work is None:
                job.steps.close()
            else:
                job.work.cancel()
                job.work.add_done_callback(partial(_close, job.steps))

    def run(self, idle: Collection[int]) -> list[Event]:
        """Go on with everything that can, in order of arrival."""
        ready = [job for job in self._first(idle) if not job.is_in_work]
        return [event for job in ready for event in self._advance(job)]

    def _first(self, idle: Collection[int]) -> list[_Job]:
        """Jobs whose slots are all idle, and wanted by nobody who came before; nor is their desk."""
        free, first = set(idle), []
        taken: set[int] = set()
        for job in self._jobs:
            if job.slots <= free and not job.exclusives & taken:
                first.append(job)
            free -= job.slots
            taken |= job.exclusives
        return first

    def _advance(self, job: _Job) -> list[Event]:
        try:
            job.waits_for = job.resume()
        except StopIteration as stop:
            return self._end(job, stop.value)
        except CorralError as error:
            return self._end(job, Failed(job.id, error.info()))
        except Exception as error:
            traceback.print_exc()
            problem = CorralError(f"internal error of the engine ({type(error).__name__})")
            return self._end(job, Failed(job.id, problem.info()))
        if job.work is not None:
            job.work.add_done_callback(lambda _: self._wake())
        return []

    def _end(self, job: _Job, answer: Event | None) -> list[Event]:
        self._jobs.remove(job)
        job.waits_for = None
        return [] if answer is None else [answer]


def _close(steps: Steps, _done: Future[Any]) -> None:
    steps.close()
