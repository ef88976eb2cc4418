"""Users of applications with long system prompts: conversations that grow, with pauses between their turns.

Prompts are lists of block numbers: two prompts with a common beginning have equal first numbers.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from corral.fleet.prefix_index import BLOCK


@dataclass(frozen=True, slots=True)
class Scale:
    n_engines: int = 100
    n_users: int = 5000
    n_apps: int = 200
    n_turns: int = 4
    n_slots: int = 8  # of an engine
    n_cached_blocks: int = 4096  # of an engine, in slots and host memory: 262,144 tokens
    pause_s: float = 60.0


@dataclass(slots=True)
class User:
    """Mutable: a conversation so far."""

    id: int
    blocks: list[int]
    n_turns: int
    turns: int = 0


@dataclass(slots=True)
class Turn:
    """Mutable: a request, and what became of it."""

    id: int
    user: User
    blocks: tuple[int, ...]
    n_answer: int
    arrived_s: float
    engine: int = -1
    n_evaluated: int = 0
    began_s: float = 0.0

    @property
    def n_prompt(self) -> int:
        return len(self.blocks) * BLOCK


@dataclass(slots=True)
class Workload:
    """Mutable: `first` yields the first turn of each user, `next` the one after an answer."""

    scale: Scale
    seed: int = 1
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _ids: Iterator[int] = field(default_factory=itertools.count)

    def first(self) -> list[Turn]:
        draw = random.Random(self.seed)
        apps = [self._new(draw.randint(4, 48)) for _ in range(self.scale.n_apps)]
        popularity = [1 / (i + 1) for i in range(self.scale.n_apps)]
        turns = []
        for id in range(self.scale.n_users):
            (app,) = draw.choices(apps, popularity)
            user = User(id, list(app), max(1, round(draw.gauss(self.scale.n_turns, 1))))
            turns.append(self._turn(user, draw.uniform(0, 2 * self.scale.pause_s)))
        return turns

    def next(self, turn: Turn, now_s: float) -> Turn | None:
        user = turn.user
        user.blocks += self._new(max(1, turn.n_answer // BLOCK))
        user.turns += 1
        if user.turns >= user.n_turns:
            return None
        return self._turn(user, now_s + self._of(user).expovariate(1 / self.scale.pause_s))

    def _turn(self, user: User, at_s: float) -> Turn:
        draw = self._of(user)
        user.blocks += self._new(draw.randint(1, 8))
        return Turn(next(self._ids), user, tuple(user.blocks), draw.randint(64, 384), at_s)

    def _of(self, user: User) -> random.Random:
        """Return what decides about a turn: the same for every policy, whatever the order of events."""
        return random.Random(self.seed << 40 | user.id << 16 | user.turns)

    def _new(self, n: int) -> list[int]:
        return [next(self._numbers) for _ in range(n)]
