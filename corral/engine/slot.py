"""A slot: one KV sequence, its tokens, and the request it works for."""

from __future__ import annotations

import numpy as np

from corral.core.chunk import TokenArray
from corral.engine.checkpoint import Checkpoint
from corral.engine.request import Request
from corral.engine.reuse_key import ReuseKey
from corral.engine.saved import NEVER


class TokenBuffer:
    """Mutable run of tokens with a fixed capacity; mirrors what a KV sequence holds."""

    def __init__(self, capacity: int) -> None:
        self._data = np.zeros(capacity, np.int32)
        self._n = 0

    def __len__(self) -> int:
        return self._n

    @property
    def view(self) -> TokenArray:
        return self._data[: self._n]

    def extend(self, tokens: TokenArray) -> None:
        end = self._n + len(tokens)
        self._data[self._n : end] = tokens
        self._n = end

    def assign(self, tokens: TokenArray) -> None:
        self._data[: len(tokens)] = tokens
        self._n = len(tokens)

    def truncate(self, n: int) -> None:
        self._n = min(self._n, n)

    def move(self, start: int, end: int, to: int) -> None:
        """Move a run of tokens towards the start; tokens after it stay where they are."""
        self._data[to : to + end - start] = self._data[start:end].copy()


class Slot:
    """Mutable. `id` is also the KV sequence."""

    def __init__(self, id: int, n_ctx: int) -> None:
        self.id = id
        self.shifted_from = NEVER  # tokens after these are not where they were evaluated
        self.reuse_key = ReuseKey()  # the adapters and the tenant they were evaluated for
        self.n_system = 0  # how many of them are the system prompt
        self.tokens = TokenBuffer(n_ctx)
        self.checkpoints: list[Checkpoint] = []  # in ascending order
        self.mark: Checkpoint | None = None  # where the batch with a draft began, to go back to
        self.request: Request | None = None
        self.affinity: tuple[bytes, str] | None = None  # tenant and `prompt_cache_key` that it last served
        self.last_used = 0
        self.n_evaluated = 0  # prompt tokens of the last request that were not cached

    @property
    def is_idle(self) -> bool:
        return self.request is None

    @property
    def is_yielding(self) -> bool:
        """Whether another request can take it from the line of a batch."""
        return self.request is not None and self.request.can_yield

    def is_behind(self, request: Request) -> bool:
        """Whether its prompt is evaluated only while the other request is not: that must not wait for it."""
        own = self.request
        return own is not None and own.is_batch and own.is_evaluating_prompt and not request.is_batch
