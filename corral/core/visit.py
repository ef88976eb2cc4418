"""One HTTP request from its arrival to its end: who sent it, and when what happened to its orders.

The door fills in the client, the link what becomes of the orders; logs, metrics and traces read it.
Times are those of `time.perf_counter`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from corral.core.result import Admitted, Begun, Done, Failed, LastResult, TaskResult, Tier, Timings, Tokens


@dataclass(frozen=True, slots=True)
class Client:
    """Whoever has a certain key, or everybody where there are none.

    `id` tells those who share the server from each other, by `weight`. `realm`: nothing that was evaluated in
    one serves another.
    """

    name: str = ""
    id: str = ""
    weight: float = 1.0
    realm: bytes = b""


ANYBODY = Client()


@dataclass(slots=True)
class Leg:
    """Mutable: what has happened to one order; 0: not yet."""

    n_prompt: int
    entered_at: float
    admitted_at: float = 0.0
    first_at: float = 0.0
    last_at: float = 0.0
    ended_at: float = 0.0
    n_engines: int = 0  # that have begun with it
    is_done: bool = False  # not given up, and not failed
    tier: Tier = Tier.NONE
    admitted: Admitted | None = None  # by the last engine
    worst_gap_s: float = 0.0  # between two of its results
    timings: Timings | None = None

    @property
    def queue_s(self) -> float:
        """How long it waited, or does."""
        return (self.admitted_at or self.ended_at or time.perf_counter()) - self.entered_at

    def note(self, result: TaskResult, now: float) -> None:
        if isinstance(result, Admitted | Begun):
            # A second engine admits again what has been waited for once.
            self.admitted_at = self.admitted_at or now
            self.n_engines += 1
            if isinstance(result, Admitted):
                self.tier = result.tier
                self.admitted = result
        elif isinstance(result, Tokens):
            if not self.first_at:
                self.first_at = now
            elif now - self.last_at > self.worst_gap_s:
                self.worst_gap_s = now - self.last_at
            self.last_at = now
            self.timings = result.timings
        elif isinstance(result, Done):
            self.timings = result.timings
        if isinstance(result, LastResult | Failed):
            self.ended_at = now
            self.is_done = isinstance(result, LastResult)


@dataclass(slots=True)
class Visit:
    """Mutable."""

    id: str = ""
    client: Client = ANYBODY
    started_at: float = field(default_factory=time.perf_counter)
    legs: list[Leg] = field(default_factory=list)
    ended_at: float = 0.0
    status: int = 0  # of the answer, or what tells why there was none
    n_bytes: int = 0  # of its body

    def enter(self, n_prompt: int) -> Leg:
        """An order is on its way to the engine."""
        leg = Leg(n_prompt, time.perf_counter())
        self.legs.append(leg)
        return leg
