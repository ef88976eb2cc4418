"""Take back what breaks a rule that the grammar does not express, and draw again without it.

    sent   | held: may still be taken back        |
           | token  token  choice  token  violation
                           |<----- taken back ---->|

Each drawn token is a choice. The last one is taken back first; if that does not help, choices further back,
in steps of 1, 2, 4 and so on. Tokens are sent where nothing after them depends on what was taken back, so an
engine that continues after the last one that was sent draws the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from corral.core.chunk import FloatArray
from corral.core.draw import Redraw
from corral.core.result import Violation
from corral.engine.ports import Checker

T = TypeVar("T")


@dataclass(slots=True)
class Tried:
    """What was drawn after a certain text; mutable. `is_open`: not all that may follow it was tried."""

    tokens: set[int] = field(default_factory=set)
    texts: list[bytes] = field(default_factory=list)  # that are wrong
    is_open: bool = False

    def forget(self) -> None:
        self.tokens, self.texts, self.is_open = set(), [], False


@dataclass(frozen=True, slots=True)
class Held:
    """A token that may be taken back, and where its text ends."""

    index: int
    piece: bytes
    end: int


@dataclass(slots=True)
class TokenChoice:
    """A token that is drawn; mutable. `first`: the token from which on the logits before it were evaluated at
    once. `start` and `end` of its text, in bytes."""

    index: int
    first: int
    start: int
    tried: Tried
    end: int = 0


class Retry:
    """Mutable: the choices in the held part of one answer. `n_max`: redraws of one part."""

    def __init__(self, checker: Checker, n_max: int) -> None:
        self._checker = checker
        self._n_max = n_max
        self._n_redrawn = 0  # in this part
        self._choices: list[TokenChoice] = []
        self._held: list[Held] = []
        self._certain: list[Held] = []  # not taken back any more, but not sent yet
        self._tried: dict[tuple[int, bytes], Tried] = {}
        self._last_draw = 0
        self._failed_at = -1
        self._n_failed = 0  # in a row, at the same place
        self.first_row: FloatArray | None = None  # logits before the first token
        self.n_redrawn = 0  # in all parts
        self.violation: Violation | None = None
        self.last: Violation | None = None  # before it was taken back

    @property
    def n_held(self) -> int:
        """How many of the last tokens must not be sent yet."""
        return len(self._certain) + len(self._held)

    def draw(self, index: int, logits: FloatArray, is_given: bool) -> Redraw | None:
        """Begin to draw a token; returns what to avoid. `is_given`: it is known already."""
        if not is_given:
            if index == 0 and self.first_row is None:
                self.first_row = logits.copy()
            if not self._choices or self._choices[-1].index != index:
                tried = self._tried.pop(self._key(index), None) if self._tried else None
                self._choices.append(
                    TokenChoice(index, self._last_draw, self._checker.n_bytes, tried or Tried())
                )
        self._last_draw = index
        if is_given or not self._n_redrawn:
            return None
        tried = self._choices[-1].tried
        return Redraw(self._n_redrawn, tried.tokens, tried.texts)

    def feed(self, index: int, token: int, piece: bytes) -> list[Held]:
        """Take in a token; returns the tokens that can be sent now."""
        self._note(self._checker.feed(piece))
        end = self._checker.n_bytes
        self._held.append(Held(index, piece, end))
        if self._choices and self._choices[-1].index == index:
            self._choices[-1].end = end
            self._choices[-1].tried.tokens.add(token)
        return self._release(self._checker.held_from) if self.violation is None else []

    def finish(self) -> None:
        """Look at the whole text: it ends here."""
        if self.violation is None:
            self._note(self._checker.finish())

    def flush(self) -> list[Held]:
        """Return all tokens that were not sent: nothing is taken back any more."""
        unsent = self._certain + self._held
        self._certain, self._held = [], []
        return unsent

    def choose(self) -> TokenChoice | None:
        """Return the choice to make again; None: there is none, or too much was tried."""
        found = self.violation
        if found is None or not self._count() or found.n_items > self._n_max:
            return None
        self._n_failed = self._n_failed + 1 if found.start == self._failed_at else 1
        self._failed_at = found.start
        near = [choice for choice in self._choices if choice.end > found.start] or self._choices
        if not near:
            return None
        back = 2 ** (self._n_failed - 1)
        if back >= len(near):
            self._n_failed = 0
        choice = near[max(len(near) - back, 0)]
        if back > 1:
            choice.tried.is_open = True
        elif found.end > choice.start:
            choice.tried.texts.append(self._checker.text(choice.start, found.end))
        return self._take_back(choice)

    def choose_before(self) -> TokenChoice | None:
        """Return the choice before the last one, which has nothing left to draw; or that one, to begin it
        again, if there was more to try."""
        last = self._choices[-1]
        if not last.tried.is_open:
            self._choices.pop()
        elif self._count():
            last.tried.forget()
        else:
            return None
        return self._take_back(self._choices[-1]) if self._choices else None

    def _count(self) -> bool:
        """Count a redraw; whether it is allowed."""
        self._n_redrawn += 1
        self.n_redrawn += 1
        return self._n_redrawn <= self._n_max

    def _note(self, violation: Violation | None) -> None:
        self.violation, self.last = violation, violation or self.last

    def _take_back(self, choice: TokenChoice) -> TokenChoice:
        while (other := self._choices[-1]) is not choice:
            other.tried.is_open = True
            self._tried[self._key(other.index)] = other.tried
            self._choices.pop()
        self._held = [held for held in self._held if held.index < choice.index]
        self._checker.rewind(choice.start)
        self._last_draw = choice.first
        self.violation = None
        return choice

    def _key(self, index: int) -> tuple[int, bytes]:
        return index, b"".join(held.piece for held in self._held if held.index < index)

    def _release(self, until: int) -> list[Held]:
        """Begin a new part after the tokens that end here; returns what can be sent."""
        n = next((i for i, held in enumerate(self._held) if held.end > until), len(self._held))
        if not n:
            return []
        self._certain += self._held[:n]
        del self._held[:n]
        self._choices = [choice for choice in self._choices if choice.index > self._certain[-1].index]
        # What is held now was drawn in a part with redraws: another engine must draw the whole part again.
        is_dirty = bool(self._held) and self._n_redrawn > 0
        self._tried.clear()
        self._n_redrawn, self._failed_at = 0, -1
        if is_dirty:
            return []
        sent, self._certain = self._certain, []
        return sent


def split_held(unsent: list[T], n_held: int) -> tuple[list[T], list[T]]:
    """Return what can be sent, and what is held back at the end."""
    if not n_held:
        return unsent, []
    n = max(len(unsent) - n_held, 0)
    return unsent[:n], unsent[n:]
