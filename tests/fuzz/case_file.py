"""The case that is being tried, in a mapped file: writing it costs nothing, and it survives a crash."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from tests.fuzz.target import MAX_BYTES

NAME = "case.bin"
_length = struct.Struct("<I")


class CaseFile:
    """Mutable."""

    def __init__(self, directory: Path) -> None:
        path = directory / NAME
        path.write_bytes(bytes(_length.size + MAX_BYTES))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def write(self, case: bytes) -> None:
        _length.pack_into(self._map, 0, len(case))
        self._map[_length.size : _length.size + len(case)] = case


def read_case(directory: Path) -> bytes | None:
    """Return the last case; None if there was none."""
    path = directory / NAME
    if not path.exists():
        return None
    data = path.read_bytes()
    return data[_length.size : _length.size + _length.unpack_from(data)[0]]
