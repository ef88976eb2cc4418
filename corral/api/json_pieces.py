"""Parse long JSON in pieces: no single call holds the GIL for long, so other threads run.

The result is that of `orjson.loads`, as are errors, except for positions in their messages.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from corral.text.json_depth import N_LEVELS, SLICE_BYTES

_LONG_BYTES = 2 * SLICE_BYTES
_KEY_BYTES = 4096
_SPACE = b" \t\n\r"
_KEY = re.compile(rb'[ \t\n\r]*("(?:[^"\\]|\\.)*")[ \t\n\r]*:', re.DOTALL)
_BACKSLASH, _U = ord("\\"), ord("u")
_ESCAPE_BYTES = 6  # of the longest escape sequence, \u0000
_HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB]..", re.DOTALL)


class NotJson(ValueError):
    """The text is not valid JSON."""


def parse_pieces(text: bytes | bytearray, cuts: Sequence[list[int]]) -> Any:
    """Parse a text in which `JsonDepth` has found these cuts; raises NotJson."""
    try:
        return _Parser(text, cuts).value(0, len(text), 1)
    except orjson.JSONDecodeError as error:
        raise NotJson(error.msg) from None


class _Parser:
    def __init__(self, text: bytes | bytearray, cuts: Sequence[list[int]]) -> None:
        self._text = text
        self._view = memoryview(text)
        self._cuts = cuts

    def value(self, start: int, end: int, level: int) -> Any:
        """Return the value in this part of the text; `level`: the nesting level of its own commas."""
        start, end = self._strip(start, end)
        if end - start <= _LONG_BYTES:
            return orjson.loads(self._view[start:end])
        first, last = self._text[start : start + 1], self._text[end - 1 : end]
        if first == last == b'"':
            return "".join(self._strings(start + 1, end - 1))
        if level <= N_LEVELS and first == b"[" and last == b"]":
            return self._array(start + 1, end - 1, level)
        if level <= N_LEVELS and first == b"{" and last == b"}":
            return self._object(start + 1, end - 1, level)
        return orjson.loads(self._view[start:end])

    def _array(self, start: int, end: int, level: int) -> list[Any]:
        array: list[Any] = []
        for begin, stop in self._parts(start, end, level):
            if stop - begin > _LONG_BYTES:
                array.append(self.value(begin, stop, level + 1))
            else:
                array += orjson.loads(b"".join((b"[", self._view[begin:stop], b"]")))
        return array

    def _object(self, start: int, end: int, level: int) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for begin, stop in self._parts(start, end, level):
            if stop - begin > _LONG_BYTES:
                key, begin = self._key(begin, stop)
                fields[key] = self.value(begin, stop, level + 1)
            else:
                fields.update(orjson.loads(b"".join((b"{", self._view[begin:stop], b"}"))))
        return fields

    def _key(self, start: int, end: int) -> tuple[str, int]:
        """Return the name of a field, and where its value begins."""
        found = _KEY.match(self._text, start, min(end, start + _KEY_BYTES))
        if found is None:
            raise NotJson(f"a field name is missing, or longer than {_KEY_BYTES} bytes")
        key: str = orjson.loads(found[1])
        return key, found.end()

    def _parts(self, start: int, end: int, level: int) -> Iterator[tuple[int, int]]:
        """Yield the parts between cuts: one value, or several short ones together."""
        cuts = self._cuts[level]
        inner = cuts[bisect.bisect_left(cuts, start) : bisect.bisect_left(cuts, end)]
        inner = list(dict.fromkeys(inner))
        for cut in (*inner, end):
            begin, stop = self._strip(start, cut)
            if begin == stop:
                raise NotJson("a value is missing")
            yield begin, stop
            start = cut + 1

    def _strings(self, start: int, end: int) -> Iterator[str]:
        while start < end:
            stop = self._end_of_characters(start, end)
            yield orjson.loads(b"".join((b'"', self._view[start:stop], b'"')))
            start = stop

    def _end_of_characters(self, start: int, end: int) -> int:
        """Return the end of a slice that splits no character and no escape sequence."""
        stop = start + SLICE_BYTES
        if stop < end:
            stop = self._past_escape(start, stop)
        while stop < end and self._text[stop] & 0xC0 == 0x80:  # in the middle of a character
            stop += 1
        return min(stop, end)

    def _past_escape(self, start: int, stop: int) -> int:
        """Return the end of the escape sequence, and of the surrogate pair that it begins."""
        limit = stop
        at = self._text.find(_BACKSLASH, max(start, stop - _ESCAPE_BYTES + 1), limit)
        if at >= 0 and not self._begins_escape(start, at):
            at = self._text.find(_BACKSLASH, at + 1, limit)
        while at >= 0:
            at += _ESCAPE_BYTES if self._text[at + 1] == _U else 2
            stop = max(stop, at)
            at = self._text.find(_BACKSLASH, at, limit)
        last = stop - _ESCAPE_BYTES
        is_high = last >= start and _HIGH_SURROGATE.match(self._text, last, stop) is not None
        return stop + _ESCAPE_BYTES if is_high and self._begins_escape(start, last) else stop

    def _begins_escape(self, start: int, at: int) -> bool:
        """Whether a backslash is not escaped: an even number of backslashes precedes it."""
        before = self._text[start:at]
        return (len(before) - len(before.rstrip(b"\\"))) % 2 == 0

    def _strip(self, start: int, end: int) -> tuple[int, int]:
        """Strip white space."""
        while start < end and self._text[start] in _SPACE:
            part = self._text[start : min(end, start + SLICE_BYTES)]
            start += len(part) - len(part.lstrip(_SPACE))
        while start < end and self._text[end - 1] in _SPACE:
            part = self._text[max(start, end - SLICE_BYTES) : end]
            end -= len(part) - len(part.rstrip(_SPACE))
        return start, end
