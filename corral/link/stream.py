"""The results of one task."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import AsyncIterator, Callable

from corral.core.errors import CorralError
from corral.core.result import Failed, LastResult, PromptProbs, TaskResult, Tokens

MAX_WAITING = 16384  # unread results after which a slow reader's task is cancelled
MAX_WAITING_PROBS = 1 << 19  # or probabilities, of which a result may have many


class TaskStream:
    """Async iterator over results; raises the error of `Failed`. `close` cancels the task."""

    def __init__(self, on_close: Callable[[], None]) -> None:
        self._results: collections.deque[TaskResult] = collections.deque()
        self._wake = asyncio.Event()
        self.on_close = on_close  # another engine may get the task
        self._error: CorralError | None = None
        self._is_over = False
        self._n_probs = 0  # in results that wait

    def put(self, result: TaskResult) -> None:
        self._n_probs += _n_probs(result)
        if len(self._results) >= MAX_WAITING or self._n_probs > MAX_WAITING_PROBS:
            self.give_up(CorralError("the client reads too slowly: request cancelled"))
            return
        self._results.append(result)
        self._wake.set()

    def fail(self, error: CorralError) -> None:
        """End the stream with an error, after the results already received."""
        self._error = error
        self._wake.set()

    def give_up(self, error: CorralError) -> None:
        """Fail the stream and cancel the task."""
        self.fail(error)
        self.on_close()

    def close(self) -> None:
        if not self._is_over:
            self._is_over = True
            self.on_close()

    async def __aiter__(self) -> AsyncIterator[TaskResult]:
        try:
            while True:
                while self._results:
                    result = self._results.popleft()
                    self._n_probs -= _n_probs(result)
                    is_token = isinstance(result, Tokens)  # as most are
                    if not is_token and isinstance(result, Failed):
                        self._is_over = True
                        raise CorralError.from_info(result.error)
                    self._is_over = not is_token and isinstance(result, LastResult)
                    yield result
                    if self._is_over:
                        return
                if self._error is not None:
                    self._is_over = True
                    raise self._error
                self._wake.clear()
                await self._wake.wait()
        finally:
            self.close()


def _n_probs(result: TaskResult) -> int:
    if not isinstance(result, (Tokens, PromptProbs)):
        return 0
    return sum(len(probs.top) for probs in result.probs) if result.probs else 0
