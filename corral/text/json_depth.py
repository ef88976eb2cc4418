"""How deeply JSON is nested, how many values it has and where it can be cut, found while its bytes come in.

Exact for valid JSON, and right about anything else as far as a parser would get. Nothing is parsed here.
"""

from __future__ import annotations

import numpy as np

from corral.core.errors import InvalidRequest

MAX_DEPTH = 128
MAX_CONTAINERS = 100_000  # many more take seconds to parse, and as long to be freed
MAX_VALUES = 2_200_000
MAX_FIELDS = 1000  # of an object that has a schema
SLICE_BYTES = 64 << 10  # small enough not to block the event loop
N_LEVELS = 8  # whose commas are cuts
_OPENING, _CLOSING = b"[{", b"]}"
_QUOTE, _OPEN, _CLOSE, _COMMA = 1, 2, 3, 4
_CLASSES = bytes.maketrans(b'"' + _OPENING + _CLOSING + b",", bytes([1, 2, 2, 3, 3, 4]))
_KINDS = bytes(byte if byte in b'"[{]},' else 0 for byte in range(256)).translate(_CLASSES)
_STEPS = np.array([0, 0, 1, -1, 0], np.int8)  # by class


def check_json(text: bytes) -> None:
    """Raise InvalidRequest for JSON that would be expensive to parse."""
    guard = JsonGuard()
    guard.feed(text)
    guard.finish()


class JsonDepth:
    """Mutable: where in the text it is. Brackets in strings do not count.

    `cuts`: of each slice the first and the last comma at each of the outer levels, by level. So what is
    between two neighbours is one value, or within a slice.
    """

    def __init__(self) -> None:
        self.deepest = 0
        self.n_containers = 0
        self.n_commas = 0
        self.n_outer_commas = 0  # between values of the outermost container
        self.cuts: list[list[int]] = [[] for _ in range(N_LEVELS + 1)]
        self._n_bytes = 0
        self._depth = 0
        self._is_string = False
        self._held = b""  # a backslash whose other half has not arrived

    @property
    def place(self) -> tuple[int, bool]:
        """The level at which the text so far ends, and whether that is in a string."""
        return self._depth, self._is_string

    def feed(self, part: bytes | bytearray) -> None:
        for at in range(0, len(part), SLICE_BYTES):
            self._feed(self._held + part[at : at + SLICE_BYTES])

    def _feed(self, text: bytes) -> None:
        begin, self._n_bytes = self._n_bytes - len(self._held), self._n_bytes - len(self._held) + len(text)
        self._held = b""
        if b"\\" in text:
            # In this order: the rest of a run of backslashes belongs to what follows it.
            text = text.replace(b"\\\\", b"__")
            self._held = b"\\" if text.endswith(b"\\") else b""
            text = text.replace(b'\\"', b"__")
        classes = np.frombuffer(text.translate(_KINDS), np.int8)
        at = np.flatnonzero(classes)
        if not len(at):
            return
        marks = classes[at]
        is_inside = np.bitwise_xor.accumulate(marks == _QUOTE) ^ self._is_string
        steps = _STEPS[marks] * ~is_inside
        depths = np.cumsum(steps, dtype=np.int32) + self._depth
        self.deepest = max(self.deepest, int(depths.max()))
        self.n_containers += int(np.count_nonzero(steps == 1))
        self._depth = int(depths[-1])
        self._is_string = bool(is_inside[-1])
        is_comma = (marks == _COMMA) & ~is_inside
        self._add_cuts(at[is_comma] + begin, depths[is_comma])

    def _add_cuts(self, commas: np.ndarray, levels: np.ndarray) -> None:
        if not len(commas):
            return
        self.n_commas += len(commas)
        self.n_outer_commas += int(np.count_nonzero(levels == 1))
        for level in range(max(1, levels.min()), min(N_LEVELS, levels.max()) + 1):
            found = commas[levels == level]
            if len(found):
                self.cuts[level] += [int(found[0]), int(found[-1])]


class JsonGuard:
    """Refuses JSON that would be expensive to parse. A short text with few brackets costs nothing."""

    def __init__(self, max_fields: int | None = None) -> None:
        """`max_fields`: of the outermost object, where that has a limit."""
        self._depth = JsonDepth()
        self._pending = bytearray()
        self._n_openings = 0
        self._max_outer_commas = max_fields - 1 if max_fields is not None else None

    @property
    def cuts(self) -> list[list[int]]:
        """Where a long text can be cut, by level; after `finish`."""
        return self._depth.cuts

    @property
    def has_many_fields(self) -> bool:
        """Whether the outermost object has more fields than it may, as far as it has come in."""
        return self._max_outer_commas is not None and self._depth.n_outer_commas > self._max_outer_commas

    def feed(self, part: bytes) -> None:
        """Add bytes. Raises InvalidRequest as soon as a limit is exceeded."""
        self._n_openings += part.count(b"[") + part.count(b"{")
        self._pending += part
        if len(self._pending) >= SLICE_BYTES:
            self._check()

    def finish(self, is_long: bool = False) -> None:
        """`is_long`: also find the cuts in what has come last."""
        if is_long or self._n_openings > MAX_DEPTH:
            self._check()

    def _check(self) -> None:
        depth = self._depth
        depth.feed(self._pending)
        self._pending.clear()
        if depth.deepest > MAX_DEPTH:
            raise InvalidRequest(f"the body is nested too deeply; the limit is {MAX_DEPTH} levels")
        if depth.n_containers > MAX_CONTAINERS:
            raise InvalidRequest(f"the body has more than {MAX_CONTAINERS} arrays and objects")
        if depth.n_commas > MAX_VALUES:
            raise InvalidRequest(f"the body has more than {MAX_VALUES} values")
