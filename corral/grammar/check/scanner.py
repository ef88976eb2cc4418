"""Read JSON byte by byte, and find where its values begin and end.

The text follows a grammar of JSON already, so nothing is refused here.
"""

from __future__ import annotations

from typing import Protocol

KINDS = {
    **dict.fromkeys(b"-0123456789", "number"),
    ord('"'): "string",
    ord("{"): "object",
    ord("["): "array",
    ord("t"): "boolean",
    ord("f"): "boolean",
    ord("n"): "null",
}
_SPACE = b" \t\r\n"


class ScanListener(Protocol):
    def begin(self, kind: str, at: int) -> None: ...

    def end(self, at: int) -> None:
        """The innermost value has ended before this byte."""

    def begin_name(self, at: int) -> None: ...

    def name(self, start: int, end: int) -> None:
        """The next value is the property that is named by this JSON string."""


class JsonScanner:
    """Mutable: where in the value it is."""

    def __init__(self, listener: ScanListener) -> None:
        self._listener = listener
        self._stack: list[int] = []
        self._is_name = False  # the next string is a name
        self._start = -1  # of the string that is open
        self._is_escaped = False
        self._is_scalar = False  # in a number, or in a literal
        self.is_over = False

    def step(self, byte: int, at: int) -> None:
        if self._start >= 0:
            self._step_string(byte, at)
        elif self._is_scalar and byte not in b",]} \t\r\n":
            return
        else:
            self.finish(at)
            if not self.is_over and byte not in _SPACE:
                self._step_outside(byte, at)

    def finish(self, at: int) -> None:
        """The text ends here, or something else than a number follows."""
        if self._is_scalar:
            self._is_scalar = False
            self._end(at)

    def _step_string(self, byte: int, at: int) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif byte == 0x5C:
            self._is_escaped = True
        elif byte == 0x22:
            start, self._start = self._start, -1
            if self._is_name:
                self._is_name = False
                self._listener.name(start, at + 1)
            else:
                self._end(at + 1)

    def _step_outside(self, byte: int, at: int) -> None:
        if byte in b"]}":
            self._stack.pop()
            self._end(at + 1)
        elif byte == 0x2C:
            self._is_name = self._stack[-1] == 0x7B
        elif byte == 0x22:
            self._start = at
            if self._is_name:
                self._listener.begin_name(at)
            else:
                self._listener.begin("string", at)
        elif byte != 0x3A:
            self._begin(byte, at)

    def _begin(self, byte: int, at: int) -> None:
        self._listener.begin(KINDS.get(byte, "null"), at)
        if byte in b"[{":
            self._stack.append(byte)
            self._is_name = byte == 0x7B
        else:
            self._is_scalar = True

    def _end(self, at: int) -> None:
        self.is_over = not self._stack
        self._listener.end(at)
