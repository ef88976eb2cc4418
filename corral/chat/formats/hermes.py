"""Hermes, Qwen 2.5 and 3, and many more: `<tool_call>{"name": ..., "arguments": ...}</tool_call>`."""

from __future__ import annotations

from corral.chat.format import Format, has_all
from corral.chat.grammar import Grammar, calls_of, literal, maybe, repeat, seq
from corral.chat.json_text import read_call, read_call_list
from corral.chat.reader import calls_parser
from corral.chat.tool import ToolUse

_BEGIN, _END = "<tool_call>", "</tool_call>"


def _calls(g: Grammar, use: ToolUse) -> str:
    newline = maybe(literal("\n"))
    call = g.rule(seq(newline, calls_of(use, '{"name": "@", "arguments": ', "}"), newline, g.mark(_END)))
    return repeat(use, call, seq(newline, g.mark(_BEGIN)))


FORMAT = Format(
    name="hermes",
    matches=has_all(_BEGIN),
    parse=calls_parser((_BEGIN,), lambda reader, *_: read_call_list(reader, read_call), _END),
    calls=_calls,
    trigger=(_BEGIN,),
    markers=(_BEGIN, _END),
)
