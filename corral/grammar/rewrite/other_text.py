"""Build a regular expression for all texts but some, without look-around, which is not supported."""

from __future__ import annotations

from typing import Any

from corral.grammar.rewrite.part import NotExact

MAX_CHARS = 2000
_ANY = r"[\s\S]"
_SPECIAL = set("\\^$.|?*+()[]{}/-&~")

Trie = dict[str, Any]  # the subtree of each character; "" marks an end


def other_texts(texts: list[str]) -> str:
    """Return a pattern that matches every text except these."""
    if sum(map(len, texts)) > MAX_CHARS:
        raise NotExact(
            "not", f"more than {MAX_CHARS} characters are excluded", "list what is allowed instead"
        )
    trie: Trie = {}
    for text in texts:
        node = trie
        for char in text:
            node = node.setdefault(char, {})
        node[""] = True
    return f"^(?:{_others(trie)})$"


def one_of(texts: list[str]) -> str:
    """Return a pattern that matches only these texts."""
    return "^(?:" + "|".join("".join(map(escaped, text)) for text in texts) + ")$"


def escaped(char: str) -> str:
    return f"\\{char}" if char in _SPECIAL - set("&~-") else char


def _others(root: Trie) -> str:
    """Build the alternatives bottom-up; recursion would be limited by the length of a text."""
    order, waiting = [], [root]
    while waiting:
        node = waiting.pop()
        order.append(node)
        waiting += [child for char, child in node.items() if char]
    done: dict[int, str] = {}
    for node in reversed(order):
        nexts = [char for char in node if char]
        first = f"[^{''.join(map(_in_class, nexts))}]" if nexts else _ANY
        options = [f"{first}{_ANY}*", *(f"{escaped(c)}(?:{done[id(node[c])]})" for c in nexts)]
        done[id(node)] = "|".join(options if "" in node else ["", *options])
    return done[id(root)]


def _in_class(char: str) -> str:
    return f"\\{char}" if char in "\\^[]-" else char
