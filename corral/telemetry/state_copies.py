"""Count the copies of states between engines, and the decisions against them."""

from __future__ import annotations

from collections import Counter


class CopyCounters:
    """Mutable. `outcomes`: as `CopyOutcome` of the link names them."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter(copied=0, failed=0, declined=0)
        self.n_tokens = 0  # of prefixes that need not be evaluated
        self.seconds = 0.0

    def add(self, outcome: str, n_tokens: int, seconds: float) -> None:
        self.outcomes[outcome] += 1
        self.n_tokens += n_tokens
        self.seconds += seconds
