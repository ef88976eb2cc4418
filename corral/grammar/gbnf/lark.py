"""Write a checked GBNF grammar as a Lark grammar for llguidance that accepts the same texts.

GBNF has only characters. Lark has terminals, which llguidance matches greedily and without backtracking.
So a part of the grammar becomes one terminal only if that changes nothing: first every part without
recursion becomes one; then those that `flow` finds to be overrun are cut there, repeatedly, in the worst
case into single characters, which cannot be overrun. A grammar without recursion and tokens remains one
regular expression.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from corral.grammar.gbnf.automaton import BudgetExceeded, StepBudget
from corral.grammar.gbnf.flow import Automata, find_overruns
from corral.grammar.gbnf.fold import cut, fold_rules, has_recursion
from corral.grammar.gbnf.node import (
    Alt,
    Chars,
    GbnfGrammar,
    Node,
    Ref,
    Repeat,
    Seq,
    Term,
    Text,
    Token,
    alt_of,
    count_leaves,
    map_leaves,
    refusal,
)

# llguidance compiles rules recursively, with about 3 KiB of stack per level.
MAX_RULE_DEPTH = 250

# llguidance has room for 65,000 symbols, which are single characters in the worst case.
MAX_CHARACTERS = 60_000

_MAX_REGEX_SIZE = 1 << 20
_MAX_TERMINAL_SIZE = 2_000
_ANALYSIS_STEPS = 300_000
_MAX_PARENTHESES = 8
_OTHER = -1
_UNSAFE = re.compile(r"[^a-zA-Z0-9]")

# Any tokenization of a text is accepted, as in llama.cpp. Looking for forced tokens takes up to 100 ms with
# recursive rules, and never ends if the recursion has no end.
_NO_FORCING = '%llguidance {"no_forcing": true}'


def render_lark(grammar: GbnfGrammar, root: str, end_tokens: Collection[int], may_force: bool) -> str:
    """Write the grammar. `may_force`: text without alternatives gets one tokenization only, so it can
    be forced."""
    tokens = _Tokens(grammar.tokens, end_tokens)
    rules = grammar.rules
    if grammar.tokens:
        rules = {name: map_leaves(node, tokens.split) for name, node in rules.items()}
    writer = _Writer(_find_terminals(rules, root), tokens)
    writer.write()
    if writer.depth() > MAX_RULE_DEPTH:
        raise refusal(f"the rules nest more than {MAX_RULE_DEPTH} deep", grammar.place_of(root))
    is_finite = isinstance(writer.root, Term) and not has_recursion(grammar.rules, root)
    return writer.text("" if may_force and is_finite else _NO_FORCING)


def _find_terminals(rules: dict[str, Node], root: str) -> dict[str, Node]:
    """Return the rules with the largest terminals that a greedy lexer cannot confuse."""
    folded = fold_rules(rules, root, _MAX_REGEX_SIZE)
    if isinstance(folded[root], Term):
        return folded
    try:
        return _cut_rules(fold_rules(rules, root, _MAX_TERMINAL_SIZE), root)
    except BudgetExceeded:
        if sum(count_leaves(node) for node in rules.values()) > MAX_CHARACTERS:
            raise refusal(f"too complex for more than {MAX_CHARACTERS} characters") from None
        return fold_rules(rules, root, 1)


def _cut_rules(rules: dict[str, Node], root: str) -> dict[str, Node]:
    automata = Automata(StepBudget(_ANALYSIS_STEPS))
    while overruns := find_overruns(rules, root, automata):
        pieces: dict[Node, Node] = {}
        for term, steps in overruns.items():
            pieces[term] = cut(term, steps, automata.of(term.node))
        rules = {name: _replace(node, pieces) for name, node in rules.items()}
    return rules


def _replace(node: Node, pieces: dict[Node, Node]) -> Node:
    return map_leaves(node, lambda leaf: pieces.get(leaf, leaf))


class _Tokens:
    """The vocabulary in disjoint sets: each token that the grammar names, and all others.

    llguidance takes the first of several matching token sets, so they must not overlap.
    """

    def __init__(self, named: frozenset[int], end_tokens: Collection[int]) -> None:
        self._named = named
        self._end_tokens = end_tokens

    def split(self, leaf: Node) -> Node:
        """Replace a negated token by the alternative of all sets but its own."""
        if not isinstance(leaf, Token) or not leaf.negated:
            return leaf
        ids = sorted(self._named.difference(self._end_tokens, {leaf.id}))
        return alt_of([Token(id) for id in (*ids, _OTHER)])

    def render(self, token: Token) -> str:
        if token.id != _OTHER:
            return f"<[{token.id}]>"
        excluded = sorted(self._named.union(self._end_tokens))
        return f"<[^{','.join(map(str, excluded))}]>"


class _Writer:
    """Writes Lark, rule by rule. A group deep in parentheses becomes a separate rule."""

    def __init__(self, rules: dict[str, Node], tokens: _Tokens) -> None:
        self._tokens = tokens
        self.root = next(iter(rules.values()))
        self._names = {name: f"r{i}" for i, name in enumerate(rules)}
        self._pending = [(self._names[name], node) for name, node in reversed(rules.items())]
        self._bodies: dict[str, str] = {}
        self._levels: dict[str, int] = {}
        self._uses: dict[str, dict[str, None]] = {}
        self._terminals: dict[str, str] = {}
        self._terminal_of: dict[Node, str] = {}
        self._rule = ""

    def write(self) -> None:
        while self._pending:
            self._rule, node = self._pending.pop()
            self._levels[self._rule] = 1
            self._uses[self._rule] = {}
            self._bodies[self._rule] = self._expression(node, 0)

    def text(self, options: str) -> str:
        lines = [options, "start: r0"] if options else ["start: r0"]
        lines += [f"{name}: {body}" for name, body in self._bodies.items()]
        lines += [f"{name}: /{regex}/" for regex, name in self._terminals.items()]
        return "\n".join(lines) + "\n"

    def depth(self) -> int:
        """Return the maximum recursion depth of llguidance over the rules."""
        seen = {"r0"}
        path = [("r0", iter(self._uses["r0"]))]
        depth = deepest = self._levels["r0"]
        while path:
            name, uses = path[-1]
            other = next((use for use in uses if use not in seen), None)
            if other is None:
                path.pop()
                depth -= self._levels[name]
            else:
                seen.add(other)
                path.append((other, iter(self._uses[other])))
                depth += self._levels[other]
                deepest = max(deepest, depth)
        return deepest

    def _expression(self, node: Node, level: int) -> str:
        if isinstance(node, Term):
            return self._terminal(node.node)
        if isinstance(node, Token):
            return self._tokens.render(node)
        if isinstance(node, Ref):
            return self._use(self._names[node.name])
        if isinstance(node, Repeat):
            return self._operand(node.item, level) + _repeat_suffix(node)
        if isinstance(node, Alt):
            return self._joined(node, " | ", level)
        assert isinstance(node, Seq)
        return self._joined(node, " ", level) or '""'

    def _joined(self, node: Seq | Alt, separator: str, level: int) -> str:
        parts: list[str] = []
        for item in node.items:
            is_group = isinstance(node, Seq) and isinstance(item, Alt)
            parts.append(self._operand(item, level) if is_group else self._expression(item, level))
        return separator.join(parts)

    def _operand(self, node: Node, level: int) -> str:
        if not isinstance(node, Seq | Alt | Repeat):
            return self._expression(node, level)
        if level < _MAX_PARENTHESES:
            self._levels[self._rule] = max(self._levels[self._rule], level + 2)
            return f"({self._expression(node, level + 1)})"
        name = f"g{len(self._pending) + len(self._bodies)}"
        self._pending.append((name, node))
        return self._use(name)

    def _use(self, name: str) -> str:
        self._uses[self._rule][name] = None
        return name

    def _terminal(self, node: Node) -> str:
        name = self._terminal_of.get(node)
        if name is None:
            regex = _regex(node)
            name = self._terminals.setdefault(regex, f"T{len(self._terminals)}") if regex else '""'
            self._terminal_of[node] = name
        return name


def _repeat_suffix(node: Repeat) -> str:
    short = {(0, None): "*", (1, None): "+", (0, 1): "?", (1, 1): ""}.get((node.least, node.most))
    if short is not None:
        return short
    if node.least == node.most:
        return f"{{{node.least}}}"
    return f"{{{node.least},{'' if node.most is None else node.most}}}"


def _regex(node: Node) -> str:
    if isinstance(node, Chars):
        return _regex_class(node)
    if isinstance(node, Text):
        return _UNSAFE.sub(lambda found: _regex_char(ord(found[0])), node.text)
    if isinstance(node, Seq):
        parts: list[str] = []
        for item in node.items:
            parts.append(f"(?:{_regex(item)})" if isinstance(item, Alt) else _regex(item))
        return "".join(parts)
    if isinstance(node, Alt):
        parts = []
        for item in node.items:
            parts.append(_regex(item))
        return "|".join(parts)
    assert isinstance(node, Repeat)
    inner = _regex(node.item)
    is_one = isinstance(node.item, Chars)
    return f"{inner if is_one else f'(?:{inner})'}{_repeat_suffix(node)}"


def _regex_class(chars: Chars) -> str:
    low, high = chars.ranges[0]
    if len(chars.ranges) == 1 and low == high:
        return _regex_char(low)
    ranges = [
        _regex_char(low) if low == high else f"{_regex_char(low)}-{_regex_char(high)}"
        for low, high in chars.ranges
    ]
    return f"[{''.join(ranges)}]"


def _regex_char(char: int) -> str:
    return chr(char) if not _UNSAFE.match(chr(char)) else f"\\x{{{char:x}}}"
