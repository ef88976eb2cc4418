"""Families whose calls are a JSON list between two marks."""

from __future__ import annotations

from collections.abc import Callable

from corral.chat.format import Format
from corral.chat.grammar import Grammar, calls_of, literal, repeat, seq
from corral.chat.json_text import read_call, read_call_list
from corral.chat.reader import Reader, ReaderSteps, read_calls
from corral.chat.tool import ToolUse


def listed_format(name: str, matches: Callable[[str], bool], begin: str, end: str = "") -> Format:
    """`begin [{"name": ..., "arguments": ...}, ...] end`."""

    def parse(reader: Reader, _use: ToolUse) -> ReaderSteps[None]:
        return read_calls(reader, (begin,), lambda _: read_call_list(reader, read_call), end)

    def calls(g: Grammar, use: ToolUse) -> str:
        one = g.rule(calls_of(use, '{"name": "@", "arguments": ', "}"))
        return seq(literal("["), repeat(use, one, literal(", ")), literal("]"), g.mark(end) if end else "")

    markers = (begin, end) if end else (begin,)
    return Format(name=name, matches=matches, parse=parse, calls=calls, trigger=(begin,), markers=markers)
