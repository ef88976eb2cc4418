"""Generated text, read as if all of it were there already.

A format is a generator over a `Reader`: where it needs text that has not come yet, it yields, and goes on
when there is more. Text is consumed the moment its meaning is certain, so what comes out does not depend on
how the text was cut.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias, TypeVar

from corral.chat.event import CallArguments, CallBroken, CallStarted, Content, Diagnosis, Event, Reasoning
from corral.text.stop import overlap

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
Emit: TypeAlias = Callable[[str], None]

SPACE = " \t\r\n"


class Reader:
    """Mutable: text that has arrived and is not understood yet, and the events of what is."""

    def __init__(self, call_id: Callable[[], str] = lambda: f"call_{secrets.token_hex(12)}") -> None:
        self.events: list[Event] = []
        self.n_calls = 0
        self.is_ended = False
        self._text = ""
        self._raw: list[str] | None = None
        self._open_call: int | None = None
        self._space = ""
        self._call_id = call_id

    def push(self, text: str) -> None:
        self._text += text

    # Reading: generators that wait for as much text as they need.

    def until(self, markers: Sequence[str], emit: Emit) -> Steps[str | None]:
        """Pass text on up to the first of the markers, which is consumed and returned; None: none came."""
        while True:
            found = [(at, -len(m), m) for m in markers if (at := self._text.find(m)) >= 0]
            if found:
                at, _, marker = min(found)
                # A longer marker may begin at the same place or before, and not be complete yet.
                if self.is_ended or self._certain(markers) > at:
                    emit(self._consume(at))
                    self._consume(len(marker))
                    return marker
            elif self.is_ended:
                emit(self._consume(len(self._text)))
                return None
            else:
                emit(self._consume(self._certain(markers)))
            yield

    def accept(self, *options: str) -> Steps[str | None]:
        """Consume the longest of the options that the text goes on with; None: it is none of them."""
        while not self.is_ended and any(
            len(self._text) < len(option) and option.startswith(self._text) for option in options
        ):
            yield
        for option in sorted(options, key=len, reverse=True):
            if self._text.startswith(option):
                self._consume(len(option))
                return option
        return None

    def skip_space(self) -> Steps[str]:
        """Consume white space, up to the next character that is none."""
        skipped = ""
        while True:
            n = len(self._text) - len(self._text.lstrip(SPACE))
            skipped += self._consume(n)
            if self._text or self.is_ended:
                return skipped
            yield

    def next_char(self) -> Steps[str]:
        """The next character, not consumed; empty at the end."""
        while not self._text and not self.is_ended:
            yield
        return self._text[:1]

    def some(self) -> Steps[str]:
        """Whatever text there is, not consumed; empty at the end."""
        while not self._text and not self.is_ended:
            yield
        return self._text

    def take(self, n: int) -> str:
        """Consume `n` characters that were seen already."""
        return self._consume(n)

    def rest(self, emit: Emit) -> Steps[None]:
        yield from self.until((), emit)

    # Writing: what the text turned out to be.

    def content(self, text: str) -> None:
        """Answer text. White space waits until something follows it: before a tool call it is dropped."""
        text = self._space + text
        kept = text.rstrip(SPACE)
        self._space = text[len(kept) :]
        if kept:
            self.events.append(Content(kept))

    def reasoning(self, text: str) -> None:
        if text:
            self.events.append(Reasoning(text))

    def begin_raw(self) -> None:
        """Something that may be a tool call begins: remember its text, in case it is none."""
        self._raw = []
        self._open_call = None

    def call(self, name: str, id: str = "") -> None:
        """A tool call is certain enough to be announced."""
        self._space = ""
        self._open_call = self.n_calls
        self.n_calls += 1
        self.events.append(CallStarted(self._open_call, id or self._call_id(), name))

    def arguments(self, text: str) -> None:
        if text:
            assert self._open_call is not None
            self.events.append(CallArguments(self._open_call, text))

    def keep_raw(self) -> None:
        """What might have been a tool call is plain content."""
        raw = "".join(self._raw or ())
        self.end_raw()
        self.content(raw)

    def end_raw(self) -> None:
        self._raw = None
        self._open_call = None

    def no_call(self, reason: str, opening: str = "") -> None:
        """What looked like a tool call is content after all."""
        raw = opening + "".join(self._raw or ())
        if self._open_call is not None:
            self.events.append(CallBroken(self._open_call))
        self.end_raw()
        self.events.append(Diagnosis(reason))
        self.content(raw)

    def close(self) -> None:
        """Nothing more comes."""
        if self._space and not self.n_calls:
            self.events.append(Content(self._space))
        self._space = ""

    def _certain(self, markers: Sequence[str]) -> int:
        """How much of the text cannot be the beginning of a marker."""
        return len(self._text) - max((overlap(self._text, marker) for marker in markers), default=0)

    def _consume(self, n: int) -> str:
        text, self._text = self._text[:n], self._text[n:]
        if self._raw is not None and text:
            self._raw.append(text)
        return text


class MessageParser:
    """Feeds a reader to a format; joined, its events are the message."""

    def __init__(self, reader: Reader, steps: Steps[None]) -> None:
        self._reader = reader
        self._steps = steps
        self._is_done = False
        self._advance()

    def feed(self, text: str) -> list[Event]:
        if text:
            self._reader.push(text)
            self._advance()
        return self._take()

    def finish(self) -> list[Event]:
        self._reader.is_ended = True
        while not self._is_done:
            self._advance()
        self._reader.close()
        return self._take()

    def _advance(self) -> None:
        if self._is_done:
            return
        try:
            next(self._steps)
        except StopIteration:
            self._is_done = True

    def _take(self) -> list[Event]:
        events, self._reader.events = self._reader.events, []
        return events
