"""What several engines report, as one observer of all of them expects it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from corral.core.result import Decodes, SlotReport
from corral.core.task import SlotAction
from corral.fleet.placement import merge_queues
from corral.link.observer import EngineObserver


class FleetObserver(EngineObserver, Protocol):
    def on_engine_slots(self, slots: range, n_slots: int, lost: Sequence[int]) -> None:
        """Called when the slots of one engine are empty, of `n_slots` of all engines. `lost`: tasks that it
        had, which wait for another engine."""
        ...


class MergedObserver:
    """Mutable: the last report of each engine."""

    def __init__(self, observer: FleetObserver, n_engines: int) -> None:
        self.observer = observer
        self._decodes = [Decodes(0, 0)] * n_engines
        self._past = Decodes(0, 0)  # of engines that are gone
        self._queues: list[Sequence[int]] = [()] * n_engines

    def lose_engine(self, index: int) -> None:
        self._past = _sum([self._past, self._decodes[index]])
        self._decodes[index], self._queues[index] = Decodes(0, 0), ()

    def on_queue(self, index: int, task_ids: Sequence[int]) -> None:
        self._queues[index] = task_ids
        self.observer.on_queue(merge_queues(self._queues))

    def on_decodes(self, index: int, decodes: Decodes) -> None:
        self._decodes[index] = decodes
        self.observer.on_decodes(_sum([self._past, *self._decodes]))


class MemberObserver:
    """The `EngineObserver` of one engine; its slots are reported elsewhere."""

    def __init__(self, merged: MergedObserver, index: int) -> None:
        self._merged = merged
        self._index = index

    def on_slots(self, n_slots: int) -> None:
        pass

    def on_queue(self, task_ids: Sequence[int]) -> None:
        self._merged.on_queue(self._index, task_ids)

    def on_decodes(self, decodes: Decodes) -> None:
        self._merged.on_decodes(self._index, decodes)

    def on_action(self, action: SlotAction, report: SlotReport) -> None:
        self._merged.observer.on_action(action, report)


def _sum(all: Sequence[Decodes]) -> Decodes:
    return Decodes(sum(each.n for each in all), sum(each.n_busy for each in all))
