"""Run a workload against engines that a policy chooses."""

from __future__ import annotations

import heapq
import statistics
from dataclasses import dataclass

from bench.fleet.engine import SimulatedEngine
from bench.fleet.policy import Policy
from bench.fleet.workload import Scale, Turn, Workload
from corral.fleet.placement import EngineCost
from corral.fleet.prefix_index import HeldBlocks


@dataclass(frozen=True, slots=True)
class Outcome:
    n_turns: int
    n_prompt: int  # tokens
    n_evaluated: int
    wait_p50_s: float  # until the answer begins
    wait_p99_s: float
    balance: float  # busy time of the busiest engine, and of all on average

    def line(self, name: str, n_least: int) -> str:
        share = f"{self.n_evaluated / n_least:.2f} x"
        waits = f"{self.wait_p50_s * 1e3:.0f} ms | {self.wait_p99_s * 1e3:.0f} ms"
        return f"| {name} | {self.n_evaluated:,} | {share} | {waits} | {self.balance:.2f} |"


def simulate(scale: Scale, policy: Policy, seed: int = 1) -> Outcome:
    workload, cost, held = Workload(scale, seed), EngineCost(), HeldBlocks()
    engines = [SimulatedEngine(number, scale, cost, held) for number in range(scale.n_engines)]
    events = [(turn.arrived_s, turn.id, turn) for turn in workload.first()]
    heapq.heapify(events)
    wakes: list[tuple[float, int]] = []  # when something ends in an engine; outdated unless in `due`
    due = [float("inf")] * len(engines)
    done: list[Turn] = []
    while events or (wakes and wakes[0][0] < float("inf")):
        if wakes and (not events or wakes[0][0] <= events[0][0]):
            now_s, number = heapq.heappop(wakes)
            if due[number] != now_s:
                continue
            ended = engines[number].advance(now_s)
        else:
            now_s, _, turn = heapq.heappop(events)
            number = policy.choose(turn, engines)
            ended = engines[number].advance(now_s)
            engines[number].add(turn)
        for each in ended:
            done.append(each)
            if (following := workload.next(each, now_s)) is not None:
                heapq.heappush(events, (following.arrived_s, following.id, following))
        if due[number] != engines[number].next_s:
            due[number] = engines[number].next_s
            heapq.heappush(wakes, (due[number], number))
    return _sum_up(done, engines)


def _sum_up(done: list[Turn], engines: list[SimulatedEngine]) -> Outcome:
    waits = sorted(turn.began_s - turn.arrived_s for turn in done)
    busy = [engine.busy_s for engine in engines]
    return Outcome(
        len(done),
        sum(turn.n_prompt for turn in done),
        sum(turn.n_evaluated for turn in done),
        statistics.median(waits),
        waits[int(0.99 * len(waits))],
        max(busy) / statistics.mean(busy),
    )
