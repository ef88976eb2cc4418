"""How deeply JSON is nested and how many arrays and objects it has, told while its bytes still come in.

Exact for valid JSON, and right about anything else as far as a parser would get. Nothing is parsed here.
"""

from __future__ import annotations

import numpy as np

from corral.core.errors import InvalidRequest

MAX_DEPTH = 128
MAX_CONTAINERS = 500_000  # many more take seconds to parse, in which nothing else happens
_SLICE_BYTES = 64 << 10  # what holds up nobody
_OPENING, _CLOSING = b"[{", b"]}"
_MARKS = b'"' + _OPENING + _CLOSING
_BESIDE = bytes(set(range(256)) - set(_MARKS))
_STEPS = bytes.maketrans(_MARKS, b"\0\1\1\xff\xff")  # into a signed byte, for marks only
_QUOTES = bytes.maketrans(_MARKS, b"\1\0\0\0\0")


def check_json(text: bytes) -> None:
    """Raises InvalidRequest for what would be a burden to parse."""
    guard = JsonGuard()
    guard.feed(text)
    guard.finish()


class JsonDepth:
    """Mutable: where in the text it is. Brackets in strings do not count."""

    def __init__(self) -> None:
        self.deepest = 0
        self.n_containers = 0
        self._depth = 0
        self._is_string = False
        self._held = b""  # a backslash whose other half is to come

    def feed(self, part: bytes | bytearray) -> None:
        for at in range(0, len(part), _SLICE_BYTES):
            self._feed(self._held + part[at : at + _SLICE_BYTES])

    def _feed(self, text: bytes) -> None:
        self._held = b""
        if b"\\" in text:
            # In this order: what is left of a run of backslashes belongs to what follows it.
            text = text.replace(b"\\\\", b"")
            self._held = b"\\" if text.endswith(b"\\") else b""
            text = text.replace(b'\\"', b"")
        marks = text.translate(None, _BESIDE)
        if not marks:
            return
        is_quote = np.frombuffer(marks.translate(_QUOTES), np.int8)
        is_outside = np.bitwise_xor.accumulate(is_quote) ^ (not self._is_string)
        steps = np.frombuffer(marks.translate(_STEPS), np.int8) * is_outside
        depths = np.cumsum(steps, dtype=np.int32)
        self.deepest = max(self.deepest, self._depth + int(depths.max()))
        self.n_containers += int(np.count_nonzero(steps == 1))
        self._depth += int(depths[-1])
        self._is_string = not is_outside[-1]


class JsonGuard:
    """Mutable: refuses what would be a burden to parse. A short one with few brackets costs nothing."""

    def __init__(self) -> None:
        self._depth = JsonDepth()
        self._pending = bytearray()
        self._n_openings = 0

    def feed(self, part: bytes) -> None:
        """Raises InvalidRequest as soon as there is too much of something."""
        self._n_openings += sum(part.count(sign) for sign in _OPENING)
        self._pending += part
        if len(self._pending) >= _SLICE_BYTES:
            self._check()

    def finish(self) -> None:
        if self._n_openings > MAX_DEPTH:
            self._check()

    def _check(self) -> None:
        self._depth.feed(self._pending)
        self._pending.clear()
        if self._depth.deepest > MAX_DEPTH:
            raise InvalidRequest(
                f"the body is nested too deeply; {MAX_DEPTH} arrays and objects are possible"
            )
        if self._depth.n_containers > MAX_CONTAINERS:
            raise InvalidRequest(f"the body has more than {MAX_CONTAINERS} arrays and objects")
