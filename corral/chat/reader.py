"""Parse generated text as if it were complete.

A format is a generator over a `Reader`: it yields when it needs text that has not arrived, and continues
when more is there. Text is consumed as soon as its meaning is certain, so the events do not depend on how
the text was split.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias, TypeVar

from corral.chat.event import CallArguments, CallBroken, CallStarted, Content, Diagnosis, Event, Reasoning
from corral.chat.tool import ToolUse
from corral.text.stop import overlap

T = TypeVar("T")
ReaderSteps: TypeAlias = Generator[None, None, T]
Emit: TypeAlias = Callable[[str], None]

SPACE = " \t\r\n"
CUT_OFF, NO_NAME = "it is incomplete", "it has no function name"


class Reader:
    """The text that has arrived and is not parsed yet, and the events of parsed text."""

    def __init__(
        self,
        call_id: Callable[[], str] = lambda: "call",
        splits_reasoning: bool = True,
    ) -> None:
        self.events: list[Event] = []
        self.n_calls = 0
        self.is_ended = False
        self._text = ""
        self._raw: list[str] | None = None
        self._open_call: int | None = None
        self._space = ""
        self._space_before_call = ""
        self._has_content = False
        self._has_called = False
        self._call_id = call_id
        self._splits_reasoning = splits_reasoning

    def push(self, text: str) -> None:
        self._text += text

    # Reading: generators that wait for the text they need.

    def until(self, markers: Sequence[str], emit: Emit) -> ReaderSteps[str | None]:
        """Emit text up to the first of the markers, which is consumed and returned; None if none arrived."""
        while True:
            found = [(at, -len(m), m) for m in markers if (at := self._text.find(m)) >= 0]
            if found:
                at, _, marker = min(found)
                # A longer, incomplete marker may begin at the same place or before.
                if self.is_ended or self._certain(markers) > at:
                    emit(self.take(at))
                    self.take(len(marker))
                    return marker
            elif self.is_ended:
                emit(self.take(len(self._text)))
                return None
            else:
                emit(self.take(self._certain(markers)))
            yield

    def accept(self, *options: str) -> ReaderSteps[str | None]:
        """Consume the longest of the options that comes next; None if no option matches."""
        while not self.is_ended and any(
            len(self._text) < len(option) and option.startswith(self._text) for option in options
        ):
            yield
        for option in sorted(options, key=len, reverse=True):
            if self._text.startswith(option):
                self.take(len(option))
                return option
        return None

    def accept_past_space(self, option: str) -> ReaderSteps[str | None]:
        """Consume the option and the white space before it, both or nothing."""
        while True:
            text = self._text.lstrip(SPACE)
            if text.startswith(option):
                return self.take(len(self._text) - len(text) + len(option))
            if self.is_ended or not option.startswith(text):
                return None
            yield

    def accept_end(self, mark: str) -> ReaderSteps[str | None]:
        """Consume the end marker of a call and the white space before it. At the end of the text a part of
        the marker is enough."""
        found = yield from self.accept_past_space(mark)
        if found is None and self.is_ended and mark.startswith(self._text.lstrip(SPACE)):
            return self.take(len(self._text))
        return found

    def collect(self, *markers: str) -> ReaderSteps[tuple[str, str | None]]:
        """Return the text up to the first of the markers, stripped, and that marker."""
        parts: list[str] = []
        found = yield from self.until(markers, parts.append)
        return "".join(parts).strip(SPACE), found

    def announce(self, end: str) -> ReaderSteps[tuple[str, str]]:
        """Announce a call whose name comes next, up to `end`. Returns the name and "", or "" and an error
        message."""
        name, found = yield from self.collect(end)
        if not found or not name:
            return "", NO_NAME if found else CUT_OFF
        self.call(name)
        return name, ""

    def skip_space(self) -> ReaderSteps[str]:
        """Consume white space."""
        skipped = ""
        while True:
            n = len(self._text) - len(self._text.lstrip(SPACE))
            skipped += self.take(n)
            if self._text or self.is_ended:
                return skipped
            yield

    def next_char(self) -> ReaderSteps[str]:
        """Peek at the next character; empty at the end."""
        return (yield from self.some())[:1]

    def some(self) -> ReaderSteps[str]:
        """Peek at the available text, at least one character; empty at the end."""
        while not self._text and not self.is_ended:
            yield
        return self._text

    def take(self, n: int) -> str:
        """Consume `n` characters that have arrived."""
        text, self._text = self._text[:n], self._text[n:]
        if self._raw is not None and text:
            self._raw.append(text)
        return text

    def rest(self, emit: Emit) -> ReaderSteps[None]:
        yield from self.until((), emit)

    # Writing: emit events for parsed text.

    def content(self, text: str) -> None:
        """Emit content. White space is held back until something follows it, and dropped around tool
        calls."""
        text = self._space + text
        kept = text.rstrip(SPACE)
        self._space = text[len(kept) :]
        if self._has_called and not self._has_content:
            kept = kept.lstrip(SPACE)
        if kept:
            self._has_content = True
            self.events.append(Content(kept))

    def reasoning(self, text: str) -> None:
        if not self._splits_reasoning:
            self.content(text)
        elif text:
            self.events.append(Reasoning(text))

    def begin_raw(self, opening: str = "") -> None:
        """Start recording text that may be a tool call, in case it is not one.

        `opening`: the part of it that was already read.
        """
        self.end_raw()
        self._raw = [opening]

    def call(self, name: str, id: str = "") -> None:
        """Announce a tool call."""
        self._space_before_call, self._space = self._space, ""
        self._open_call = self.n_calls
        self.n_calls += 1
        self.events.append(CallStarted(self._open_call, id or self._call_id(), name))

    def arguments(self, text: str) -> None:
        if text:
            assert self._open_call is not None
            self.events.append(CallArguments(self._open_call, text))

    def keep_raw(self) -> None:
        """Emit the recorded text as content."""
        raw = "".join(self._raw or ())
        self.end_raw()
        self.content(raw)

    def end_raw(self) -> None:
        """Stop recording; an announced call is complete."""
        self._has_called = self._has_called or self._open_call is not None
        self._raw = None
        self._open_call = None

    def no_call(self, reason: str) -> None:
        """Emit the recorded text as content, since it was not a tool call, and withdraw an announced call."""
        if self._open_call is not None:
            self.events.append(CallBroken(self._open_call))
            self._space = self._space_before_call
            self._open_call = None
        self.events.append(Diagnosis(reason))
        self.keep_raw()

    def close(self) -> None:
        if self._space and not self._has_called:
            self.events.append(Content(self._space))
        self._space = ""

    def _certain(self, markers: Sequence[str]) -> int:
        """Return how much of the text cannot be the beginning of a marker."""
        return len(self._text) - max((overlap(self._text, marker) for marker in markers), default=0)


def calls_parser(
    openings: Sequence[str], read: Callable[[Reader, ToolUse, str], ReaderSteps[str]], end: str = ""
) -> Callable[[Reader, ToolUse], ReaderSteps[None]]:
    """Return a parser of content with calls after any of the openings. `read` gets the opening and returns an
    error message, or "". An `end` marker may follow a call."""

    def parse(reader: Reader, use: ToolUse) -> ReaderSteps[None]:
        while opening := (yield from reader.until(openings, reader.content)):
            reader.begin_raw(opening)
            yield from reader.skip_space()
            if problem := (yield from read(reader, use, opening)):
                reader.no_call(problem)
                continue
            reader.end_raw()
            if end:
                yield from reader.accept_end(end)

    return parse


class MessageParser:
    """Feeds text to a format's generator and collects its events."""

    def __init__(self, reader: Reader, steps: ReaderSteps[None]) -> None:
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
