"""What a run has seen: counts of everything that was asked and done, and what should not have happened."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field

_MAX_SHOWN = 20


@dataclass(slots=True)
class Score:
    """Mutable, for one thread. `problems` is empty after a good run."""

    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    statuses: collections.Counter[str] = field(default_factory=collections.Counter)
    problems: list[str] = field(default_factory=list)
    n_problems: int = 0

    def count(self, what: str, n: int = 1) -> None:
        self.counts[what] += n

    def status(self, kind: str, status: int) -> None:
        self.statuses[f"{kind} {status or 'none'}"] += 1

    def blame(self, problem: str) -> None:
        self.n_problems += 1
        if len(self.problems) < _MAX_SHOWN:
            self.problems.append(problem[:2000])

    def expect(self, condition: bool, problem: str) -> None:
        if not condition:
            self.blame(problem)
