"""Encode answers as JSON: short ones at once, long ones in pieces, so that other threads run in between.

`Rows` is a list that is rendered only while it is encoded: a long answer is never whole in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import orjson

T = TypeVar("T")

PIECE_BYTES = 64 << 10
_PIECE_CHARS = 16 << 10
_PIECE_ITEMS = 512
_FEW_ITEMS = 16


class Rows:
    """A list of rendered items, each with about `weight` values."""

    def __init__(self, items: Sequence[T], render: Callable[[T], Any], weight: int = 1) -> None:
        self._items = items
        self._render = render
        self.weight = max(1, weight)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        return map(self._render, self._items)

    def encode(self) -> Iterator[bytes]:
        """Encode the list as JSON, in pieces."""
        return _walk_list(self, _PIECE_ITEMS // self.weight)


def encode_json(value: Any) -> bytes:
    return orjson.dumps(value, default=list)


def encode_pieces(value: Any) -> Iterator[bytes]:
    """Encode a value as JSON, in pieces of about `PIECE_BYTES`."""
    held = bytearray()
    for part in _walk(value):
        held += part
        if len(held) >= PIECE_BYTES:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)


def encode_rows(value: Any) -> Any:
    """Encode only the `Rows` in a value, piece by piece; any JSON encoder can write the rest."""
    if isinstance(value, Rows):
        return orjson.Fragment(b"".join(value.encode()))
    if isinstance(value, dict):
        return {name: encode_rows(each) for name, each in value.items()}
    if isinstance(value, list) and len(value) <= _FEW_ITEMS:
        return [encode_rows(each) for each in value]
    return value


def cut_pieces(text: bytes) -> list[bytes]:
    return [text[at : at + PIECE_BYTES] for at in range(0, len(text), PIECE_BYTES)]


def _walk(value: Any) -> Iterator[bytes]:
    if isinstance(value, Rows):
        yield from value.encode()
    elif isinstance(value, dict) and value:
        yield from _walk_fields(value)
    elif isinstance(value, str) and len(value) > _PIECE_CHARS:
        yield from _walk_text(value)
    elif isinstance(value, list | tuple) and value:
        yield from _walk_list(value, _PIECE_ITEMS // max(map(_weigh, _samples(value))))
    else:
        yield encode_json(value)


def _weigh(value: Any) -> int:
    """Estimate the number of values inside a value."""
    if isinstance(value, str):
        return 1 + len(value) // 64
    if isinstance(value, Rows):
        return len(value) * value.weight
    if isinstance(value, dict):
        return 1 + sum(map(_weigh, value.values()))
    if isinstance(value, list | tuple) and value:
        return len(value) * max(map(_weigh, _samples(value)))
    return 1


def _samples(values: Sequence[Any]) -> Sequence[Any]:
    """Return all of a few values, or a sample of many, since items of long lists are alike."""
    return values if len(values) <= _FEW_ITEMS else values[:: len(values) // _FEW_ITEMS]


def _walk_fields(fields: dict[str, Any]) -> Iterator[bytes]:
    start = b"{"
    for name, value in fields.items():
        yield start + encode_json(name) + b":"
        yield from _walk(value)
        start = b","
    yield b"}"


def _walk_list(values: Iterable[Any], n: int) -> Iterator[bytes]:
    """Encode the items, `n` at once; 0: each is long itself."""
    yield b"["
    if n:
        for i, group in enumerate(_groups(values, n)):
            yield b"," * (i > 0) + encode_json(group)[1:-1]
    else:
        for i, value in enumerate(values):
            yield b"," * (i > 0)
            yield from _walk(value)
    yield b"]"


def _walk_text(text: str) -> Iterator[bytes]:
    pieces = (text[at : at + _PIECE_CHARS] for at in range(0, len(text), _PIECE_CHARS))
    yield b'"'
    for piece in pieces:
        yield encode_json(piece)[1:-1]
    yield b'"'


def _groups(values: Iterable[T], n: int) -> Iterator[list[T]]:
    iterator = iter(values)
    while group := list(islice(iterator, n)):
        yield group
