"""Find the terminals that a greedy lexer would read past, and where.

llguidance reads one terminal after the other. Where several are possible it follows all at once as far as
any of them goes, and never backtracks. A terminal is overrun if, after a word of it, a terminal that is
possible at the same place can continue with what may come next. The analysis uses the order of terminals
without the nesting of rules: it may report too many, never too few.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TypeAlias

from corral.grammar.gbnf.automaton import Automaton, Overlap, StepBudget, bits
from corral.grammar.gbnf.node import (
    Alt,
    Node,
    Ref,
    Repeat,
    Seq,
    Term,
    Token,
    can_be_empty,
    find_empty_rules,
)

# Transitions of a terminal's automaton that must not happen within one terminal.
Overruns: TypeAlias = dict[Term, set[tuple[int, int]]]


def find_overruns(rules: dict[str, Node], root: str, automata: Automata) -> Overruns:
    """Return the terminals that continue where another terminal, or they themselves, should have ended."""
    flow = Flow(rules, root, automata.budget)
    return _Meetings(flow, automata).find_overruns()


class Automata:
    """Caches the automaton of each node and the overlap of each pair."""

    def __init__(self, budget: StepBudget) -> None:
        self.budget = budget
        self._automata: dict[Node, Automaton] = {}
        self._overlaps: dict[tuple[Node, Node], Overlap] = {}

    def of(self, node: Node) -> Automaton:
        automaton = self._automata.get(node)
        if automaton is None:
            automaton = self._automata[node] = Automaton(node, self.budget)
        return automaton

    def overlap(self, one: Node, other: Node) -> Overlap:
        overlap = self._overlaps.get((one, other))
        if overlap is None:
            overlap = self.of(one).overlap(self.of(other))
            self._overlaps[one, other] = overlap
        return overlap


class Flow:
    """The terminals that may come first, and after each terminal, as integers with one bit per terminal."""

    def __init__(self, rules: dict[str, Node], root: str, budget: StepBudget) -> None:
        self.leaves: list[Term | Token] = []
        self.next: list[int] = []
        self._index: dict[Node, int] = {}
        self._rules = rules
        self._budget = budget
        self._empty = find_empty_rules(rules)
        self._first_of = dict.fromkeys(rules, 0)
        self._after = dict.fromkeys(rules, 0)
        self._settle(list(reversed(rules)), self._find_first)
        self._firsts: dict[Node, int] = {}
        self._settle(list(rules), self._find_next)
        self.start = self._first_of[root]

    def _settle(self, names: list[str], visit: Callable[[str], bool]) -> None:
        """Visit the rules until a round changes nothing."""
        changed = True
        while changed:
            changed = False
            for name in names:
                self._budget.spend(1)
                changed = visit(name) or changed

    def _find_first(self, name: str) -> bool:
        before = self._first_of[name]
        self._firsts = {}
        self._first_of[name] = self._first(self._rules[name])
        return before != self._first_of[name]

    def _find_next(self, name: str) -> bool:
        return self._pass(self._rules[name], self._after[name])

    def _first(self, node: Node) -> int:
        first = self._firsts.get(node)
        if first is not None:
            return first
        first = 0
        if isinstance(node, Term | Token):
            first = 1 << self._index_of(node)
        elif isinstance(node, Ref):
            first = self._first_of[node.name]
        elif isinstance(node, Repeat):
            first = self._first(node.item)
        elif isinstance(node, Seq | Alt):
            for item in node.items:
                first |= self._first(item)
                if isinstance(node, Seq) and not can_be_empty(item, self._empty):
                    break
        self._firsts[node] = first
        return first

    def _pass(self, node: Node, after: int) -> bool:
        """Add what may come after the node; returns whether this changed a rule."""
        if isinstance(node, Term | Token):
            self.next[self._index_of(node)] |= after
            return False
        if isinstance(node, Ref):
            before = self._after[node.name]
            self._after[node.name] |= after
            return before != self._after[node.name]
        changed = False
        if isinstance(node, Repeat):
            again = 0 if node.most == 1 else self._first(node.item)
            return self._pass(node.item, after | again)
        if isinstance(node, Alt):
            for item in node.items:
                changed = self._pass(item, after) or changed
        elif isinstance(node, Seq):
            for item in reversed(node.items):
                changed = self._pass(item, after) or changed
                after = self._first(item) | (after if can_be_empty(item, self._empty) else 0)
        return changed

    def _index_of(self, leaf: Term | Token) -> int:
        index = self._index.get(leaf)
        if index is None:
            index = self._index[leaf] = len(self.leaves)
            self.leaves.append(leaf)
            self.next.append(0)
        return index


class _Meetings:
    """All pairs of terminals that are possible at the same place of the same text."""

    def __init__(self, flow: Flow, automata: Automata) -> None:
        self._flow = flow
        self._automata = automata
        self._lead = [automata.of(leaf.node).lead if isinstance(leaf, Term) else 0 for leaf in flow.leaves]
        self._leads: dict[int, int] = {}
        self._next_lead = [self._lead_of(after) for after in flow.next]
        self._rows: set[tuple[int, int]] = set()
        self._pairs: dict[tuple[int, int], None] = {}
        self._overruns: Overruns = defaultdict(set)

    def find_overruns(self) -> Overruns:
        self._meet(self._flow.start, self._flow.start)
        done: set[tuple[int, int]] = set()
        while self._pairs:
            pair = next(iter(self._pairs))
            del self._pairs[pair]
            if pair in done:
                continue
            done.add(pair)
            if self._may_match_the_same(*pair):
                self._meet(self._flow.next[pair[0]], self._flow.next[pair[1]])
        return self._overruns

    def _meet(self, here: int, there: int) -> None:
        if (here, there) in self._rows:
            return
        self._rows.add((here, there))
        self._automata.budget.spend(here.bit_count() * there.bit_count())
        for one in bits(here):
            for other in bits(there):
                if (
                    one == other
                    or self._lead[one] & self._lead[other]
                    or not self._lead[one] | self._lead[other]
                ):
                    self._pairs[min(one, other), max(one, other)] = None

    def _may_match_the_same(self, one: int, other: int) -> bool:
        """Whether some text or token matches both; records where one overruns the other."""
        a, b = self._flow.leaves[one], self._flow.leaves[other]
        if isinstance(a, Token) or isinstance(b, Token):
            return isinstance(a, Token) and isinstance(b, Token) and a.id == b.id
        self._note(one, b)
        if one != other:
            self._note(other, a)
        return one == other or self._automata.overlap(a.node, b.node).share_a_word

    def _note(self, passed: int, passing: Term) -> None:
        leaf = self._flow.leaves[passed]
        assert isinstance(leaf, Term)
        automaton = self._automata.of(passing.node)
        for step in self._automata.overlap(leaf.node, passing.node).steps:
            if automaton.chars[step[1]].lead & self._next_lead[passed]:
                self._overruns[passing].add(step)

    def _lead_of(self, leaves: int) -> int:
        if leaves in self._leads:
            return self._leads[leaves]
        self._automata.budget.spend(leaves.bit_count())
        lead = 0
        for leaf in bits(leaves):
            lead |= self._lead[leaf]
        self._leads[leaves] = lead
        return lead
