"""Whether copying a state to host memory pays, compared with evaluating its tokens again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from corral.engine.cost import CostModel

_MIN_RATIO = 4.0  # a copy takes time now and when it is loaded, and most are never asked for


class CopyCost:
    """Mutable: learns the time per token of copies. `is_free`: do not ask, as on CPUs, where evaluating takes
    a hundred times as long."""

    def __init__(self, cost: CostModel, is_free: bool, clock: Callable[[], float]) -> None:
        self._cost = cost
        self._is_free = is_free
        self._clock = clock
        self._token_ms = 0.0

    @property
    def pays(self) -> bool:
        return self._is_free or self._cost.prompt.token_ms >= _MIN_RATIO * self._token_ms

    @contextlib.contextmanager
    def measure(self, n_tokens: int) -> Iterator[None]:
        started = self._clock()
        yield
        self._token_ms = (self._clock() - started) * 1e3 / n_tokens
