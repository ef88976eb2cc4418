"""Tokens evaluated and generated since the server started, derived from the results that pass by.

Work repeated after an engine was lost counts again; tokens delivered to clients count once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from corral.core.result import Admitted, Begun, Decodes, Done, Embedded, Progress, TaskResult, Tokens, Vectors
from corral.core.task import Embed, Task


@dataclass(slots=True)
class _Share:
    """The part of a task that the sums already include."""

    n_cached: int = 0
    n_prompt: int = 0
    prompt_ms: float = 0.0
    n_predicted: int = 0
    predicted_ms: float = 0.0


class TokenCounters:
    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.n_prompt = 0  # evaluated tokens of prompts and inputs, without cached ones
        self.prompt_ms = 0.0
        self.n_predicted = 0
        self.predicted_ms = 0.0
        self.n_steps = 0  # predicted tokens after the first of each answer: what `predicted_ms` was spent on
        self.n_decodes = 0
        self.n_busy = 0  # sum of sequences in these decodes
        self._decodes = Decodes(0, 0)  # of the present engine
        self._clock = clock
        self._shares: dict[int, _Share] = {}
        self._embedding: set[int] = set()
        self._embedded_at = 0.0

    def on_end(self, task_id: int) -> None:
        self._embedding.discard(task_id)
        self._shares.pop(task_id, None)

    def lose_engine(self) -> None:
        self._embedding.clear()
        self._decodes = Decodes(0, 0)

    def lose(self, task_ids: Iterable[int]) -> None:
        """Note that one of several engines is lost, which had these tasks."""
        self._embedding.difference_update(task_ids)

    def on_decodes(self, decodes: Decodes) -> None:
        self.n_decodes += decodes.n - self._decodes.n
        self.n_busy += decodes.n_busy - self._decodes.n_busy
        self._decodes = decodes

    def on_result(self, result: TaskResult, task: Task | Embed) -> None:
        if isinstance(result, Tokens):
            self._count_tokens(self._share(task.id), result)
        elif isinstance(task, Embed):
            self._count_embedding(result, task)
        elif isinstance(result, Admitted):
            # Tokens that a lost engine had delivered are not counted again.
            self._shares[task.id] = _Share(result.n_cached, n_predicted=self._share(task.id).n_predicted)
        elif isinstance(result, Progress):
            share = self._share(task.id)
            self._add_prompt(share, result.n_past - share.n_cached, result.prompt_ms)
        elif isinstance(result, Done):
            self._count_tokens(self._share(task.id), result)

    def _share(self, task_id: int) -> _Share:
        return self._shares.get(task_id) or self._shares.setdefault(task_id, _Share())

    def _add_prompt(self, share: _Share, n: int, ms: float) -> None:
        self.n_prompt += max(0, n - share.n_prompt)
        self.prompt_ms += max(0.0, ms - share.prompt_ms)
        share.n_prompt, share.prompt_ms = max(n, share.n_prompt), max(ms, share.prompt_ms)

    def _count_tokens(self, share: _Share, result: Tokens | Done) -> None:
        timings = result.timings
        self._add_prompt(share, timings.prompt_n, timings.prompt_ms)
        n, ms = max(timings.predicted_n, share.n_predicted), max(timings.predicted_ms, share.predicted_ms)
        self.n_predicted += n - share.n_predicted
        self.n_steps += max(0, n - 1) - max(0, share.n_predicted - 1)
        self.predicted_ms += ms - share.predicted_ms
        share.n_predicted, share.predicted_ms = n, ms

    def _count_embedding(self, result: TaskResult, task: Embed) -> None:
        """Count inputs. Tasks share batches, so time in which several are evaluated counts once."""
        now = self._clock()
        if self._embedding:
            self.prompt_ms += (now - self._embedded_at) * 1e3
        self._embedded_at = now
        if isinstance(result, Begun):
            self._embedding.add(task.id)
        elif isinstance(result, Vectors):
            self.n_prompt += len(task.inputs[result.index])
        elif isinstance(result, Embedded):
            self._embedding.discard(task.id)
