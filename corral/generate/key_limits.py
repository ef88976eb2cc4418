"""Limits of API keys: tasks at a time, and tokens per minute and day.

A task takes a place when it is submitted, whatever request led to it, and gives it back when it ends. Until
then the tokens that it may use count as used; afterwards the ledger has those that it used.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from corral.core.errors import CorralError, InvalidRequest, TooManyRequests
from corral.core.task import Embed, Task
from corral.telemetry.ledger import DAY_S, Ledger

if TYPE_CHECKING:
    from corral.core.client import Client

_RETRY_S = 1  # for what another task may give back soon


@dataclass(slots=True, eq=False)
class Place:
    """Mutable: what a task takes of the limits of its key. `n_tokens`: at most, its prompt included."""

    client: Client
    n_tokens: int


@dataclass(frozen=True, slots=True)
class _Budget:
    """`used`: without what is running. `reset_s`: until some of it is refilled."""

    name: str
    limit: int
    used: int
    reset_s: int

    @property
    def text(self) -> str:
        return f"{self.limit} tokens per {self.name}"


class KeyLimits:
    """Mutable: the places that are taken, of all models. On the event loop."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._taken: defaultdict[str, set[Place]] = defaultdict(set)  # by client id

    def check(self, client: Client) -> None:
        """Raise TooManyRequests if the key cannot submit any task now."""
        if client.limits:
            self._check(client, [[0]])

    def take(self, client: Client, tasks: Sequence[list[int]], is_admitted: bool = False) -> list[Place]:
        """Take a place for each task of a request, or none: raises TooManyRequests if there is no room now,
        InvalidRequest if there never is. `tasks`: the tokens that each part of each task may use.
        `is_admitted`: an earlier server has checked them."""
        if not client.limits:
            return [Place(client, 0) for _ in tasks]
        if not is_admitted:
            self._check(client, tasks)
        places = [Place(client, sum(parts)) for parts in tasks]
        self._taken[client.id].update(places)
        return places

    def resize(self, place: Place, tokens: list[int]) -> None:
        """Change what a running task may use. Raises TooManyRequests where a new one would be refused."""
        client, n = place.client, sum(tokens)
        if n > place.n_tokens:
            n_others = self._n_reserved(client) - place.n_tokens
            over = [each for each in self._budgets(client) if each.used + n_others >= each.limit]
            if over:
                raise _too_many(over[0].text, _RETRY_S)
        place.n_tokens = n

    def give_back(self, place: Place) -> None:
        """Do nothing if that was done before."""
        taken = self._taken.get(place.client.id)
        if taken is not None:
            taken.discard(place)
            if not taken:
                del self._taken[place.client.id]

    def headers(self, client: Client) -> list[tuple[bytes, bytes]]:
        """Return what a response says of the limits: what is left now, in the smallest budget."""
        limit, headers = client.limits.concurrent, []
        if limit and not client.is_batch:
            headers += _headers("requests", limit, limit - self._n_running(client), _RETRY_S)
        budgets = self._budgets(client)
        if budgets:
            n_reserved = self._n_reserved(client)
            least = min(budgets, key=lambda each: each.limit - each.used)
            headers += _headers("tokens", least.limit, least.limit - least.used - n_reserved, least.reset_s)
        return headers

    def _check(self, client: Client, tasks: Sequence[list[int]]) -> None:
        error = self._refusal(client, len(tasks), [n for parts in tasks for n in parts])
        if error is not None:
            if not client.is_batch:
                self._ledger.on_refused(client)
            raise error

    def _refusal(self, client: Client, n: int, tokens: list[int]) -> CorralError | None:
        """`n`: tasks. Their parts are counted one after another; only the last may exceed a budget."""
        limit = client.limits.concurrent
        if limit and not client.is_batch:
            if n > limit:
                text = f"this request has {n} prompts or answers, and this API key may have {limit} at a time"
                return InvalidRequest(text)
            if self._n_running(client) + n > limit:
                return _too_many(f"{limit} tasks at a time", _RETRY_S)
        n_before_last = sum(tokens) - max(tokens, default=0)
        n_reserved = self._n_reserved(client)
        for budget in self._budgets(client):
            name = budget.text
            if budget.used >= budget.limit:
                return _too_many(name, budget.reset_s)
            if n_before_last >= budget.limit:
                return InvalidRequest(
                    f"the prompts and answers of this request may take {sum(tokens)} tokens, and this API "
                    f"key has {name}: ask for fewer, or limit their length"
                )
            if budget.used + n_before_last >= budget.limit:
                return _too_many(name, budget.reset_s)
            if budget.used + n_reserved + n_before_last >= budget.limit:
                return _too_many(f"{name}, which running requests may use up", _RETRY_S)
        return None

    def _n_running(self, client: Client) -> int:
        return sum(not place.client.is_batch for place in self._taken.get(client.id, ()))

    def _n_reserved(self, client: Client) -> int:
        return sum(place.n_tokens for place in self._taken.get(client.id, ()))

    def _budgets(self, client: Client) -> list[_Budget]:
        limits, budgets = client.limits, []
        if limits.tokens_per_minute:
            used, reset_s = self._ledger.used_in_minute(client)
            budgets.append(_Budget("minute", limits.tokens_per_minute, used, max(1, math.ceil(reset_s))))
        if limits.tokens_per_day:
            reset = DAY_S - int(time.time()) % DAY_S
            used = self._ledger.today(client).tokens
            budgets.append(_Budget("day", limits.tokens_per_day, used, reset))
        return budgets


def most_tokens(task: Task | Embed, n_ctx: int) -> list[int]:
    """Return how many tokens each part of a task may use; an answer without a limit, the rest of the
    context."""
    if isinstance(task, Embed):
        return list(map(len, task.inputs))
    n_prompt, n_predict = len(task.prompt), task.params.n_predict
    return [n_prompt + n_predict if 0 <= n_predict < n_ctx - n_prompt else max(n_ctx, n_prompt)]


def _headers(kind: str, limit: int, left: int, reset_s: int) -> list[tuple[bytes, bytes]]:
    values = {"limit": limit, "remaining": max(0, left), "reset": f"{reset_s}s"}
    return [(f"x-ratelimit-{name}-{kind}".encode(), str(value).encode()) for name, value in values.items()]


def _too_many(limit: str, retry_after_s: int) -> TooManyRequests:
    return TooManyRequests(f"the limit of this API key is reached: {limit}", retry_after_s=retry_after_s)
