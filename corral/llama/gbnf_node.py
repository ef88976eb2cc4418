"""What a GBNF grammar is made of, as values. Pure; knows neither the text nor llguidance.

`Seq` without items is the empty text. Nodes are shared between rules and compared by identity.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

MAX_CHAR = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)


@dataclass(frozen=True, slots=True, eq=False)
class Chars:
    """One character out of sorted, disjoint ranges; `lead` has a bit for each first byte in UTF-8."""

    ranges: tuple[tuple[int, int], ...]
    lead: int


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    """One token of the vocabulary, or any token but this one."""

    id: int
    negated: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Ref:
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Seq:
    items: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Alt:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    item: Node
    least: int
    most: int | None


Node = Chars | Token | Ref | Seq | Alt | Repeat


@lru_cache(maxsize=4096)
def chars_of(ranges: tuple[tuple[int, int], ...], negated: bool = False) -> Chars:
    """The class of these ranges, in any order; surrogates are no characters and fall out."""
    merged = _merge(ranges)
    if negated:
        merged = _complement(merged)
    kept: list[tuple[int, int]] = []
    for low, high in merged:
        pieces = ((low, min(high, _SURROGATES[0] - 1)), (max(low, _SURROGATES[1] + 1), high))
        kept += [piece for piece in pieces if piece[0] <= piece[1]] if _has_surrogate(low, high) else [(low, high)]
    lead = 0
    for low, high in kept:
        lead |= (1 << _lead_byte(high) + 1) - (1 << _lead_byte(low))
    return Chars(tuple(kept), lead)


def seq_of(items: list[Node]) -> Node:
    """The items one after the other; nested sequences dissolve."""
    flat: list[Node] = []
    for item in items:
        flat += item.items if isinstance(item, Seq) else [item]
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def alt_of(items: list[Node]) -> Node:
    """Any one of the items; nested alternatives dissolve."""
    flat: list[Node] = []
    for item in items:
        flat += item.items if isinstance(item, Alt) else [item]
    return flat[0] if len(flat) == 1 else Alt(tuple(flat))


def share_a_char(one: Chars, other: Chars) -> bool:
    if not one.lead & other.lead:
        return False
    a, b = iter(one.ranges), iter(other.ranges)
    (low, high), (from_, to) = next(a), next(b)
    while True:
        if high < from_:
            step = next(a, None)
            if step is None:
                return False
            low, high = step
        elif to < low:
            step = next(b, None)
            if step is None:
                return False
            from_, to = step
        else:
            return True


def _merge(ranges: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged


def _complement(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    edges = [-1, *(edge for pair in ranges for edge in pair), MAX_CHAR + 1]
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return [(low + 1, high - 1) for low, high in pairs if low + 1 <= high - 1]


def _has_surrogate(low: int, high: int) -> bool:
    return low <= _SURROGATES[1] and high >= _SURROGATES[0]


def _lead_byte(char: int) -> int:
    """Grows with the character, so that a range of characters has a range of first bytes."""
    if char < 0x80:
        return char
    if char < 0x800:
        return 0xC0 | char >> 6
    if char < 0x10000:
        return 0xE0 | char >> 12
    return 0xF0 | char >> 18
