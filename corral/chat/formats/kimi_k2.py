"""Kimi K2: `<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>`."""

from __future__ import annotations

from corral.chat.format import Format, has_all
from corral.chat.grammar import Grammar, any_of, json_value, literal, repeat, seq
from corral.chat.json_text import read_arguments
from corral.chat.reader import CUT_OFF, NO_NAME, Reader, ReaderSteps, calls_parser
from corral.chat.tool import ToolUse

_ALL_BEGIN, _ALL_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_BEGIN, _ARGUMENTS, _END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"


def _read_function(reader: Reader, _use: ToolUse, opening: str) -> ReaderSteps[str]:
    if opening == _ALL_BEGIN:
        yield from reader.accept(_BEGIN)
    id, found = yield from reader.collect(_ARGUMENTS)
    if not found:
        return CUT_OFF
    function = id.removeprefix("functions.")
    name = function.rpartition(":")[0] or function
    if not name:
        return NO_NAME
    reader.call(name, id)
    yield from reader.skip_space()
    problem = yield from read_arguments(reader)
    if not problem:
        yield from reader.accept_end(_END)
    return problem


def _calls(g: Grammar, use: ToolUse) -> str:
    call = any_of(
        seq(
            literal(f"functions.{tool.name}:"),
            "/[0-9]{1,3}/",
            g.mark(_ARGUMENTS),
            json_value(tool.parameters),
        )
        for tool in use.tools
    )
    one = g.rule(seq(g.mark(_BEGIN), call, g.mark(_END)))
    return seq(repeat(use, one, ""), g.mark(_ALL_END))


FORMAT = Format(
    name="kimi-k2",
    matches=has_all(_ALL_BEGIN, _BEGIN),
    parse=calls_parser((_ALL_BEGIN, _BEGIN), _read_function, _ALL_END),
    calls=_calls,
    trigger=(_ALL_BEGIN,),
    markers=(_ALL_BEGIN, _ALL_END, _BEGIN, _ARGUMENTS, _END),
)
