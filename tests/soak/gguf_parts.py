"""A GGUF file as its parts, to be put together again wrongly. Reads only files that are right."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

SIZES = {
    0: 1,
    1: 1,
    2: 2,
    3: 2,
    4: 4,
    5: 4,
    6: 4,
    7: 1,
    10: 8,
    11: 8,
    12: 8,
}  # of scalars by type
STRING, ARRAY = 8, 9
ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class Pair:
    """A key, the type of its value, and the value's bytes."""

    key: bytes
    type: int
    value: bytes

    def encode(self) -> bytes:
        return text(self.key) + struct.pack("<I", self.type) + self.value


@dataclass(frozen=True, slots=True)
class Info:
    """What is said of a tensor."""

    name: bytes
    shape: tuple[int, ...]
    type: int
    offset: int

    def encode(self) -> bytes:
        head = text(self.name) + struct.pack("<I", len(self.shape))
        return head + struct.pack(f"<{len(self.shape)}QIQ", *self.shape, self.type, self.offset)


@dataclass(frozen=True, slots=True)
class Parts:
    pairs: list[Pair]
    infos: list[Info]
    data: bytes

    def encode(self) -> bytes:
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.infos), len(self.pairs))
        parts: list[Pair | Info] = [*self.pairs, *self.infos]
        head += b"".join(part.encode() for part in parts)
        return head + bytes(-len(head) % ALIGNMENT) + self.data


@dataclass(slots=True)
class Map:
    """Mutable: where in a file things begin: numbers as (offset, bytes), and all borders between parts."""

    numbers: list[tuple[int, int]] = field(default_factory=list)
    borders: list[int] = field(default_factory=list)
    n_header: int = 0


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def take_apart(content: bytes) -> tuple[Parts, Map]:
    """The parts of a good file, and a map of it."""
    reader = _Reader(content)
    reader.at = 4
    reader.number(4)
    n_tensors, n_keys = reader.number(8), reader.number(8)
    pairs = [reader.pair() for _ in range(n_keys)]
    infos = [reader.info() for _ in range(n_tensors)]
    start = -(-reader.at // ALIGNMENT) * ALIGNMENT
    reader.map.n_header = start
    reader.map.borders += [start, *(start + info.offset for info in infos)]
    return Parts(pairs, infos, content[start:]), reader.map


class _Reader:
    def __init__(self, content: bytes) -> None:
        self.content = content
        self.at = 0
        self.map = Map()

    def number(self, n_bytes: int) -> int:
        self.map.numbers.append((self.at, n_bytes))
        self.map.borders.append(self.at)
        return int.from_bytes(self._take(n_bytes), "little")

    def pair(self) -> Pair:
        key = self._take(self.number(8))
        type = self.number(4)
        start = self.at
        self._value(type)
        return Pair(key, type, self.content[start : self.at])

    def info(self) -> Info:
        name = self._take(self.number(8))
        shape = tuple(self.number(8) for _ in range(self.number(4)))
        return Info(name, shape, self.number(4), self.number(8))

    def _value(self, type: int) -> None:
        if type == STRING:
            self._take(self.number(8))
        elif type == ARRAY:
            element, n = self.number(4), self.number(8)
            for _ in range(n):
                if element == STRING:
                    self._take(int.from_bytes(self._take(8), "little"))
                else:
                    self._take(SIZES[element])
        else:
            self.number(SIZES[type])

    def _take(self, n: int) -> bytes:
        self.at += n
        return self.content[self.at - n : self.at]
