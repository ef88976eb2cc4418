"""Hermes, Qwen 2.5 and 3, and many more: `<tool_call>{"name": ..., "arguments": ...}</tool_call>`."""

from __future__ import annotations

from corral.chat.format import Format, has_all
from corral.chat.grammar import Grammar, calls_of, literal, repeat, seq
from corral.chat.json_text import read_call
from corral.chat.reader import Reader, Steps
from corral.chat.tool import ToolUse

_BEGIN, _END = "<tool_call>", "</tool_call>"


def _parse(reader: Reader, _use: ToolUse) -> Steps[None]:
    while (yield from reader.until((_BEGIN,), reader.content)):
        reader.begin_raw()
        yield from reader.skip_space()
        problem = yield from read_call(reader)
        if problem:
            reader.no_call(problem, _BEGIN)
            continue
        reader.end_raw()
        yield from reader.skip_space()
        yield from reader.accept(_END)


def _calls(g: Grammar, use: ToolUse) -> str:
    call = g.rule(seq(calls_of(use, '\n{"name": "@", "arguments": ', "}\n"), g.mark(_END)))
    return repeat(use, call, seq(literal("\n"), g.mark(_BEGIN)))


FORMAT = Format(
    name="hermes",
    matches=has_all(_BEGIN),
    parse=_parse,
    calls=_calls,
    trigger=(_BEGIN,),
    markers=(_BEGIN, _END),
)
