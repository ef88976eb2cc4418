"""How much all engines together have evaluated and generated: told by the results that pass by.

Work that an engine has to do again for a lost one counts again; tokens that clients get count once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from corral.core.result import Admitted, Begun, Done, Embedded, Progress, TaskResult, Tokens, Vectors
from corral.core.task import Embed, Task


@dataclass(slots=True)
class _Share:
    """Mutable: what of a task is in the sums already."""

    n_cached: int = 0
    n_prompt: int = 0
    prompt_ms: float = 0.0
    n_predicted: int = 0
    predicted_ms: float = 0.0


class Tally:
    """Mutable: sums since the server started."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.n_prompt = 0  # tokens of prompts and inputs that were evaluated; what was cached is not in it
        self.prompt_ms = 0.0
        self.n_predicted = 0
        self.predicted_ms = 0.0
        self._clock = clock
        self._shares: dict[int, _Share] = {}
        self._embedding: set[int] = set()
        self._embedded_at = 0.0

    def leave(self, order_id: int) -> None:
        """An order has ended, however it did."""
        self._embedding.discard(order_id)
        self._shares.pop(order_id, None)

    def lose_engine(self) -> None:
        """Nothing is being evaluated."""
        self._embedding.clear()

    def note(self, result: TaskResult, order: Task | Embed) -> None:
        if isinstance(order, Embed):
            self._note_embedding(result, order)
        elif isinstance(result, Admitted):
            # Of an order that has been in another engine, what clients have is not counted again.
            self._shares[order.id] = _Share(result.n_cached, n_predicted=self._share(order.id).n_predicted)
        elif isinstance(result, Progress):
            share = self._share(order.id)
            self._add_prompt(share, result.n_past - share.n_cached, result.prompt_ms)
        elif isinstance(result, Tokens | Done):
            self._note_tokens(self._share(order.id), result)

    def _share(self, order_id: int) -> _Share:
        return self._shares.setdefault(order_id, _Share())

    def _add_prompt(self, share: _Share, n: int, ms: float) -> None:
        self.n_prompt += max(0, n - share.n_prompt)
        self.prompt_ms += max(0.0, ms - share.prompt_ms)
        share.n_prompt, share.prompt_ms = max(n, share.n_prompt), max(ms, share.prompt_ms)

    def _note_tokens(self, share: _Share, result: Tokens | Done) -> None:
        timings = result.timings
        self._add_prompt(share, timings.prompt_n, timings.prompt_ms)
        n, ms = max(timings.predicted_n, share.n_predicted), max(timings.predicted_ms, share.predicted_ms)
        self.n_predicted += n - share.n_predicted
        self.predicted_ms += ms - share.predicted_ms
        share.n_predicted, share.predicted_ms = n, ms

    def _note_embedding(self, result: TaskResult, order: Embed) -> None:
        """Orders share batches: time in which several are evaluated counts once."""
        now = self._clock()
        if self._embedding:
            self.prompt_ms += (now - self._embedded_at) * 1e3
        self._embedded_at = now
        if isinstance(result, Begun):
            self._embedding.add(order.id)
        elif isinstance(result, Vectors):
            self.n_prompt += len(order.inputs[result.index])
        elif isinstance(result, Embedded):
            self._embedding.discard(order.id)
