"""JSON inside generated text: found, passed on and taken apart while it is still coming."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from corral.chat.reader import Emit, Reader, Steps

_STRUCTURE = re.compile(r'["\\{}\[\]]')
_SCALAR_END = re.compile(r"[\s,}\]:]")
_HEX = r"[0-9a-fA-F]"
# Inside of a string: what can be decoded, and what may become so with more text. A pair of surrogates is one.
_STRING_PART = re.compile(
    rf'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[dD][89abAB]{_HEX}{{2}}\\u{_HEX}{{4}}'
    rf"|\\u(?![dD][89abAB]){_HEX}{{4}}|\\u{_HEX}{{4}}(?=[^\\]))+"
)
_STRING_UNSURE = re.compile(rf"\\(?:u{_HEX}{{0,4}}(?:\\(?:u{_HEX}{{0,3}})?)?)?")


class JsonScanner:
    """Finds the end of one JSON value. It looks at brackets and strings only: whether the rest is right is
    for a parser to say, once the value is whole."""

    def __init__(self) -> None:
        self.is_complete = False
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._is_scalar = False
        self._has_begun = False

    def feed(self, text: str) -> int:
        """How many characters of the text belong to the value."""
        if not self._has_begun and text:
            self._has_begun = True
            self._is_scalar = text[0] not in '{["'
        if self._is_scalar:
            return self._feed_scalar(text)
        at = 0
        while not self.is_complete and at < len(text):
            if self._is_escaped:
                self._is_escaped = False
                at += 1
                continue
            found = _STRUCTURE.search(text, at)
            if found is None:
                return len(text)
            at = found.end()
            self._note(found[0])
        return at

    def finish(self) -> None:
        """The text is over: so is a number or a word."""
        self.is_complete = self.is_complete or (self._is_scalar and self._has_begun)

    def _feed_scalar(self, text: str) -> int:
        end = _SCALAR_END.search(text)
        self.is_complete = end is not None
        return end.start() if end else len(text)

    def _note(self, char: str) -> None:
        if self._in_string:
            self._is_escaped = char == "\\"
            self._in_string = char != '"'
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
        self.is_complete = self._depth <= 0 and not self._in_string


def read_value(reader: Reader, emit: Emit) -> Steps[bool]:
    """Pass one JSON value on as it comes; returns whether it came to its end."""
    scanner = JsonScanner()
    while True:
        n = scanner.feed((yield from reader.some()))
        emit(reader.take(n))
        if reader.is_ended:
            scanner.finish()
        if scanner.is_complete or reader.is_ended:
            return scanner.is_complete


def collect_value(reader: Reader) -> Steps[Any]:
    """One JSON value, parsed; `...` if it is not whole or not JSON."""
    parts: list[str] = []
    if not (yield from read_value(reader, parts.append)):
        return ...
    return parse_json("".join(parts))


def parse_json(text: str) -> Any:
    """The value, or `...` where the text is no JSON (None is a value)."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return ...


def mend(text: str) -> str:
    """Text without halves of surrogate pairs, which no encoding could carry."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def read_arguments(reader: Reader) -> Steps[str]:
    """Pass a call's arguments on. Returns what is wrong with them, if anything."""
    parts: list[str] = []

    def emit(text: str) -> None:
        parts.append(text)
        reader.arguments(text)

    if (yield from reader.next_char()) == '"':
        # Arguments that are JSON inside of a string: some models quote what they should not.
        value = yield from collect_value(reader)
        if not isinstance(value, str) or not isinstance(parse_json(value), dict):
            return "its arguments are no JSON object"
        reader.arguments(mend(value))
        return ""
    is_whole = yield from read_value(reader, emit)
    if not is_whole:
        return "its arguments are cut off"
    return "" if isinstance(parse_json("".join(parts)), dict) else "its arguments are no JSON object"


def read_call(
    reader: Reader,
    names: Sequence[str] = ("name",),
    arguments: Sequence[str] = ("arguments", "parameters"),
    ids: Sequence[str] = ("id",),
    known: Sequence[str] | None = None,
) -> Steps[str]:
    """One `{"name": ..., "arguments": {...}}`, keys in any order. Returns what is wrong with it, if anything.

    `known`: only calls of these functions count as calls.
    """
    if (yield from reader.accept("{")) is None:
        return "it is no JSON object"
    name, id, early = "", "", ""
    has_arguments = False
    while True:
        yield from reader.skip_space()
        if (yield from reader.accept("}")):
            break
        key = yield from collect_value(reader)
        yield from reader.skip_space()
        if not isinstance(key, str) or not (yield from reader.accept(":")):
            return "it is no JSON object"
        yield from reader.skip_space()
        if key in arguments and name:
            reader.call(name, id)
            has_arguments = True
            if problem := (yield from read_arguments(reader)):
                return problem
        else:
            value = yield from collect_value(reader)
            if value is ...:
                return "it is no JSON object"
            if key in names and isinstance(value, str):
                name = mend(value)
            elif key in ids and isinstance(value, str | int):
                id = mend(str(value))
            elif key in arguments and isinstance(value, dict | str):
                early = mend(value) if isinstance(value, str) else json.dumps(value)
            if key in names and known is not None and name not in known:
                return f"there is no function '{name:.64}'"
        yield from reader.skip_space()
        yield from reader.accept(",")
    if not name:
        return "it names no function"
    if not has_arguments:
        reader.call(name, id)
        reader.arguments(early or "{}")
    return ""


def read_call_list(reader: Reader, read: Callable[[Reader], Steps[str]]) -> Steps[str]:
    """A JSON array of calls, or a single one without the brackets. Returns what is wrong with it."""
    if (yield from reader.accept("[")) is None:
        return (yield from read(reader))
    while True:
        yield from reader.skip_space()
        if (yield from reader.accept("]")):
            return ""
        if problem := (yield from read(reader)):
            return problem
        yield from reader.skip_space()
        if (yield from reader.accept(",", "]")) != ",":
            return ""


def read_string(reader: Reader, emit: Emit) -> Steps[bool]:
    """Pass the text of a JSON string on, decoded; returns whether it came to its end."""
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
            emit(mend(decoded))
        elif text.startswith('"'):
            reader.take(1)
            return True
        elif reader.is_ended or not _STRING_UNSURE.fullmatch(text):
            return False
        else:
            yield
