"""Find what precedes a JSON value in a grammar of answers: the text after which it begins."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

TextOf = Callable[[int], str]

_ATOM = re.compile(r'\s*("(?:[^"\\]|\\.)*"|/(?:[^/\\]|\\.)+/|<\[\d+\]>|%json |[()|]|[^\s()|]+)')
_decode = json.JSONDecoder().raw_decode

_Run = list[str | None]  # regular expressions in a row; None: something else


def find_openings(lark: str, schema: Any, text_of: TextOf) -> tuple[str, ...]:
    """Return regular expressions of the texts before values of a schema; `text_of`: of a control token."""
    found: dict[str, None] = {}
    for line in lark.splitlines():
        found |= dict.fromkeys(_openings(line.partition(": ")[2], schema, text_of))
    return tuple(found)


def _openings(body: str, schema: Any, text_of: TextOf) -> Iterator[str]:
    """Read one rule; `stack` has the alternatives of every open group."""
    stack: list[list[_Run]] = [[[]]]
    at = 0
    while match := _ATOM.match(body, at):
        at, atom = match.end(), match[1]
        if atom == "%json ":
            value, at = _decode(body, at)
            if value == schema:
                yield _join(stack[-1][-1])
            stack[-1][-1].append(None)
        elif atom == "(":
            stack.append([[]])
        elif atom == "|":
            stack[-1].append([])
        elif atom == ")":
            suffix = body[at : at + 1] if body[at : at + 1] in ("?", "*", "+") else ""
            at += len(suffix)
            stack[-2][-1].append(_group(stack.pop(), suffix))
        else:
            stack[-1][-1].append(_expression(atom, text_of))


def _expression(atom: str, text_of: TextOf) -> str | None:
    if atom.startswith('"'):
        return re.escape(str(json.loads(atom)))
    if atom.startswith("/"):
        return f"(?:{atom[1:-1]})"
    return re.escape(text_of(int(atom[2:-2]))) if atom.startswith("<[") else None


def _group(runs: list[_Run], suffix: str) -> str | None:
    if any(part is None for run in runs for part in run):
        return None
    return f"(?:{'|'.join(_join(run) for run in runs)}){suffix}"


def _join(run: _Run) -> str:
    """Return the expression of the end of a run, from the last unknown on."""
    known: list[str] = []
    for part in reversed(run):
        if part is None:
            break
        known.append(part)
    joined = "".join(reversed(known))
    if re.fullmatch(joined, ""):
        return ""
    # The name of a function must not be the end of a longer one.
    return rf"(?<![\w-]){joined}" if re.match(r"\w", joined) else joined
