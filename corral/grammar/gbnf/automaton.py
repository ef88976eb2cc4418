"""Build an automaton for a node of characters, to predict what a greedy lexer does with it.

A Glushkov automaton: one state for each character of the node. A long counted repetition becomes an
unbounded one, so the results then hold for more words than the node has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from corral.grammar.gbnf.node import Alt, Chars, Node, Repeat, Seq, Text, char_of, share_a_char

# Counted repetitions are copied up to this many states.
_MAX_COPIED_STATES = 32

# States that a word of a node can begin with, states it can end with, and whether it can be empty.
_Ends: TypeAlias = tuple[int, int, bool]


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two automata that read the same words.

    `share_a_word`: some word belongs to both. `steps`: transitions of the second automaton that continue
    past a complete word of the first.
    """

    share_a_word: bool
    steps: tuple[tuple[int, int], ...]


class StepBudget:
    """A limit on the steps of the analysis."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def spend(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise BudgetExceeded


class BudgetExceeded(Exception):
    pass


class Automaton:
    """Sets of states are integers with one bit per state."""

    def __init__(self, node: Node, budget: StepBudget) -> None:
        self._budget = budget
        self.chars: list[Chars] = []
        self.follow: list[int] = []
        # The first state of each child of `node`.
        self.child_starts: list[int] = []
        self.first, self.last, _ = self._add(node, top=True)

    @cached_property
    def lead(self) -> int:
        """The set of first bytes of its words."""
        return self.lead_of(self.first)

    def lead_of(self, states: int) -> int:
        lead = 0
        for state in bits(states):
            lead |= self.chars[state].lead
        return lead

    def child_of(self, state: int) -> int:
        """Return the index of the node's child that the state belongs to."""
        child = len(self.child_starts) - 1
        while self.child_starts[child] > state:
            child -= 1
        return child

    @staticmethod
    def n_copies(node: Repeat, n_states: int) -> int:
        """Return how many copies of a repetition with `n_states` states exist; the last loops if there are
        too few."""
        n = node.most if node.most is not None else max(1, node.least)
        return n if n * n_states <= _MAX_COPIED_STATES else 1

    def overlap(self, other: Automaton) -> Overlap:
        share_a_word = False
        steps: dict[tuple[int, int], None] = {}
        seen: set[tuple[int, int]] = set()
        pending = [(self.first, other.first)]
        while pending:
            here, there = pending.pop()
            self._budget.spend(1 + here.bit_count() * there.bit_count())
            pairs = [
                (a, b)
                for a in bits(here)
                for b in bits(there)
                if (a, b) not in seen and share_a_char(self.chars[a], other.chars[b])
            ]
            seen.update(pairs)
            for a, b in pairs:
                if self.last >> a & 1:
                    share_a_word = share_a_word or bool(other.last >> b & 1)
                    steps.update(dict.fromkeys((b, step) for step in bits(other.follow[b])))
                pending.append((self.follow[a], other.follow[b]))
        return Overlap(share_a_word, tuple(steps))

    def _add(self, node: Node, top: bool = False) -> _Ends:
        if isinstance(node, Chars):
            state = 1 << len(self.chars)
            self.chars.append(node)
            self.follow.append(0)
            return state, state, False
        if isinstance(node, Text):
            return self._chain(self._children([char_of(char) for char in node.text], top))
        if isinstance(node, Seq):
            return self._chain(self._children(node.items, top))
        if isinstance(node, Alt):
            first, last, can_be_empty = 0, 0, False
            for ends in self._children(node.items, top):
                first, last, can_be_empty = first | ends[0], last | ends[1], can_be_empty or ends[2]
            return first, last, can_be_empty
        assert isinstance(node, Repeat)
        return self._repeat(node)

    def _children(self, items: Sequence[Node], top: bool) -> Iterator[_Ends]:
        for item in items:
            if top:
                self.child_starts.append(len(self.chars))
            yield self._add(item)

    def _chain(self, parts: Iterable[_Ends]) -> _Ends:
        first, last, can_be_empty = 0, 0, True
        for part_first, part_last, part_can_be_empty in parts:
            self._connect(last, part_first)
            first |= part_first if can_be_empty else 0
            last = part_last | (last if part_can_be_empty else 0)
            can_be_empty = can_be_empty and part_can_be_empty
        return first, last, can_be_empty

    def _repeat(self, node: Repeat) -> _Ends:
        start = len(self.chars)
        first, last, can_be_empty = self._add(node.item)
        can_be_empty = can_be_empty or node.least == 0
        n_copies = self.n_copies(node, len(self.chars) - start)
        ends = 0
        for copy in range(1, n_copies + 1):
            if can_be_empty or copy >= node.least or copy == n_copies:
                ends |= last
            if copy < n_copies:
                next_first, next_last, _ = self._add(node.item)
                self._connect(last, next_first)
                last = next_last
            elif copy != node.most:
                self._connect(last, next_first if copy > 1 else first)
        return first, ends, can_be_empty

    def _connect(self, sources: int, targets: int) -> None:
        self._budget.spend(1 + sources.bit_count())
        for source in bits(sources):
            self.follow[source] |= targets


def bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
