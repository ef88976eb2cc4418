"""What every slot has been doing for a while: one piece after the other, on a prompt or on an answer."""

from __future__ import annotations

import collections
import enum
from collections.abc import Iterator
from dataclasses import dataclass

from corral.core.result import Admitted, Tier
from corral.core.visit import Leg, Visit

MAX_ENDED = 1024  # that are remembered
NONE, OWN, SLOT = "none", "own", "slot"
SOURCES = (NONE, OWN, SLOT, Tier.RAM.value, Tier.DISK.value)


class Phase(str, enum.Enum):
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(slots=True, eq=False)
class Segment:
    """Mutable: `n_done` tokens of a prompt are in the context, or of an answer are there."""

    number: int
    id_slot: int
    phase: Phase
    leg: Leg
    id: str  # of the request
    key: str
    admitted: Admitted
    started_at: float
    ended_at: float = 0.0
    n_done: int = 0
    is_lost: bool = False  # with its engine


def source_of(admitted: Admitted) -> str:
    """Where the beginning of a prompt came from: the slot itself, another one, a saved state, a file."""
    if admitted.tier is not Tier.LIVE:
        return str(admitted.tier.value)
    return OWN if admitted.id_source == admitted.id_slot else SLOT


class Lanes:
    """Mutable."""

    def __init__(self) -> None:
        self._n = 0
        self._open: dict[int, Segment] = {}  # by the identity of its order, which it keeps
        self._ended: collections.deque[Segment] = collections.deque(maxlen=MAX_ENDED)
        self._news: list[Segment] = []

    def __iter__(self) -> Iterator[Segment]:
        """Those that have ended first."""
        yield from self._ended
        yield from self._open.values()

    def admit(self, visit: Visit, leg: Leg, admitted: Admitted, now: float) -> None:
        self._end(leg, now, is_lost=True)  # if it was in another engine before
        self._begin(Phase.PREFILL, visit.id, visit.client.name, leg, admitted, now)

    def find(self, leg: Leg) -> Segment | None:
        """What an order is in now."""
        return self._open.get(id(leg))

    def answer(self, segment: Segment, now: float) -> Segment:
        """The first token is there."""
        segment.n_done = segment.leg.n_prompt
        self._end(segment.leg, now)
        return self._begin(Phase.DECODE, segment.id, segment.key, segment.leg, segment.admitted, now)

    def leave(self, leg: Leg, now: float) -> None:
        self._end(leg, now)

    def lose_engine(self, now: float) -> None:
        for segment in list(self._open.values()):
            self._end(segment.leg, now, is_lost=True)

    def news(self) -> list[Segment]:
        """What has changed, or may have, since this was asked last."""
        news, self._news = [*self._news, *self._open.values()], []
        return news

    def forget(self, before: float) -> None:
        """What had ended then."""
        while self._ended and self._ended[0].ended_at < before:
            self._ended.popleft()

    def _begin(self, phase: Phase, id_: str, key: str, leg: Leg, admitted: Admitted, now: float) -> Segment:
        self._n += 1
        n_done = admitted.n_cached if phase is Phase.PREFILL else 0
        segment = Segment(self._n, admitted.id_slot, phase, leg, id_, key, admitted, now, n_done=n_done)
        self._open[id(leg)] = segment
        return segment

    def _end(self, leg: Leg, now: float, is_lost: bool = False) -> None:
        segment = self._open.pop(id(leg), None)
        if segment is not None:
            segment.ended_at, segment.is_lost = now, is_lost
            self._ended.append(segment)
            self._news.append(segment)
