"""Generated text, read as if all of it were there already.

A format is a generator over a `Reader`: where it needs text that has not come yet, it yields, and goes on
when there is more. Text is consumed the moment its meaning is certain, so what comes out does not depend on
how the text was cut.
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
CUT_OFF, NO_NAME = "it is cut off", "it names no function"


class Reader:
    """Mutable: text that has arrived and is not understood yet, and the events of what is."""

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

    # Reading: generators that wait for as much text as they need.

    def until(self, markers: Sequence[str], emit: Emit) -> ReaderSteps[str | None]:
        """Pass text on up to the first of the markers, which is consumed and returned; None: none came."""
        while True:
            found = [(at, -len(m), m) for m in markers if (at := self._text.find(m)) >= 0]
            if found:
                at, _, marker = min(found)
                # A longer marker may begin at the same place or before, and not be complete yet.
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
        """Consume the longest of the options that the text goes on with; None: it is none of them."""
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
        """Consume the option and the white space in front of it, both or nothing."""
        while True:
            text = self._text.lstrip(SPACE)
            if text.startswith(option):
                return self.take(len(self._text) - len(text) + len(option))
            if self.is_ended or not option.startswith(text):
                return None
            yield

    def accept_end(self, mark: str) -> ReaderSteps[str | None]:
        """Consume the end of a call and the white space before it; where the text ends, a part will do."""
        found = yield from self.accept_past_space(mark)
        if found is None and self.is_ended and mark.startswith(self._text.lstrip(SPACE)):
            return self.take(len(self._text))
        return found

    def collect(self, *markers: str) -> ReaderSteps[tuple[str, str | None]]:
        """The text up to the first of the markers, without the space around it, and that marker."""
        parts: list[str] = []
        found = yield from self.until(markers, parts.append)
        return "".join(parts).strip(SPACE), found

    def announce(self, end: str) -> ReaderSteps[tuple[str, str]]:
        """Begin a call whose name stands here, up to `end`. Returns the name, or what is wrong."""
        name, found = yield from self.collect(end)
        if not found or not name:
            return "", NO_NAME if found else CUT_OFF
        self.call(name)
        return name, ""

    def skip_space(self) -> ReaderSteps[str]:
        """Consume white space, up to the next character that is none."""
        skipped = ""
        while True:
            n = len(self._text) - len(self._text.lstrip(SPACE))
            skipped += self.take(n)
            if self._text or self.is_ended:
                return skipped
            yield

    def next_char(self) -> ReaderSteps[str]:
        """The next character, not consumed; empty at the end."""
        return (yield from self.some())[:1]

    def some(self) -> ReaderSteps[str]:
        """Whatever text there is, not consumed; empty at the end."""
        while not self._text and not self.is_ended:
            yield
        return self._text

    def take(self, n: int) -> str:
        """Consume `n` characters that have come already."""
        text, self._text = self._text[:n], self._text[n:]
        if self._raw is not None and text:
            self._raw.append(text)
        return text

    def rest(self, emit: Emit) -> ReaderSteps[None]:
        yield from self.until((), emit)

    # Writing: what the text turned out to be.

    def content(self, text: str) -> None:
        """Answer text. White space waits until something follows it: around a tool call it is dropped."""
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
        """Something that may be a tool call begins: remember its text, in case it is none.

        `opening`: the beginning of it that has been read already.
        """
        self.end_raw()
        self._raw = [opening]

    def call(self, name: str, id: str = "") -> None:
        """A tool call is certain enough to be announced."""
        self._space_before_call, self._space = self._space, ""
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
        """What has been read since `begin_raw` needs no remembering: a call that was announced is whole."""
        self._has_called = self._has_called or self._open_call is not None
        self._raw = None
        self._open_call = None

    def no_call(self, reason: str) -> None:
        """What looked like a tool call is content after all."""
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
        """How much of the text cannot be the beginning of a marker."""
        return len(self._text) - max((overlap(self._text, marker) for marker in markers), default=0)


def calls_parser(
    openings: Sequence[str], read: Callable[[Reader, ToolUse, str], ReaderSteps[str]], end: str = ""
) -> Callable[[Reader, ToolUse], ReaderSteps[None]]:
    """Parse content with calls in it wherever an opening stands; `read` gets the opening and returns what is
    wrong with the call, if anything. After a call there may be an `end`."""

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
    """Feeds a reader to a format; joined, its events are the message."""

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
