"""Small random grammars, and a reader of them that knows nothing of lexers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

REPEATS = [("*", 0, 99), ("+", 1, 99), ("?", 0, 1), ("{2}", 2, 2), ("{2,}", 2, 99), ("{1,3}", 1, 3)]
NAMES = ("root", "x", "y")


@st.composite
def grammars(draw, alphabet):
    """The rules by name; each begins with a character, most often, lest it be left-recursive."""
    rules = {}
    for name in NAMES:
        body = draw(parts(alphabet, 3))
        rules[name] = (
            Group((Word(draw(st.sampled_from(alphabet))), body), False) if draw(st.booleans()) else body
        )
    return rules


@st.composite
def parts(draw, alphabet, depth):
    kind = draw(st.sampled_from("wcnggar" if depth else "wwccn"))
    if kind == "w":
        return Word(draw(st.text(alphabet, max_size=3)))
    if kind == "c":
        chars = draw(st.sets(st.sampled_from(alphabet), min_size=1, max_size=2))
        return Word("".join(sorted(chars)), is_class=True)
    if kind == "n":
        return Rule(draw(st.sampled_from(NAMES)))
    if kind == "r":
        return Repeated(draw(parts(alphabet, depth - 1)), *draw(st.sampled_from(REPEATS)))
    items = draw(st.lists(parts(alphabet, depth - 1), min_size=2, max_size=3))
    return Group(tuple(items), is_alternative=kind == "a")


@dataclass(frozen=True)
class Word:
    """A part of a random grammar: a literal, or a class if `is_class`."""

    text: str
    is_class: bool = False

    def gbnf(self):
        return f"[{self.text}]" if self.is_class else f'"{self.text}"'

    def ends(self, at, reader):
        words = self.text if self.is_class else [self.text]
        return {at + len(word) for word in words if reader.text.startswith(word, at)}


@dataclass(frozen=True)
class Rule:
    name: str

    def gbnf(self):
        return self.name

    def ends(self, at, reader):
        return reader.ends(reader.rules[self.name], at)


@dataclass(frozen=True)
class Group:
    items: tuple
    is_alternative: bool

    def gbnf(self):
        return "(" + (" | " if self.is_alternative else " ").join(item.gbnf() for item in self.items) + ")"

    def ends(self, at, reader):
        if self.is_alternative:
            return set().union(*(reader.ends(item, at) for item in self.items))
        ends = {at}
        for item in self.items:
            ends = {end for start in ends for end in reader.ends(item, start)}
        return ends


@dataclass(frozen=True)
class Repeated:
    item: Any
    suffix: str
    least: int
    most: int

    def gbnf(self):
        return f"({self.item.gbnf()}){self.suffix}"

    def ends(self, at, reader):
        ends, found = {at}, set() if self.least else {at}
        for n in range(1, min(self.most, self.least + len(reader.text) + 1) + 1):
            ends = {end for start in ends for end in reader.ends(self.item, start)}
            found |= ends if n >= self.least else set()
        return found


class Reader:
    """The reference: where can a part of the grammar end that begins here?"""

    def __init__(self, rules, text):
        self.rules = rules
        self.text = text
        self._known = {}

    def accepts(self):
        return len(self.text) in self.ends(Rule("root"), 0)

    def ends(self, part, at):
        key = (id(part), at)
        if key not in self._known:
            self._known[key] = part.ends(at, self)
        return self._known[key]
