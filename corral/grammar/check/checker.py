"""Check the JSON values in an answer while it grows: find where they begin, and follow each to its end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import jsonschema_rs
import msgspec

from corral.core.params import SchemaCheck
from corral.core.result import Violation
from corral.grammar.check.locate import PATTERNS, Locator
from corral.grammar.check.scanner import KINDS
from corral.grammar.check.value import ValueChecker

_MAX_OPENING = 256  # bytes


class _Known:
    """A schema and its validators."""

    def __init__(self, check: SchemaCheck) -> None:
        self.locator = Locator(check.schema)
        self.validator: Any = jsonschema_rs.validator_for(check.client, pattern_options=PATTERNS)
        self.is_first = "" in check.openings
        self._openings = [re.compile(opening.encode() + rb"\Z") for opening in check.openings if opening]

    def opened_from(self, text: bytes) -> int:
        """Return how many bytes at the end of the text open the value."""
        matches = (opening.search(text) for opening in self._openings)
        return max((len(text) - match.start() for match in matches if match), default=0)


class Checker:
    """Mutable: `text` is everything so far, in bytes."""

    def __init__(self, checks: Sequence[SchemaCheck]) -> None:
        self._known = [_Known(check) for check in checks]
        self._reasoning = (checks[0].before.encode(), checks[0].after.encode())
        self._text = bytearray()
        self._reset()

    @property
    def n_bytes(self) -> int:
        return len(self._text)

    @property
    def held_from(self) -> int:
        """Where what may still be taken back begins; the end of the text, if nothing may."""
        held = self._value.held_from if self._value is not None else None
        return len(self._text) if held is None else held

    def feed(self, piece: bytes) -> Violation | None:
        """Take in more text; returns what is wrong with it."""
        at = len(self._text)
        self._text += piece
        for i, byte in enumerate(piece, at):
            if self._value is None:
                self._seek(byte, i)
            elif (found := self._follow(byte, i)) is not None:
                return found
        return None

    def text(self, start: int, end: int) -> bytes:
        return bytes(self._text[start:end])

    def finish(self) -> Violation | None:
        """The text has ended; returns what is wrong with it."""
        if self._value is None:
            return None
        self._value.finish(len(self._text))
        return self._value.violation

    def rewind(self, n_bytes: int) -> None:
        """Take back all but the first bytes."""
        text = bytes(self._text[:n_bytes])
        self._text.clear()
        self._reset()
        self.feed(text)

    def _reset(self) -> None:
        self._value: ValueChecker | None = None
        self._from = 0  # where an opening may begin
        self._is_reasoning: bool | None = None if self._reasoning[1] else False  # None: not known yet
        self._is_begun = False  # the answer itself

    def _follow(self, byte: int, at: int) -> Violation | None:
        value = self._value
        assert value is not None
        value.step(byte, at)
        if value.violation is not None:
            return msgspec.structs.replace(value.violation, end=at + 1)
        if value.is_over:
            self._value, self._from = None, at
        return None

    def _seek(self, byte: int, at: int) -> None:
        if not self._is_past_reasoning(at + 1):
            return
        text = bytes(self._text[max(self._from, at - _MAX_OPENING) : at])
        n_most, best = max(((known.opened_from(text), known) for known in self._known), key=itemgetter(0))
        first = next((known for known in self._known if known.is_first), None)
        if n_most and byte in KINDS:
            self._start(best, byte, at)
        elif first is not None and not self._is_begun:
            self._start_at_once(first, byte, at)

    def _start_at_once(self, known: _Known, byte: int, at: int) -> None:
        """Begin with the value itself; there is only one."""
        if byte not in b" \t\r\n":
            self._is_begun = True
            if byte in KINDS:
                self._start(known, byte, at)

    def _start(self, known: _Known, byte: int, at: int) -> None:
        self._value = ValueChecker(known.locator, known.validator, self._text, at)
        self._value.step(byte, at)

    def _is_past_reasoning(self, end: int) -> bool:
        begin, after = self._reasoning
        if self._is_reasoning is None:
            text = bytes(self._text[:end]).lstrip()
            if begin and begin.startswith(text) and text != begin:
                return False
            self._is_reasoning = text.startswith(begin)
        if self._is_reasoning:
            at = self._text.find(after, 0, end)
            self._is_reasoning = at < 0
            if at >= 0:
                self._from = at + len(after)
                return self._from < end
        return not self._is_reasoning
