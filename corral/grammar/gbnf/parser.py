"""Parse and check GBNF, llama.cpp's grammar format, and convert it to a Lark grammar for llguidance.

Guaranteed: the Lark grammar accepts exactly the texts of the GBNF grammar and has no dead ends (see
`lark`). Token references are exact among each other; if text could match the same token too, the reference
wins. Unlike in llama.cpp, text never matches a control token, items that can be empty may be repeated, and
an empty class, a reversed range or a repetition above `MAX_REPEAT` is an error. Pure: no native code, any
thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from corral.core.errors import InvalidRequest
from corral.grammar.gbnf.lark import render_lark
from corral.grammar.gbnf.node import (
    MAX_CHAR,
    SURROGATES,
    Alt,
    GbnfGrammar,
    Node,
    Ref,
    Repeat,
    Seq,
    Text,
    Token,
    alt_of,
    can_be_empty,
    chars_of,
    find_cycle,
    find_empty_rules,
    refusal,
    seq_of,
)

MAX_TEXT_BYTES = 1 << 20
MAX_RULES = 10_000
MAX_DEPTH = 100
MAX_REPEAT = 2_000
MAX_REPEAT_PRODUCT = 100_000

ROOT = "root"

_NAME = re.compile(r"[a-zA-Z0-9-]+")
_NUMBER = re.compile(r"[0-9]+")
_HEX = re.compile(r"[0-9a-fA-F]*")
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_OR_NEWLINE = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NEWLINE = re.compile(r"\r\n?|\n")
_TOKEN_ID = re.compile(r"<\[([0-9]{1,10})\]>")
_TOKEN_TEXT = re.compile(r"<(?!\[)[^>]*>")
_PLAIN = re.compile(r'[^"\\\ud800-\udfff]+')
_N_HEX = {"x": 2, "u": 4, "U": 8}
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}
_EMPTY_LITERAL = Seq()
_SHORT_REPEATS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def gbnf_to_lark(
    text: str,
    token_of: Callable[[str], int | None],
    *,
    n_tokens: int | None = None,
    end_tokens: Collection[int] = (),
    may_force: bool = False,
) -> str:
    """Convert the grammar. Raises InvalidRequest with place and reason.

    `end_tokens` end a generation; no token reference, negated or not, matches them. `may_force`: text
    without alternatives and recursion has only one tokenization.
    """
    parser = _Parser(text, token_of, MAX_CHAR if n_tokens is None else n_tokens, end_tokens)
    return render_lark(parser.parse(), ROOT, end_tokens, may_force)


@dataclass(frozen=True, slots=True)
class _Part:
    """A node with what the limits need: the depth of nested repetitions, and the product of their counts."""

    node: Node
    n_nested: int = 0
    product: int = 1


class _Parser:
    """Recursive descent parser; `parse` is called once."""

    def __init__(
        self,
        text: str,
        token_of: Callable[[str], int | None],
        n_tokens: int,
        end_tokens: Collection[int],
    ) -> None:
        if len(text.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:
            raise refusal(f"the grammar has more than {MAX_TEXT_BYTES} bytes")
        self._text = text
        self._token_of = token_of
        self._n_tokens = n_tokens
        self._end_tokens = end_tokens
        self._at = 0
        self._depth = 0
        self._rules: dict[str, Node] = {}
        self._defined_at: dict[str, int] = {}
        self._used_at: dict[str, int] = {}
        self._tokens: set[int] = set()

    def parse(self) -> GbnfGrammar:
        self._skip(_SPACE_OR_NEWLINE)
        while self._at < len(self._text):
            self._rule()
        for name, at in self._used_at.items():
            if name not in self._rules:
                raise self._error(f"rule '{name}' is not defined", at)
        if ROOT not in self._rules:
            raise refusal(f"the rule '{ROOT}' is missing")
        recursive = _find_left_recursion(self._rules)
        if recursive is not None:
            raise self._error(f"rule '{recursive}' is left-recursive", self._defined_at[recursive])
        return GbnfGrammar(
            self._rules, frozenset(self._tokens), lambda name: self._place(self._defined_at[name])
        )

    def _rule(self) -> None:
        at = self._at
        name = self._match(_NAME, "expected a rule name")
        self._skip(_SPACE)
        self._expect("::=")
        self._skip(_SPACE_OR_NEWLINE)
        # compat: grammar: the last definition of a rule wins
        self._rules[name] = self._alternatives(_SPACE).node
        self._defined_at[name] = at
        if len(self._rules) > MAX_RULES:
            raise self._error(f"the grammar has more than {MAX_RULES} rules", at)
        if self._at < len(self._text):
            self._match(_NEWLINE, "expected a newline or the end")
        self._skip(_SPACE_OR_NEWLINE)

    def _alternatives(self, space: re.Pattern[str]) -> _Part:
        parts = [self._sequence(space)]
        while self._next() == "|":
            self._at += 1
            self._skip(_SPACE_OR_NEWLINE)
            parts.append(self._sequence(space))
        node = alt_of([part.node for part in parts])
        return _Part(node, max(part.n_nested for part in parts), max(part.product for part in parts))

    def _sequence(self, space: re.Pattern[str]) -> _Part:
        nodes: list[Node] = []
        n_nested, product = 0, 1
        while (part := self._item()) is not None:
            self._skip(space)
            part = self._repeated(part, space)
            nodes.append(part.node)
            n_nested, product = max(n_nested, part.n_nested), max(product, part.product)
        return _Part(seq_of(nodes), n_nested, product)

    def _item(self) -> _Part | None:
        char = self._next()
        if char == '"':
            return _Part(self._literal())
        if char == "[":
            return _Part(self._class())
        if char == "(":
            return self._group()
        if char == ".":
            self._at += 1
            return _Part(chars_of((), negated=True))
        if char in ("<", "!"):
            return _Part(self._token())
        if _NAME.match(char):
            at = self._at
            name = self._match(_NAME, "")
            self._used_at.setdefault(name, at)
            return _Part(Ref(name))
        if char in ("*", "+", "?", "{"):
            raise self._nothing_to_repeat()
        return None

    def _group(self) -> _Part:
        self._at += 1
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._too_deep()
        self._skip(_SPACE_OR_NEWLINE)
        part = self._alternatives(_SPACE_OR_NEWLINE)
        self._expect(")")
        self._depth -= 1
        return part

    def _repeated(self, part: _Part, space: re.Pattern[str]) -> _Part:
        node, n_nested, product = part.node, part.n_nested, part.product
        while self._next() in ("*", "+", "?", "{"):
            at = self._at
            if node is _EMPTY_LITERAL:
                raise self._nothing_to_repeat()
            if n_nested == MAX_DEPTH:
                raise self._too_deep()
            least, most = self._bounds(space)
            self._skip(space)
            product *= max(1, least if most is None else most)
            if product > MAX_REPEAT_PRODUCT:
                raise self._error(f"nested repetitions multiply to more than {MAX_REPEAT_PRODUCT}", at)
            node = Seq() if most == 0 else Repeat(node, least, most)
            n_nested += 1
        return _Part(node, n_nested, product)

    def _bounds(self, space: re.Pattern[str]) -> tuple[int, int | None]:
        at = self._at
        short = _SHORT_REPEATS.get(self._next())
        self._at += 1
        if short is not None:
            return short
        self._skip(space)
        least = self._count(space)
        most: int | None = least
        if self._next() == ",":
            self._at += 1
            self._skip(space)
            most = None if self._next() == "}" else self._count(space)
        self._expect("}")
        if most is not None and most < least:
            raise self._error(f"the bounds of {{{least},{most}}} are in the wrong order", at)
        return least, most

    def _count(self, space: re.Pattern[str]) -> int:
        at = self._at
        digits = self._match(_NUMBER, "expected a number")
        self._skip(space)
        if len(digits) > 9 or int(digits) > MAX_REPEAT:
            raise self._error(f"repetition of more than {MAX_REPEAT}", at)
        return int(digits)

    def _literal(self) -> Node:
        self._at += 1
        chars: list[str] = []
        while self._next() != '"':
            plain = _PLAIN.match(self._text, self._at)
            if plain is None:
                chars.append(chr(self._char()))
            else:
                chars.append(plain[0])
                self._at = plain.end()
        self._at += 1
        return Text("".join(chars)) if chars else _EMPTY_LITERAL

    def _class(self) -> Node:
        at = self._at
        self._at += 1
        negated = self._next() == "^"
        self._at += negated
        ranges: list[tuple[int, int]] = []
        while self._next() != "]":
            place, low = self._at, self._char(in_class=True)
            high = low
            if self._next() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                high = self._char(in_class=True)
            if high < low:
                raise self._error("the ends of a range are in the wrong order", place)
            ranges.append((low, high))
        self._at += 1
        chars = chars_of(tuple(ranges), negated)
        if not ranges or not chars.ranges:
            raise self._error("a character class matches no character", at)
        return chars

    def _char(self, in_class: bool = False) -> int:
        at = self._at
        char = self._next()
        if not char:
            raise self._error("unexpected end of the grammar")
        self._at += 1
        if char == "\\":
            char = self._next()
            self._at += 1
            if char in _N_HEX:
                return self._hex(_N_HEX[char], at, in_class)
            if char not in _ESCAPED:
                raise self._error("unknown escape sequence", at)
            return ord(_ESCAPED[char])
        return self._checked_char(ord(char), at, in_class)

    def _hex(self, n: int, at: int, in_class: bool) -> int:
        found = _HEX.match(self._text, self._at, self._at + n)
        assert found is not None
        if len(found[0]) < n:
            raise self._error(f"expected {n} hexadecimal digits", self._at)
        self._at += n
        return self._checked_char(int(found[0], 16), at, in_class)

    def _checked_char(self, char: int, at: int, in_class: bool) -> int:
        is_surrogate = SURROGATES[0] <= char <= SURROGATES[1]
        if char > MAX_CHAR or (is_surrogate and not in_class):
            raise self._error(f"U+{char:04X} is not a character", at)
        return char

    def _token(self) -> Node:
        negated = self._next() == "!"
        self._at += negated
        at = self._at
        by_id = _TOKEN_ID.match(self._text, at)
        if by_id is not None:
            self._at = by_id.end()
            token: int | None = int(by_id[1])
        else:
            token = self._token_of(self._match(_TOKEN_TEXT, "expected a token, <text> or <[id]>"))
        if token is None or token >= self._n_tokens:
            raise self._error(f"{self._text[at : self._at]} is not a token of this model", at)
        if token in self._end_tokens and not negated:
            raise self._error(
                f"{self._text[at : self._at]} is an end-of-generation token, which cannot "
                "be a part of a grammar",
                at,
            )
        self._tokens.add(token)
        return Token(token, negated)

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self, space: re.Pattern[str]) -> None:
        found = space.match(self._text, self._at)
        assert found is not None
        self._at = found.end()

    def _match(self, pattern: re.Pattern[str], otherwise: str) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise self._error(otherwise)
        self._at = found.end()
        return found[0]

    def _expect(self, word: str) -> None:
        if not self._text.startswith(word, self._at):
            raise self._error(f"expected '{word}'")
        self._at += len(word)

    def _nothing_to_repeat(self) -> InvalidRequest:
        return self._error(f"there is nothing before '{self._next()}' to repeat")

    def _too_deep(self) -> InvalidRequest:
        return self._error(f"nested more than {MAX_DEPTH} deep")

    def _error(self, reason: str, at: int | None = None) -> InvalidRequest:
        return refusal(reason, self._place(self._at if at is None else at))

    def _place(self, at: int) -> tuple[int, int]:
        return self._text.count("\n", 0, at) + 1, at - self._text.rfind("\n", 0, at)


def _find_left_recursion(rules: dict[str, Node]) -> str | None:
    """Return a left-recursive rule, the first of those in a cycle; None if there is none."""
    empty = find_empty_rules(rules)
    cycle = find_cycle({name: _left_references(node, empty) for name, node in rules.items()})
    return next((name for name in rules if name in cycle), None)


def _left_references(node: Node, empty: set[str]) -> list[str]:
    """Return the rules that a text of the node can begin with."""
    found: dict[str, None] = {}
    pending = [node]
    while pending:
        part = pending.pop()
        if isinstance(part, Ref):
            found[part.name] = None
        elif isinstance(part, Repeat):
            pending.append(part.item)
        elif isinstance(part, Alt):
            pending += part.items
        elif isinstance(part, Seq):
            for item in part.items:
                pending.append(item)
                if not can_be_empty(item, empty):
                    break
    return list(found)
