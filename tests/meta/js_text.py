"""Strings and templates of JavaScript source, as far as tests of the pages need them."""

from __future__ import annotations

import re
from collections.abc import Iterator

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_STRING = re.compile(r"""(["'])((?:\\.|(?!\1)[^\\\n])*)\1""")
_REGEX = re.compile(r"/(?![/*])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n\[])+/[a-z]*")
_BEFORE_REGEX = re.compile(r"(?:^|[=(,:;!&|?{}\[+>\n]|\breturn|\btypeof)\s*$")


def literals(source: str) -> Iterator[tuple[str, str, str]]:
    """Yield the kind (`string`, `template` or the tag of a template), the text and what is before it.

    Substitutions in a template are `{}` in its text, and yielded before it.
    """
    yield from _scan(source, 0, "")[1]


def _scan(source: str, at: int, end: str) -> tuple[int, list[tuple[str, str, str]]]:
    """Read code up to an unmatched `end`."""
    found: list[tuple[str, str, str]] = []
    depth, begin = 0, at
    while at < len(source):
        before = source[max(begin, at - 80) : at]
        if match := _COMMENT.match(source, at):
            at = match.end()
        elif match := _STRING.match(source, at):
            found.append(("string", match[2], before))
            at = match.end()
        elif source[at] == "`":
            at = _template(source, at + 1, before, found)
        elif source[at] == "/" and _BEFORE_REGEX.search(before) and (match := _REGEX.match(source, at)):
            at = match.end()
        elif source[at] == end and depth == 0:
            return at + 1, found
        else:
            depth += {"{": 1, "}": -1}.get(source[at], 0)
            at += 1
    return at, found


def _template(source: str, at: int, before: str, found: list[tuple[str, str, str]]) -> int:
    tag = re.search(r"(\w+)$", before)
    text = ""
    while source[at] != "`":
        if source.startswith("${", at):
            at, inner = _scan(source, at + 2, "}")
            found.extend(inner)
            text += "{}"
            continue
        n = 2 if source[at] == "\\" else 1
        text += source[at : at + n]
        at += n
    found.append((tag[1] if tag else "template", text, before))
    return at + 1
