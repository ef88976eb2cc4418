"""The nodes of a GBNF grammar. Pure; independent of the grammar's text and of llguidance.

`Seq` without items is the empty text. Nodes may be shared and are compared by identity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import TypeAlias

from corral.core.errors import InvalidRequest

MAX_CHAR = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)

# A chain of rules, each a little longer than the next, must not take quadratic time.
_MAX_DISSOLVED = 32

Ranges: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Chars:
    """One character of sorted, disjoint ranges; `lead` has one bit for each first byte in UTF-8."""

    ranges: Ranges
    lead: int


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """A text of at least one character."""

    text: str


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


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """One use of a terminal: a node of characters without references."""

    node: Node


Node: TypeAlias = Chars | Text | Token | Ref | Seq | Alt | Repeat | Term


@dataclass(frozen=True, slots=True)
class GbnfGrammar:
    """Checked rules, including the root, and the tokens they name.

    `place_of` returns line and column of a rule's definition.
    """

    rules: dict[str, Node]
    tokens: frozenset[int]
    place_of: Callable[[str], tuple[int, int]]


def refusal(reason: str, place: tuple[int, int] | None = None) -> InvalidRequest:
    where = "" if place is None else f"line {place[0]}, column {place[1]}: "
    return InvalidRequest(f"Failed to parse grammar: {where}{reason}")


@lru_cache(maxsize=1024)
def char_of(char: str) -> Chars:
    return chars_of(((ord(char), ord(char)),))


@lru_cache(maxsize=1024)
def chars_of(ranges: Ranges, negated: bool = False) -> Chars:
    """Return the class of these ranges, in any order, without surrogates, which are not characters."""
    merged = _merge(ranges)
    if negated:
        merged = _complement(merged)
    kept = [piece for low, high in merged for piece in _without_surrogates(low, high)]
    lead = 0
    for low, high in kept:
        lead |= (1 << (_lead_byte(high) + 1)) - (1 << _lead_byte(low))
    return Chars(tuple(kept), lead)


def seq_of(items: Sequence[Node]) -> Node:
    """Return the sequence of the items; short nested sequences are flattened."""
    return _flat(Seq, items)


def alt_of(items: Sequence[Node]) -> Node:
    """Return the alternative of the items; short nested alternatives are flattened."""
    return _flat(Alt, items)


def _flat(kind: type[Seq] | type[Alt], items: Sequence[Node]) -> Node:
    flat: list[Node] = []
    for item in items:
        if isinstance(item, kind) and len(item.items) <= _MAX_DISSOLVED:
            flat += item.items
        else:
            flat.append(item)
    return flat[0] if len(flat) == 1 else kind(tuple(flat))


def children(node: Node) -> tuple[Node, ...]:
    if isinstance(node, Seq | Alt):
        return node.items
    return (node.item,) if isinstance(node, Repeat) else ()


def map_leaves(node: Node, change: Callable[[Node], Node]) -> Node:
    """Return the node with each leaf changed; a terminal is a leaf."""
    if isinstance(node, Repeat):
        return Repeat(map_leaves(node.item, change), node.least, node.most)
    if not isinstance(node, Seq | Alt):
        return change(node)
    items: list[Node] = []
    for item in node.items:
        items.append(map_leaves(item, change))
    return seq_of(items) if isinstance(node, Seq) else alt_of(items)


def count_leaves(node: Node) -> int:
    """Count the leaves, and each character of a text."""
    n = 0
    pending = [node]
    while pending:
        part = pending.pop()
        inner = children(part)
        pending += inner
        n += len(part.text) if isinstance(part, Text) else not inner
    return n


def references(node: Node) -> list[str]:
    """Return the rules that the node references, from left to right, without duplicates."""
    found: dict[str, None] = {}
    pending = [node]
    while pending:
        part = pending.pop()
        if isinstance(part, Ref):
            found[part.name] = None
        pending += reversed(children(part))
    return list(found)


def find_cycle(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Return rules that reference each other in a cycle, or an empty list."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def can_be_empty(node: Node, empty_rules: set[str]) -> bool:
    if isinstance(node, Seq):
        for item in node.items:  # noqa: SIM110 (a generator would double the depth of the stack)
            if not can_be_empty(item, empty_rules):
                return False
        return True
    if isinstance(node, Alt):
        for item in node.items:  # noqa: SIM110 (as above)
            if can_be_empty(item, empty_rules):
                return True
        return False
    if isinstance(node, Repeat):
        return node.least == 0 or can_be_empty(node.item, empty_rules)
    if isinstance(node, Term):
        return can_be_empty(node.node, empty_rules)
    return isinstance(node, Ref) and node.name in empty_rules


def find_empty_rules(rules: dict[str, Node]) -> set[str]:
    users: dict[str, set[str]] = {name: set() for name in rules}
    for name, node in rules.items():
        for other in references(node):
            users[other].add(name)
    empty: set[str] = set()
    pending = dict.fromkeys(rules)
    while pending:
        name = next(iter(pending))
        del pending[name]
        if name not in empty and can_be_empty(rules[name], empty):
            empty.add(name)
            pending.update(dict.fromkeys(users[name]))
    return empty


def share_a_char(one: Chars, other: Chars) -> bool:
    if one is other or not one.lead & other.lead:
        return one is other
    i = j = 0
    while i < len(one.ranges) and j < len(other.ranges):
        (low, high), (from_, to) = one.ranges[i], other.ranges[j]
        if low <= to and from_ <= high:
            return True
        i, j = (i + 1, j) if high < from_ else (i, j + 1)
    return False


def _merge(ranges: Ranges) -> list[tuple[int, int]]:
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


def _without_surrogates(low: int, high: int) -> list[tuple[int, int]]:
    if high < SURROGATES[0] or low > SURROGATES[1]:
        return [(low, high)]
    pieces = [(low, SURROGATES[0] - 1), (SURROGATES[1] + 1, high)]
    return [piece for piece in pieces if piece[0] <= piece[1]]


def _lead_byte(char: int) -> int:
    """Return the first byte in UTF-8. It grows with the character, so a range of characters has a range of
    bytes."""
    if char < 0x80:
        return char
    if char < 0x800:
        return 0xC0 | char >> 6
    if char < 0x10000:
        return 0xE0 | char >> 12
    return 0xF0 | char >> 18
