"""The saved state of one sequence: validated before native code reads it, and in a portable form.

libllama writes a section for each part of its memory: cells (which tokens), then rows of data for them.
With split KV a section has one stream per slot, all but one of them empty; the portable form has only that
one, whatever `-np` is:

    native     magic | section: stream 0 (empty), stream 1 (cells, rows), ... | section ...
    portable   magic | section: the one stream (cells, rows) | section ...

Pure functions of bytes: no handles, no policy, any thread.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from corral.core.chunk import State, TokenArray
from corral.core.errors import InvalidRequest
from corral.gguf.ggml_type import GGML_TYPES

_MAGIC = 0xAF143CD8
_START = 8  # after the magic and a sequence number, which libllama ignores
_KINDS = ((True, 12), (True, 24), (False, 8))  # bytes per cell: KV, KV with 2D positions, recurrent
_HEADER_BYTES = 12
_ONE_STREAM = memoryview(struct.pack("<I", 1))


@dataclass(frozen=True, slots=True)
class StateLayout:
    """How libllama lays out the state of one sequence of a context; learned from a sample."""

    sections: tuple[_Section, ...]
    n_streams: int
    has_window: bool

    @classmethod
    def learn(cls, sample: State, n_tokens: int, n_streams: int, has_window: bool) -> StateLayout | None:
        """Learn from the native state of a sequence of `n_tokens`. None: the layout is unknown."""
        data = memoryview(sample)
        if len(data) < _START or _Reader(data).u32() != _MAGIC:
            return None
        sections = next(_parse_sections(data, _START, n_tokens, n_streams), ())
        return cls(sections, n_streams, has_window) if sections else None

    @property
    def growth(self) -> int:
        """How many bytes longer the native form is than the portable one."""
        return self._n_padding * self._n_kv

    def n_bytes(self, n_tokens: int) -> int:
        """Return the size of a portable state; a sliding window makes it smaller."""
        return _START + sum(s.n_bytes(n_tokens if s.is_kv else min(1, n_tokens)) for s in self.sections)

    def portable_parts(self, state: State) -> list[memoryview]:
        """Return the parts of the portable form of a state that this context wrote, also with fewer
        sequences. Data is not copied."""
        if not self.growth:
            return [memoryview(state)]
        reader = _Reader(memoryview(state))
        parts = [reader.take(_START)]
        for section in self.sections:
            n_behind = reader.find_stream() if section.is_kv else 0
            parts += [_ONE_STREAM] * section.is_kv
            parts += [reader.take(section.n_bytes(reader.peek_u32()) - 4 * section.is_kv)]
            reader.take(4 * n_behind)
        assert reader.is_done
        return parts

    def join_streams(self, body: State) -> npt.NDArray[np.uint8]:
        """Return the portable form of a state without its header that a context of any number of sequences
        wrote."""
        reader = _Reader(memoryview(body))
        parts: list[memoryview] = [memoryview(struct.pack("<II", _MAGIC, 0))]
        for section in self.sections:
            n_behind = reader.find_stream() if section.is_kv else 0
            parts += [_ONE_STREAM] * section.is_kv
            parts.append(reader.take(section.n_bytes(reader.peek_u32()) - 4 * section.is_kv))
            if any(reader.take(4 * n_behind)):
                raise InvalidRequest("it has tokens in several streams")
        if not reader.is_done:
            raise InvalidRequest(f"it has data after byte {reader.offset}, where it should end")
        return np.concatenate([np.frombuffer(part, np.uint8) for part in parts])

    def renew(self, state: State) -> State:
        """Convert a state that this context wrote with fewer sequences to its present layout."""
        reader = _Reader(memoryview(state))
        reader.take(_START)
        if not self._n_kv or reader.u32() == self.n_streams:
            return state
        parts = self.portable_parts(state)
        n_bytes = sum(map(len, parts))
        buffer = np.empty(n_bytes + self.growth, np.uint8)
        buffer[:n_bytes] = np.concatenate([np.frombuffer(part, np.uint8) for part in parts])
        return self.make_native(buffer, n_bytes)

    def check(self, state: State, positions: TokenArray) -> None:
        """Reject a portable state unless this context could have written it for tokens at these positions."""
        reader = _Reader(memoryview(state))
        if reader.u32() != _MAGIC:
            raise InvalidRequest("it is not the state of a sequence")
        reader.take(_START - 4)
        expected = np.sort(positions)
        for i, section in enumerate(self.sections):
            # The first of several sections belongs to the layers without a window.
            may_be_cut = self.has_window and (i > 0 or self._n_kv == 1)
            section.check(reader, expected if section.is_kv else expected[-1:], may_be_cut)
        if not reader.is_done:
            raise InvalidRequest(f"it has data after byte {reader.offset}, where it should end")

    def make_native(self, buffer: npt.NDArray[np.uint8], n_bytes: int) -> memoryview:
        """Convert the validated portable state in the first `n_bytes` to the native form, in place."""
        shift = self.growth
        assert buffer.flags.c_contiguous
        assert buffer.size >= n_bytes + shift
        native = buffer[: n_bytes + shift].data
        # Last section first, so that nothing is overwritten before it is moved.
        for section, start, end in reversed(self._spans(native[:n_bytes])):
            shift -= self._n_padding * section.is_kv
            address = buffer.ctypes.data + start
            ctypes.memmove(address + shift, address, end - start)
            if section.is_kv:
                struct.pack_into("<I", native, start + shift, self.n_streams)
                buffer[end + shift : end + shift + self._n_padding] = 0
        return native

    @property
    def _n_kv(self) -> int:
        return sum(section.is_kv for section in self.sections)

    @property
    def _n_padding(self) -> int:
        return 4 * (self.n_streams - 1)

    def _spans(self, portable: memoryview) -> list[tuple[_Section, int, int]]:
        reader = _Reader(portable, _START)
        spans: list[tuple[_Section, int, int]] = []
        for section in self.sections:
            start = reader.offset
            reader.take(4 * section.is_kv)
            reader.take(section.n_bytes(reader.peek_u32()) - 4 * section.is_kv)
            spans.append((section, start, reader.offset))
        return spans


@dataclass(frozen=True, slots=True)
class _Section:
    """A part of the memory: fixed headers, each followed by a row per cell."""

    is_kv: bool
    cell_bytes: int
    is_transposed: int
    n_layer: int
    rows: tuple[_Rows, ...]

    def n_bytes(self, n_cells: int) -> int:
        if self.is_kv and n_cells == 0:
            return 8
        n_fixed = 4 * self.is_kv + 12 + _HEADER_BYTES * len(self.rows)
        return n_fixed + n_cells * (self.cell_bytes + sum(rows.n_bytes for rows in self.rows))

    def check(self, reader: _Reader, expected: TokenArray, may_be_cut: bool) -> None:
        n_streams = reader.u32() if self.is_kv else 1
        if n_streams != 1:
            raise InvalidRequest(f"it has {n_streams} streams instead of one")
        n_cells, n_tokens = reader.u32(), len(expected)
        n_least = min(1, n_tokens) if may_be_cut else n_tokens
        if not n_least <= n_cells <= n_tokens:
            raise InvalidRequest(f"it has {n_cells} cells instead of {n_tokens}")
        if self.is_kv and n_cells == 0:
            return
        if not reader.has_cells(self.is_kv, self.cell_bytes, expected[n_tokens - n_cells :]):
            raise InvalidRequest("its cell positions do not match its tokens")
        self._check_data(reader, n_cells)

    def _check_data(self, reader: _Reader, n_cells: int) -> None:
        is_transposed, n_layer = reader.u32(), reader.u32()
        if n_layer != self.n_layer:
            raise InvalidRequest(f"it has {n_layer} layers instead of {self.n_layer}")
        if is_transposed != self.is_transposed:
            raise InvalidRequest(
                f"it was saved with flash attention {'off' if is_transposed else 'on'} (-fa)"
            )
        for i, here in enumerate(self.rows):
            rows = reader.rows(here.is_transposed)
            if rows != here:
                what = ("keys" if i < n_layer else "values") if self.is_kv else "states"
                reason = "another model" if rows.type == here.type else "-ctk, -ctv"
                raise InvalidRequest(f"its {what} are {rows} where this server has {here} ({reason})")
            reader.take(n_cells * here.n_bytes)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The layout of the data after a header. Transposed rows have an element size and count."""

    type: int
    size: tuple[int, ...]

    @property
    def is_transposed(self) -> bool:
        return len(self.size) == 2

    @property
    def n_bytes(self) -> int:
        return math.prod(self.size)

    def __str__(self) -> str:
        name = GGML_TYPES[self.type].name if self.type in GGML_TYPES else f"type {self.type}"
        return f"{name} with rows of {self.n_bytes} bytes"


class _Reader:
    """Reads a state from front to back, with bounds checks."""

    def __init__(self, data: memoryview, offset: int = 0) -> None:
        self._data = data
        self.offset = offset

    @property
    def is_done(self) -> bool:
        return self.offset == len(self._data)

    def take(self, n_bytes: int) -> memoryview:
        taken = self.peek(n_bytes)
        self.offset += n_bytes
        return taken

    def peek(self, n_bytes: int) -> memoryview:
        end = self.offset + n_bytes
        if end > len(self._data):
            raise InvalidRequest(f"it ends after {len(self._data)} of at least {end} bytes")
        return self._data[self.offset : end]

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def peek_u32(self) -> int:
        return int.from_bytes(self.peek(4), "little")

    def rows(self, is_transposed: bool) -> _Rows:
        kind, *size = struct.unpack("<iII" if is_transposed else "<iQ", self.take(_HEADER_BYTES))
        return _Rows(kind, tuple(size))

    def has_cells(self, is_kv: bool, cell_bytes: int, expected: TokenArray) -> bool:
        """Whether the next cells are at these (sorted) positions, in any order."""
        data = self.take(len(expected) * cell_bytes)
        cells = np.ndarray((len(expected), 2), np.dtype("<i4"), data, strides=(cell_bytes, 4))
        return bool(np.all(cells[:, 1] == is_kv)) and np.array_equal(np.sort(cells[:, 0]), expected)

    def find_stream(self) -> int:
        """Skip to the stream that is not empty, or to the last; return how many follow it."""
        for n_behind in range(self.u32() - 1, 0, -1):
            if self.peek_u32():
                return n_behind
            self.take(4)
        return 0


def _parse_sections(
    data: memoryview, start: int, n_tokens: int, n_streams: int
) -> Iterator[tuple[_Section, ...]]:
    """Yield all ways to parse the rest of a sample."""
    if start == len(data):
        yield ()
        return
    for is_kv, cell_bytes in _KINDS:
        expected = np.arange(0 if is_kv else n_tokens - 1, n_tokens, dtype=np.int32)
        for section, end in _parse_section(_Reader(data, start), is_kv, cell_bytes, expected, n_streams):
            for rest in _parse_sections(data, end, n_tokens, n_streams):
                yield section, *rest


def _parse_section(
    reader: _Reader, is_kv: bool, cell_bytes: int, expected: TokenArray, n_streams: int
) -> Iterator[tuple[_Section, int]]:
    """Yield all ways to parse a section, and where it ends; those with fewer rows first.

    A layer may have no values or no recurrent state: the number of rows shows only in what follows.
    """
    try:
        if is_kv and reader.peek_u32() != n_streams:
            return
        n_behind = reader.find_stream() if is_kv else 0
        if reader.u32() != len(expected) or not reader.has_cells(is_kv, cell_bytes, expected):
            return
        is_transposed, n_layer = reader.u32(), reader.u32()
        if is_transposed > is_kv:
            return
        rows: list[_Rows] = []
        while True:
            if len(rows) >= n_layer * is_kv and not any(reader.peek(4 * n_behind)):
                section = _Section(is_kv, cell_bytes, is_transposed, n_layer, tuple(rows))
                yield section, reader.offset + 4 * n_behind
            if len(rows) == 2 * n_layer:
                return
            rows.append(reader.rows(bool(is_transposed) and len(rows) >= n_layer))
            reader.take(len(expected) * rows[-1].n_bytes)
    except InvalidRequest:
        return
