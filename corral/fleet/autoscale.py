"""Decide how many engines of a fleet run: more while tasks wait, fewer when engines are idle, or their tasks
find room in the others.

`Autoscaler` is pure bookkeeping with the time as an argument. `Scaling` asks it a few times per second, wakes
engines and unloads them. An engine that does not run has its place in the fleet, and its slots their numbers.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corral.core.repeat import repeat
from corral.fleet.fleet_lifecycle import FleetLifecycle
from corral.fleet.member import Member
from corral.link.engine_state import EngineState

LOOK_S = 0.25
_DOWN = (EngineState.SLEEPING, EngineState.FAILED)
_log = logging.getLogger("corral")


@dataclass(frozen=True, slots=True)
class ScaleLimits:
    """`n_min`: engines that always run; `wait_s`: after which a waiting task is a reason for another engine;
    `idle_s`: after which an engine that was not needed ends."""

    n_min: int
    wait_s: float
    idle_s: float


@dataclass(frozen=True, slots=True)
class EngineUse:
    n_slots: int
    n_tasks: int = 0
    is_ready: bool = True  # otherwise it is starting, or being replaced


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """How many engines to start, and which ones to end."""

    n_start: int = 0
    stop: tuple[int, ...] = ()


class Autoscaler:
    """Mutable: since when tasks wait, engines are idle, and others have room for the tasks of one."""

    def __init__(self, limits: ScaleLimits) -> None:
        self._limits = limits
        self._waiting: dict[int, float] = {}
        self._idle: dict[int, float] = {}
        self._spare: dict[int, float] = {}

    def plan(self, now: float, waiting: Collection[int], engines: Mapping[int, EngineUse]) -> ScalePlan:
        """`waiting`: tasks without a slot; `engines`: those that run or start."""
        ready = {index: use for index, use in engines.items() if use.is_ready}
        self._waiting = _since(self._waiting, now, waiting)
        self._idle = _since(self._idle, now, [index for index, use in ready.items() if not use.n_tasks])
        self._spare = _since(self._spare, now, _spare(ready))
        missing = self._limits.n_min - len(engines)
        if missing > 0:
            return ScalePlan(missing)
        if overdue := [task for task, since in self._waiting.items() if now - since >= self._limits.wait_s]:
            return ScalePlan(self._n_start(len(overdue), engines))
        return ScalePlan(stop=self._to_stop(now, engines))

    def _n_start(self, n_overdue: int, engines: Mapping[int, EngineUse]) -> int:
        """Return how many more engines are filled by the tasks that exceed the slots, also those of engines
        that are starting."""
        n_slots = max((use.n_slots for use in engines.values()), default=1)
        n_excess = sum(use.n_tasks - use.n_slots for use in engines.values())
        return max(0, math.ceil(min(n_overdue, n_excess) / n_slots))

    def _to_stop(self, now: float, engines: Mapping[int, EngineUse]) -> tuple[int, ...]:
        """Return all that were idle, else one of those with tasks for which others have room: without it,
        the rest must first show that another one is not needed."""
        most = max(0, len(engines) - self._limits.n_min)
        if idle := self._overdue(now, self._idle):
            return tuple(sorted(idle, reverse=True)[:most])
        if not most or not (spare := self._overdue(now, self._spare)):
            return ()
        self._spare.clear()
        return (min(spare, key=lambda index: (engines[index].n_tasks, -index)),)

    def _overdue(self, now: float, since: Mapping[int, float]) -> list[int]:
        return [index for index, at in since.items() if now - at >= self._limits.idle_s]


def _since(before: Mapping[int, float], now: float, names: Collection[int]) -> dict[int, float]:
    return {name: before.get(name, now) for name in names}


def _spare(ready: Mapping[int, EngineUse]) -> list[int]:
    """Return the engines whose tasks find free slots in the others; one stays free, for the next task."""
    n_free = sum(use.n_slots - use.n_tasks for use in ready.values())
    return [index for index, use in ready.items() if use.n_tasks < n_free - (use.n_slots - use.n_tasks)]


class Scaling:
    """Carries out the plans for a fleet."""

    def __init__(
        self,
        members: Sequence[Member],
        limits: ScaleLimits,
        lifecycle: FleetLifecycle,
        clear: Callable[[Member], Coroutine[Any, Any, None]],
    ) -> None:
        """`clear`: moves the tasks of an engine to others, as far as that is possible."""
        self._members = members
        self._policy = Autoscaler(limits)
        self._lifecycle = lifecycle
        self._clear = clear

    async def run(self) -> None:
        async def look() -> None:
            self.look(time.monotonic())

        await repeat("scaling the engines", look, LOOK_S)

    def look(self, now: float) -> None:
        if not self._lifecycle.is_up:
            return
        running = [member for member in self._members if member.state not in _DOWN]
        waiting = [id for member in running for id, each in member.pending.items() if not each.is_admitted]
        plan = self._policy.plan(now, waiting, {member.index: _use(member) for member in running})
        asleep = [member for member in self._members if member.state is EngineState.SLEEPING]
        for member in asleep[: plan.n_start]:
            _log.info("requests wait: engine %(index)d is started", {"index": member.index})
            member.lifecycle.wake()
        for index in plan.stop:
            self._lifecycle.spawn(self._end(self._members[index]))
        if not (running or plan.n_start):
            self._lifecycle.rest()

    async def _end(self, member: Member) -> None:
        if member.client.is_busy:
            await self._clear(member)
        if not member.client.is_busy:
            _log.info("engine %(index)d is not needed and ends", {"index": member.index})
            await member.lifecycle.unload()


def _use(member: Member) -> EngineUse:
    n_tasks = max(len(member.pending), int(member.client.is_busy))
    is_ready = member.state is EngineState.READY and not member.is_draining
    return EngineUse(member.lifecycle.settings.n_parallel, n_tasks, is_ready)
