"""Slots are numbered through all engines: an engine end that has those from `first` on.

The engine itself counts from 0; ids are translated here, in both directions, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from corral.core.result import Admitted, Event, SlotReport, StateCached
from corral.core.settings import EngineSettings
from corral.core.task import Command, MemoryGranted, SlotAction, Task
from corral.link.process import EngineTransport, OnEvents, OpenTransport

replace = msgspec.structs.replace


class NumberedEnd:
    """An `EngineTransport` around another one."""

    def __init__(
        self, on_events: OnEvents, first: Callable[[], int], open_transport: OpenTransport, log_name: str
    ) -> None:
        self._on_events = on_events
        self._first = first
        self._end = open_transport(self._receive)
        self._end.log_name = self.log_name = log_name

    @property
    def pid(self) -> int | None:
        return self._end.pid

    @property
    def is_remote(self) -> bool:
        return self._end.is_remote

    async def spawn(self, settings: EngineSettings) -> None:
        await self._end.spawn(settings)

    def send(self, command: Command | MemoryGranted, fd: int = -1) -> None:
        self._end.send(to_engine(command, self._first()), fd)

    def kill(self) -> None:
        self._end.kill()

    async def wait(self) -> None:
        await self._end.wait()

    async def stop(self, timeout_s: float) -> None:
        await self._end.stop(timeout_s)

    async def close(self) -> int | None:
        return await self._end.close()

    def _receive(self, _end: EngineTransport, events: list[Event]) -> None:
        first = self._first()
        self._on_events(self, [from_engine(event, first) for event in events])


def to_engine(command: Command | MemoryGranted, first: int) -> Command | MemoryGranted:
    if isinstance(command, Task):
        id_slot = command.params.id_slot
        if id_slot >= 0:
            return replace(command, params=replace(command.params, id_slot=id_slot - first))
    elif isinstance(command, SlotAction):
        source = command.source - first if command.source >= 0 else -1
        return replace(command, slot=command.slot - first, source=source)
    return command


def from_engine(event: Event, first: int) -> Event:
    if isinstance(event, Admitted):
        report = event.report
        if report is not None:
            report = replace(report, id_slot=_add(report.id_slot, first))
        return replace(
            event,
            id_slot=event.id_slot + first,
            id_source=_add(event.id_source, first),
            report=report,
        )
    if isinstance(event, (SlotReport, StateCached)):
        return replace(event, id_slot=event.id_slot + first)
    return event


def _add(id_slot: int, first: int) -> int:
    return id_slot + first if id_slot >= 0 else -1
