"""Scan and parse JSON inside generated text while it is streamed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from corral.chat.reader import NO_NAME, Emit, Reader, ReaderSteps

_NO_OBJECT, _NO_ARGUMENTS = "it is not a JSON object", "its arguments are not a JSON object"

_STRUCTURE = {quotes: re.compile(rf"[{quotes}\\{{}}\[\]]") for quotes in ('"', "\"'")}
_SCALAR_END = re.compile(r"[\s,}\]):]")
_HEX = r"[0-9a-fA-F]"
_HIGH, _LOW = rf"\\u[dD][89abAB]{_HEX}{{2}}", rf"\\u[dD][c-fC-F]{_HEX}{{2}}"
# Inside a string: text that can be decoded whatever follows, and text that may become decodable. A lone
# surrogate is decoded once it is certain that the other half does not follow.
_STRING_PART = re.compile(
    rf'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u(?![dD][89abAB]){_HEX}{{4}}|{_HIGH}{_LOW}'
    rf"|{_HIGH}(?=[^\\]|\\[^u]|\\u(?:[^dD]|[dD][^c-fC-F])))+"
)
_STRING_UNSURE = re.compile(rf"\\(?:u{_HEX}{{0,3}})?|{_HIGH}(?:\\(?:u(?:[dD](?:[c-fC-F]{_HEX}?)?)?)?)?")


class JsonEndFinder:
    """Finds the end of one JSON value. It looks only at brackets and strings; a parser validates the complete
    value. `quotes`: the characters that delimit strings."""

    def __init__(self, quotes: str = '"') -> None:
        self.is_complete = False
        self._structure = _STRUCTURE[quotes]
        self._openings = "{[" + quotes
        self._depth = 0
        self._quote = ""  # the quote that ends the current string
        self._is_escaped = False
        self._is_scalar = False
        self._has_begun = False

    def feed(self, text: str) -> int:
        """Return how many characters of the text belong to the value."""
        if not self._has_begun and text:
            self._has_begun = True
            self._is_scalar = text[0] not in self._openings
        if self._is_scalar:
            return self._feed_scalar(text)
        at = 0
        while not self.is_complete and at < len(text):
            if self._is_escaped:
                self._is_escaped = False
                at += 1
                continue
            found = self._structure.search(text, at)
            if found is None:
                return len(text)
            at = found.end()
            self._note(found[0])
        return at

    def finish(self) -> None:
        """End the input, which also ends a number or a literal."""
        self.is_complete = self.is_complete or (self._is_scalar and self._has_begun)

    def _feed_scalar(self, text: str) -> int:
        end = _SCALAR_END.search(text)
        self.is_complete = end is not None
        return end.start() if end else len(text)

    def _note(self, char: str) -> None:
        if self._quote:
            self._is_escaped = char == "\\"
            self._quote = "" if char == self._quote else self._quote
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
        elif char != "\\":
            self._quote = char
        self.is_complete = self._depth <= 0 and not self._quote


def read_value(reader: Reader, emit: Emit, quotes: str = '"') -> ReaderSteps[bool]:
    """Emit one JSON value as it arrives. Returns whether it is complete."""
    scanner = JsonEndFinder(quotes)
    while True:
        n = scanner.feed((yield from reader.some()))
        emit(reader.take(n))
        if reader.is_ended:
            scanner.finish()
        if scanner.is_complete or reader.is_ended:
            return scanner.is_complete


def collect_value(reader: Reader, quotes: str = '"') -> ReaderSteps[str]:
    """Return the text of one JSON value; empty if it is incomplete."""
    parts: list[str] = []
    is_whole = yield from read_value(reader, parts.append, quotes)
    return "".join(parts) if is_whole else ""


def parse_json(text: str) -> Any:
    """Parse JSON; returns `...` if the text is invalid (None is a value)."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        return ...


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which cannot be encoded."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def read_arguments(reader: Reader) -> ReaderSteps[str]:
    """Emit a call's arguments. Returns an error message, or ""."""
    parts: list[str] = []

    def emit(text: str) -> None:
        parts.append(text)
        reader.arguments(text)

    if (yield from reader.next_char()) == '"':
        text = _as_object((yield from collect_value(reader)))
        reader.arguments(text)
        return "" if text else _NO_ARGUMENTS
    is_whole = yield from read_value(reader, emit)
    if not is_whole:
        return "its arguments are incomplete"
    return "" if isinstance(parse_json("".join(parts)), dict) else _NO_ARGUMENTS


def _as_object(text: str) -> str:
    """Return the text of a JSON object, also of one inside a string: some models quote it by mistake."""
    value = parse_json(text)
    if isinstance(value, str):
        text = replace_surrogates(value)
        value = parse_json(text)
    return text if isinstance(value, dict) else ""


def read_call(
    reader: Reader,
    names: Sequence[str] = ("name",),
    arguments: Sequence[str] = ("arguments", "parameters"),
    ids: Sequence[str] = ("id",),
    known: Sequence[str] | None = None,
) -> ReaderSteps[str]:
    """Read one `{"name": ..., "arguments": {...}}`, keys in any order. Returns an error message, or "".

    `known`: only these functions count as calls.
    """
    if (yield from reader.accept("{")) is None:
        return _NO_OBJECT
    name, id, early = "", "", "{}"
    is_announced = False
    while True:
        yield from reader.skip_space()
        if (yield from reader.accept("}")):
            break
        key = parse_json((yield from collect_value(reader)))
        yield from reader.skip_space()
        if not isinstance(key, str) or not (yield from reader.accept(":")):
            return _NO_OBJECT
        yield from reader.skip_space()
        if key in arguments and name and not is_announced:
            reader.call(name, id)
            is_announced = True
            if problem := (yield from read_arguments(reader)):
                return problem
        else:
            text = yield from collect_value(reader)
            value = parse_json(text)
            if value is ...:
                return _NO_OBJECT
            if key in names and isinstance(value, str):
                name = replace_surrogates(value)
                if known is not None and name not in known:
                    return f"there is no function '{name:.64}'"
            elif key in ids and isinstance(value, str | int):
                id = replace_surrogates(str(value))
            elif key in arguments and not is_announced:
                early = _as_object(text)
                if not early:
                    return _NO_ARGUMENTS
        yield from reader.skip_space()
        yield from reader.accept(",")
    if not name:
        return NO_NAME
    if not is_announced:
        reader.call(name, id)
        reader.arguments(early)
    return ""


def read_call_list(reader: Reader, read: Callable[[Reader], ReaderSteps[str]]) -> ReaderSteps[str]:
    """Read a JSON array of calls, or a single call without brackets. Returns an error message, or ""."""
    if (yield from reader.accept("[")) is None:
        return (yield from read(reader))
    while True:
        yield from reader.skip_space()
        if (yield from reader.accept("]")):
            return ""
        if problem := (yield from read(reader)):
            return problem
        reader.begin_raw()  # this call stays valid whatever follows
        yield from reader.skip_space()
        if (yield from reader.accept(",", "]")) != ",":
            return ""


def read_string(reader: Reader, emit: Emit) -> ReaderSteps[bool]:
    """Emit the decoded text of a JSON string. Returns whether it is complete."""
    if (yield from reader.accept('"')) is None:
        return False
    while True:
        text = yield from reader.some()
        part = _STRING_PART.match(text)
        n = part.end() if part else 0
        if n:
            decoded = parse_json(f'"{reader.take(n)}"')
            if decoded is ...:
                return False
            emit(replace_surrogates(decoded))
        elif text.startswith('"'):
            reader.take(1)
            return True
        elif reader.is_ended or not _STRING_UNSURE.fullmatch(text):
            return False
        else:
            yield
