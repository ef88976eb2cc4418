"""Fold every part of a grammar without recursion and tokens into a terminal, as large as possible.

Neither folding nor cutting terminals changes the language of the grammar.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from corral.grammar.gbnf.automaton import Automaton
from corral.grammar.gbnf.node import (
    Alt,
    Chars,
    Node,
    Ref,
    Repeat,
    Seq,
    Term,
    Text,
    Token,
    alt_of,
    can_be_empty,
    char_of,
    children,
    find_cycle,
    references,
    seq_of,
)

# Rust's regular expressions nest up to 250 levels; a node takes at most two of them.
_MAX_LEVELS = 200


def fold_rules(rules: dict[str, Node], root: str, max_size: int) -> dict[str, Node]:
    """Return the rules that `root` needs, itself first, with terminals of at most `max_size` nodes."""
    folder = _Folder(max_size)
    for name in _bottom_up(rules, root):
        folder.folded[name] = folder.fold(_without_tail_recursion(name, rules[name]))
    return {name: folder.folded[name] for name in reversed(_bottom_up(folder.folded, root))}


def has_recursion(rules: dict[str, Node], root: str) -> bool:
    """Whether a rule that `root` needs references itself, directly or through others."""
    return bool(find_cycle({name: references(rules[name]) for name in _bottom_up(rules, root)}))


def cut(term: Term, steps: Iterable[tuple[int, int]], automaton: Automaton) -> Node:
    """Cut the terminal into smaller ones, at or near the given transitions of the automaton."""
    node = term.node
    if isinstance(node, Repeat):
        return Repeat(Term(node.item), node.least, node.most)
    if isinstance(node, Text):
        node = Seq(tuple(char_of(char) for char in node.text))
    places = {(automaton.child_of(source), automaton.child_of(target)) for source, target in steps}
    targets = {target for _, target in places}
    if isinstance(node, Alt):
        apart = [Term(node.items[i]) for i in sorted(targets)]
        rest = [item for i, item in enumerate(node.items) if i not in targets]
        return alt_of([*apart, Term(alt_of(rest))] if rest else apart)
    assert isinstance(node, Seq)
    inside = {target + 1 for source, target in places if source == target}
    edges = sorted({0, len(node.items)} | targets | inside)
    return Seq(tuple(Term(seq_of(node.items[a:b])) for a, b in pairwise(edges)))


class _Folder:
    """`folded`: the finished rules. A referenced rule that is not among them is recursive."""

    def __init__(self, max_size: int) -> None:
        self.folded: dict[str, Node] = {}
        self._max_size = max_size
        self._measures: dict[Node, tuple[int, int]] = {}

    def fold(self, node: Node) -> Node:
        if isinstance(node, Chars):
            return Term(node)
        if isinstance(node, Text):
            return self._text(node)
        if isinstance(node, Ref):
            rule = self.folded.get(node.name)
            return Term(rule.node) if isinstance(rule, Term) else node
        if isinstance(node, Repeat):
            return self._repeat(self.fold(node.item), node.least, node.most)
        if isinstance(node, Token | Term):
            return node
        parts: list[Node] = []
        for item in node.items:
            parts.append(self.fold(item))
        return self._seq(parts) if isinstance(node, Seq) else self._alt(parts)

    def _text(self, node: Text) -> Node:
        """Split a text into terminals within the size limit."""
        if len(node.text) <= self._max_size:
            return Term(node)
        starts = range(0, len(node.text), self._max_size)
        return Seq(tuple(Term(Text(node.text[start : start + self._max_size])) for start in starts))

    def _seq(self, parts: Sequence[Node]) -> Node:
        """Join each run of terminals to one."""
        joined: list[Node] = []
        run: list[Node] = []
        flat = seq_of(parts)
        for part in flat.items if isinstance(flat, Seq) else (flat,):
            if not isinstance(part, Term):
                joined += [*self._join(run, seq_of), part]
                run = []
            elif not _is_empty(part.node):
                run.append(part.node)
        joined += self._join(run, seq_of)
        return seq_of(joined) if joined else Term(Seq())

    def _alt(self, parts: Sequence[Node]) -> Node:
        """Join all terminals to one."""
        flat = alt_of(parts)
        items = flat.items if isinstance(flat, Alt) else (flat,)
        terms = [item.node for item in items if isinstance(item, Term)]
        return alt_of([*self._join(terms, alt_of), *_without_terms(items)])

    def _repeat(self, part: Node, least: int, most: int | None) -> Node:
        if isinstance(part, Term):
            node = Repeat(part.node, least, most)
            return Term(node) if self._fits(node) else Repeat(part, least, most)
        items = part.items if isinstance(part, Alt) else (part,)
        terms = [item.node for item in items if isinstance(item, Term)]
        if len(terms) != 1:
            return Repeat(part, least, most)
        others = alt_of(_without_terms(items))
        if _is_empty(terms[0]):
            return Repeat(others, 0, most)
        loop = Repeat(terms[0], 0, None)
        if most is not None or least > 1 or not self._fits(loop):
            return Repeat(part, least, most)
        return self._mixed_loop(loop, others, least)

    def _mixed_loop(self, loop: Repeat, others: Node, least: int) -> Node:
        """Rewrite (A | other)* as A* (other A*)*, in which no two terminals A are adjacent."""
        turn = seq_of([others, Term(loop)])
        turns = Repeat(turn, 0, None)
        if least == 0 or can_be_empty(loop.item, set()):
            return seq_of([Term(loop), turns])
        first = Term(Repeat(loop.item, 1, None))
        return alt_of([seq_of([first, turns]), Repeat(turn, 1, None)])

    def _join(self, nodes: Sequence[Node], make: Callable[[Sequence[Node]], Node]) -> list[Node]:
        """Join adjacent nodes to as few terminals as the limits allow."""
        groups: list[list[Node]] = []
        room = 0
        for node in nodes:
            size, levels = self._measure(node)
            if levels + 2 > _MAX_LEVELS:
                size = self._max_size
            if not groups or size >= room:
                groups.append([])
                room = self._max_size
            groups[-1].append(node)
            room -= size
        return [Term(make(group)) for group in groups]

    def _fits(self, node: Node) -> bool:
        size, levels = self._measure(node)
        return size <= self._max_size and levels <= _MAX_LEVELS

    def _measure(self, node: Node) -> tuple[int, int]:
        """Return the number of nodes, as an automaton needs them, and the nesting depth as a regular
        expression."""
        measure = self._measures.get(node)
        if measure is None:
            measure = self._measures[node] = self._measure_anew(node)
        return measure

    def _measure_anew(self, node: Node) -> tuple[int, int]:
        if isinstance(node, Text):
            return len(node.text), 2
        size, levels = 0, 0
        for child in children(node):
            measure = self._measure(child)
            size, levels = size + measure[0], max(levels, measure[1])
        if isinstance(node, Repeat):
            return size * Automaton.n_copies(node, size) + 1, levels + 2
        return size + 1, levels + 2


def _is_empty(node: Node) -> bool:
    return isinstance(node, Seq) and not node.items


def _without_terms(items: Iterable[Node]) -> list[Node]:
    return [item for item in items if not isinstance(item, Term)]


def _bottom_up(rules: dict[str, Node], root: str) -> list[str]:
    """Return the rules that `root` needs, each after those it references, except where they are recursive."""
    order: dict[str, None] = {}
    path = {root: iter(references(rules[root]))}
    while path:
        name = next(reversed(path))
        other = next(path[name], None)
        if other is None:
            del path[name]
            order[name] = None
        elif other not in path and other not in order:
            path[other] = iter(references(rules[other]))
    return list(order)


def _without_tail_recursion(name: str, node: Node) -> Node:
    """Rewrite X ::= A X | B as A* B, if X references itself only at the end of alternatives."""
    holders: set[Node] = set()
    _find_holders(name, node, holders)
    turns: list[Node] = []
    ends: list[Node] = []
    if node not in holders or not _find_tails(node, [], holders, turns, ends) or not ends:
        return node
    return seq_of([Repeat(alt_of(turns), 0, None), alt_of(ends)])


def _find_holders(name: str, node: Node, holders: set[Node]) -> bool:
    found = isinstance(node, Ref) and node.name == name
    for child in children(node):
        found = _find_holders(name, child, holders) or found
    if found:
        holders.add(node)
    return found


def _find_tails(
    node: Node, before: list[Node], holders: set[Node], turns: list[Node], ends: list[Node]
) -> bool:
    """Sort the node's alternatives into `turns`, which end with the rule, and `ends`; False if that is
    impossible."""
    if node not in holders:
        ends.append(seq_of([*before, node]))
        return True
    if isinstance(node, Ref):
        turns.append(seq_of(before))
        return True
    if isinstance(node, Seq):
        *head, tail = node.items
        if not holders.isdisjoint(head):
            return False
        return _find_tails(tail, [*before, *head], holders, turns, ends)
    if isinstance(node, Repeat):
        ends.append(seq_of(before))
        is_optional = (node.least, node.most) == (0, 1)
        return is_optional and _find_tails(node.item, before, holders, turns, ends)
    assert isinstance(node, Alt)
    for item in node.items:  # noqa: SIM110 (a generator would double the depth of the stack)
        if not _find_tails(item, before, holders, turns, ends):
            return False
    return True
