"""Ways to choose an engine: Corral's own, and what others do."""

from __future__ import annotations

import bisect
import itertools
import time
from collections.abc import Sequence
from typing import Protocol

import xxhash

from bench.fleet.engine import SimulatedEngine
from bench.fleet.workload import Turn
from corral.fleet.load_table import LoadTable
from corral.fleet.placement import TaskDemand
from corral.fleet.prefix_index import BLOCK, PrefixIndex


class Policy(Protocol):
    def choose(self, turn: Turn, engines: Sequence[SimulatedEngine]) -> int: ...


class CachedPrefix:
    """Corral's own table and index, which the engines feed."""

    def __init__(self, n_engines: int) -> None:
        self._table = LoadTable(n_engines)
        self._all = self._table.only(range(n_engines))
        self.placing_s = 0.0

    def choose(self, turn: Turn, engines: Sequence[SimulatedEngine]) -> int:
        changed = [engine for engine in engines if engine.is_changed]
        began = time.perf_counter()
        for engine in changed:
            self._table.put(engine.number, engine.load)
            engine.is_changed = False
        self._table.set_costs(lambda _: engines[0].cost)
        demand = TaskDemand(turn.n_prompt, engines[0].held.n_cached(turn.blocks))
        chosen, _ = self._table.place(demand, self._all)
        self.placing_s += time.perf_counter() - began
        return chosen


class RoundRobin:
    def __init__(self) -> None:
        self._numbers = itertools.count()

    def choose(self, turn: Turn, engines: Sequence[SimulatedEngine]) -> int:  # noqa: ARG002
        return next(self._numbers) % len(engines)


class LeastLoaded:
    def choose(self, turn: Turn, engines: Sequence[SimulatedEngine]) -> int:  # noqa: ARG002
        return min(engines, key=lambda engine: (engine.n_tasks, engine.number)).number


class ConsistentHash:
    """A ring with 100 virtual nodes for each engine; the key is the user."""

    def __init__(self, n_engines: int) -> None:
        nodes = [(_hash(f"{number}:{i}"), number) for number in range(n_engines) for i in range(100)]
        self._ring = sorted(nodes)

    def choose(self, turn: Turn, engines: Sequence[SimulatedEngine]) -> int:  # noqa: ARG002
        place = bisect.bisect(self._ring, (_hash(f"user {turn.user.id}"), 0)) % len(self._ring)
        return self._ring[place][1]


class TextTree:
    """A tree of texts for each engine, as in sglang-router's cache-aware policy: what was sent there, not
    what it has kept. The best match if it is 30 % of the text, else the smallest tree; the least loaded
    engine if loads differ by 64 tasks and half."""

    def __init__(self, n_engines: int) -> None:
        self._trees = [PrefixIndex(1 << 20) for _ in range(n_engines)]

    def choose(self, turn: Turn, engines: Sequence[SimulatedEngine]) -> int:
        number = self._choose(turn, engines)
        self._trees[number].put(turn.user.id, turn.blocks)
        return number

    def _choose(self, turn: Turn, engines: Sequence[SimulatedEngine]) -> int:
        loads = [engine.n_tasks for engine in engines]
        if max(loads) - min(loads) > 64 and max(loads) > 1.5 * min(loads):
            return loads.index(min(loads))
        matched = [tree.n_cached(turn.blocks) for tree in self._trees]
        best = max(range(len(matched)), key=matched.__getitem__)
        if matched[best] > 0.3 * len(turn.blocks) * BLOCK:
            return best
        return min(range(len(engines)), key=lambda number: self._trees[number].n_blocks)


def _hash(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode())
