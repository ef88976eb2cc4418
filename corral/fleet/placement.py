"""What a task costs on an engine: pure functions of what that has cached and does. `load_table.py` decides.

The cost of a task on an engine, in milliseconds:

    (3.5 * (n_prompt - n_cached) + n_ahead) * token_ms  +  queue  +  crowd
           |                       |                       |        |
           tokens to evaluate      of earlier prompts      |        streams that share its steps
                                                           tasks that must end before a slot is free

Tokens to evaluate count more than once: this task waits for them, and so do the streams next to it and the
prompts after it. `bench/fleet` shows what the weights do.

Engines that are about equally soon differ in what they still have to evaluate: the one with the most cached
tokens wins, then the one that served the same conversation before, then the one with the fewest tasks, then
the one that has the least to lose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

TOKEN_MS, SERVICE_MS = 1.0, 1000.0  # assumed until measured
_WEIGHT = 0.2  # of the last task in the means
WORK = 3.5  # weight of tokens to evaluate
CROWD = 0.1  # share of an answer's time that streams in all other slots add to it
CLOSE = 0.1  # relative difference of estimates that is none
_MIN_MEASURED = 16  # prompt tokens


@dataclass(slots=True)
class EngineCost:
    """Mutable: what answers have taken so far, on engines that compute alike: the difference between two of
    those is what they happened to do."""

    token_ms: float = 0.0
    service_ms: float = 0.0

    def observe(self, n_prompt: int, prompt_ms: float, service_ms: float) -> None:
        """Learn from a task that is done: the prompt tokens it evaluated, and the time it had a slot."""
        if n_prompt >= _MIN_MEASURED:
            self.token_ms = _blend(self.token_ms, prompt_ms / n_prompt)
        self.service_ms = _blend(self.service_ms, service_ms)


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What an engine does. `n_ahead`: prompt tokens that it still has to evaluate; `n_held`: how much it has
    cached, in any unit."""

    n_slots: int
    n_running: int = 0
    n_waiting: int = 0
    n_ahead: int = 0
    token_ms: float = TOKEN_MS
    service_ms: float = SERVICE_MS
    n_held: int = 0

    @property
    def n_tasks(self) -> int:
        return self.n_running + self.n_waiting

    @property
    def n_free(self) -> int:
        """Slots without a task; negative: tasks without a slot."""
        return self.n_slots - self.n_tasks


@dataclass(frozen=True, slots=True)
class TaskDemand:
    """A task to be placed. `cached`: tokens of its prompt by engine; `last`: where its conversation was."""

    n_prompt: int
    cached: Mapping[int, int] = field(default_factory=dict)
    last: int = -1


def estimate_ms(demand: TaskDemand, index: int, load: EngineLoad) -> float:
    """Return the cost of a task on this engine."""
    n_left = max(1, demand.n_prompt - demand.cached.get(index, 0))
    n_before = max(0, 1 - load.n_free)
    crowd = min(load.n_tasks, load.n_slots) / load.n_slots
    return (
        (WORK * n_left + load.n_ahead) * load.token_ms
        + n_before * load.service_ms / load.n_slots
        + CROWD * crowd * load.service_ms
    )


def merge_queues(queues: Sequence[Sequence[int]]) -> list[int]:
    """Return one order for the waiting tasks of all engines: the first of each, then the second of each."""
    longest = max(map(len, queues), default=0)
    return [queue[i] for i in range(longest) for queue in queues if i < len(queue)]


def _blend(old: float, new: float) -> float:
    return new if old == 0.0 else old + _WEIGHT * (new - old)
