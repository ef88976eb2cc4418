"""Which models hold memory, wait for it or leave, and which requests are inside of them.

The one owner of these states. A change is decided and begun in the same call, so nothing happens in between.
What follows is up to `Effects` and `Ticket`: the event loop, engines and HTTP are unknown here.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from corral.core.errors import CorralError, InsufficientStorage, Unavailable, UnknownModel
from corral.models.eviction import Budget, Resident, check_possible, plan_room

_PATIENCE_S = 5.0  # before busy models get no new requests, so that they become idle
_log = logging.getLogger("corral")


class Phase(enum.Enum):
    OUT = "out"  # no engine runs
    PREPARING = "preparing"  # it is being loaded; what it needs is not known yet
    WAITING = "waiting"  # for memory
    LOADING = "loading"  # into its memory
    UP = "up"  # requests are let in
    LEAVING = "leaving"  # until its engine is gone; requests wait for the next load


class Effects(Protocol):
    """What is done to a model. Nothing here waits; each begins something that ends with a call of the method
    of `Residency` in parentheses."""

    @property
    def is_working(self) -> bool:
        """Whether its engine has tasks, or is starting again."""
        ...

    def begin_load(self) -> None:
        """Find out what it needs (`plan`)."""
        ...

    def grant(self) -> None:
        """Load: it has memory (`on_up`, `on_failed`)."""
        ...

    def refuse(self, error: CorralError) -> None:
        """End the load that waits for memory: there will never be enough (`on_failed`)."""
        ...

    def begin_unload(self, was_idle: bool) -> None:
        """Unload the engine, or end a load that waits for memory (`on_gone`). `was_idle`: for long."""
        ...

    def on_phase(self) -> None:
        """Called when the phase has changed."""
        ...


class Ticket(Protocol):
    """A request from `enter` to `leave`. Exactly one of these is called, unless it leaves before."""

    def let_in(self) -> None: ...

    def refuse(self, error: CorralError) -> None: ...


class Stay:
    """What `Residency` knows about one model. Nobody else changes it."""

    def __init__(
        self, name: str, effects: Effects, is_pinned: bool = False, groups: tuple[str, ...] = ()
    ) -> None:
        self.name = name
        self.effects = effects
        self.is_pinned = is_pinned
        self.groups = frozenset(groups)
        self.phase = Phase.OUT
        self.needs: Mapping[str, int] = {}  # as planned last; empty: not yet known
        self.is_granted = False  # its memory is counted as used
        self.is_sent_out = False  # it leaves when its requests have ended; new ones wait for the next load
        self.is_retired = False  # the same, and nobody can name it any more
        self.used_at = 0.0
        self.waiting: dict[Ticket, None] = {}  # in the order of their arrival
        self.inside: set[Ticket] = set()

    @property
    def is_busy(self) -> bool:
        return self.phase is not Phase.UP or bool(self.inside) or self.effects.is_working


class Residency:
    """Mutable: the stays of all models."""

    def __init__(
        self,
        budget: Callable[[], Budget],
        tick_later: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tick_later`: have `tick` called in a while, once."""
        self._budget = budget
        self._tick_later = tick_later
        self._clock = clock
        self.stays: list[Stay] = []
        self.queue: list[Stay] = []  # wait for memory, the next one first
        self._drained: list[Stay] = []  # busy ones that get no new requests, for the first in the queue
        self._first: Stay | None = None
        self._first_since = 0.0
        self._is_closed = False
        self._is_settling = self._is_due = False

    def add(self, stay: Stay) -> None:
        self.stays.append(stay)

    def remove(self, stay: Stay) -> None:
        """Forget a model that is out."""
        assert stay.phase is Phase.OUT
        self.stays.remove(stay)

    def enter(self, stay: Stay, ticket: Ticket) -> None:
        """Let a request in, now or when the model is loaded, for which it counts until `leave`."""
        if self._is_closed or stay not in self.stays:
            ticket.refuse(_closed() if self._is_closed else UnknownModel(stay.name))
            return
        stay.used_at = self._clock()
        stay.waiting[ticket] = None
        if stay.phase is Phase.UP and self.is_open(stay):
            self._let_in(stay)
        self.tick()

    def leave(self, stay: Stay, ticket: Ticket) -> None:
        """End a request, which may still wait."""
        if ticket in stay.inside:
            stay.inside.discard(ticket)
            stay.used_at = self._clock()
        else:
            stay.waiting.pop(ticket, None)
        self.tick()

    def is_open(self, stay: Stay) -> bool:
        """Whether new requests may use the present engine."""
        return not stay.is_sent_out and stay not in self._drained

    def plan(self, stay: Stay, needs: Mapping[str, int]) -> None:
        """Have a model wait for memory. One that had been granted some must have freed it. Raises
        InsufficientStorage if there never will be enough."""
        if stay.phase is Phase.LEAVING:
            return
        assert stay.phase in (Phase.PREPARING, Phase.LOADING), stay.phase
        stay.needs, stay.is_granted = needs, False
        self._move(stay, Phase.PREPARING)
        self.check_possible(stay)
        self.queue.append(stay)
        self._move(stay, Phase.WAITING)
        self.tick()

    def forget_plan(self, stay: Stay) -> None:
        """Handle that a model died which waited for memory; it may plan again."""
        if stay.phase is Phase.WAITING:
            self.queue.remove(stay)
            self._move(stay, Phase.PREPARING)
            self.tick()

    def on_up(self, stay: Stay) -> None:
        """Let in all that wait, also if the model is to leave: no load is in vain."""
        if stay.phase is Phase.LOADING:
            stay.used_at = self._clock()
            self._move(stay, Phase.UP)
            self._let_in(stay)
            self.tick()

    def on_failed(self, stay: Stay, error: CorralError) -> None:
        """Handle that a model could not be loaded, or that its engine was lost for good."""
        if stay.phase not in (Phase.LEAVING, Phase.OUT):  # else `on_gone` follows, or came
            self._end(stay)
            self._refuse_all(stay, error)
            self.tick()

    def on_gone(self, stay: Stay) -> None:
        """Handle the end of an engine that was unloaded."""
        assert stay.phase is Phase.LEAVING, stay.phase
        self._end(stay)
        self.tick()

    def on_idle(self, stay: Stay) -> None:
        """Unload a model that had no work for long, unless it has some now."""
        if not self._is_closed and not stay.is_busy:
            self._send_away(stay, was_idle=True)
            self.tick()

    def send_out(self, stay: Stay) -> None:
        """Unload a model as soon as its requests have ended; `is_sent_out` until that is done."""
        stay.is_sent_out = True
        self.tick()

    def retire(self, stay: Stay) -> None:
        stay.is_retired = True
        self.tick()

    def close(self) -> None:
        """Refuse all that wait, and load nothing any more."""
        self._is_closed = True
        for stay in self.stays:
            self._refuse_all(stay, _closed())

    def tick(self) -> None:
        """Begin whatever can begin now."""
        self._is_due = True
        if self._is_settling:
            return
        self._is_settling = True
        try:
            while self._is_due and not self._is_closed:
                self._is_due = False
                for stay in list(self.stays):
                    self._settle(stay)
                self._serve_queue()
        finally:
            self._is_settling = False
        if self.queue or any(stay.is_sent_out or stay.is_retired for stay in self.stays):
            self._tick_later()  # nobody tells when an engine has done its last task

    def check_possible(self, stay: Stay) -> None:
        """Raise InsufficientStorage if a model could not be loaded although all others were gone."""
        pinned = [each for each in self._residents(stay).values() if each.is_pinned]
        check_possible(stay.name, stay.needs, pinned, self._budget())

    def others(self, stay: Stay) -> Iterator[Stay]:
        """The other models that hold memory."""
        return (each for each in self.stays if each is not stay and each.is_granted)

    def _settle(self, stay: Stay) -> None:
        is_unwanted = not stay.waiting
        if stay.phase is Phase.OUT:
            stay.is_sent_out = False
            if stay.waiting:
                self._move(stay, Phase.PREPARING)
                stay.effects.begin_load()
        elif stay.is_sent_out or stay.is_retired:
            has_begun = stay.phase in (Phase.PREPARING, Phase.WAITING)
            if not stay.is_busy or (has_begun and is_unwanted):
                self._send_away(stay)
        elif stay.phase is Phase.WAITING and is_unwanted and self._plan_room(stay) != []:
            self._send_away(stay)  # no other model is unloaded for it, and none waits behind it

    def _serve_queue(self) -> None:
        while self.queue:
            stay = self.queue[0]
            if stay is not self._first:
                self._first, self._first_since = stay, self._clock()
                self._open_drained()
            try:
                self.check_possible(stay)
            except InsufficientStorage as error:
                del self.queue[0]
                self._move(stay, Phase.PREPARING)
                stay.effects.refuse(error)
                continue
            if self._plan_room(stay) != []:
                self._make_room(stay)
                return
            del self.queue[0]
            stay.is_granted = True
            self._move(stay, Phase.LOADING)
            stay.effects.grant()
        self._first = None
        self._open_drained()

    def _make_room(self, stay: Stay) -> None:
        """Unload others if that helps; what leaves already need not be chosen."""
        stays = {resident.name: each for each, resident in self._residents(stay).items()}
        staying = [
            each for each in self._residents(stay).values() if stays[each.name].phase is not Phase.LEAVING
        ]
        budget = self._budget()
        victims = plan_room(stay.needs, staying, budget)
        if victims is None and not self._drained and self._clock() - self._first_since > _PATIENCE_S:
            busy = plan_room(stay.needs, staying, budget, also_busy=True) or ()
            self._drained = [stays[name] for name in busy]
        for name in victims or ():
            _log.info("unloading %(model)s to make room for %(other)s", {"model": name, "other": stay.name})
            self._send_away(stays[name])

    def _plan_room(self, stay: Stay) -> list[str] | None:
        return plan_room(stay.needs, list(self._residents(stay).values()), self._budget())

    def _residents(self, stay: Stay) -> dict[Stay, Resident]:
        return {
            each: Resident(
                f"{each.name}, replaced ({i})" if each.is_retired else each.name,
                each.needs,
                each.used_at,
                is_busy=each.is_busy or each.is_retired,
                is_pinned=each.is_pinned and not each.is_retired,
                is_rival=not each.groups.isdisjoint(stay.groups),
            )
            for i, each in enumerate(self.others(stay))
        }

    def _send_away(self, stay: Stay, was_idle: bool = False) -> None:
        if stay in self.queue:
            self.queue.remove(stay)
        self._move(stay, Phase.LEAVING)
        stay.effects.begin_unload(was_idle)
        self._is_due = True

    def _end(self, stay: Stay) -> None:
        if stay in self.queue:
            self.queue.remove(stay)
        stay.is_granted = stay.is_sent_out = False
        self._move(stay, Phase.OUT)

    def _open_drained(self) -> None:
        drained, self._drained = self._drained, []
        for stay in drained:
            if stay.phase is Phase.UP and self.is_open(stay):
                self._let_in(stay)

    def _let_in(self, stay: Stay) -> None:
        waiting, stay.waiting = stay.waiting, {}
        stay.inside.update(waiting)
        for ticket in waiting:
            ticket.let_in()

    def _refuse_all(self, stay: Stay, error: CorralError) -> None:
        waiting, stay.waiting = stay.waiting, {}
        for ticket in waiting:
            ticket.refuse(error)

    def _move(self, stay: Stay, phase: Phase) -> None:
        stay.phase = phase
        stay.effects.on_phase()


def _closed() -> Unavailable:
    return Unavailable("the server is shutting down")
