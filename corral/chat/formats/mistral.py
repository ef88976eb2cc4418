"""Mistral: `[TOOL_CALLS][{"name": ..., "arguments": ...}]`, in newer models `[TOOL_CALLS]name[ARGS]{...}`."""

from __future__ import annotations

from corral.chat.format import Format, has_all
from corral.chat.grammar import Grammar, any_of, calls_of, json_value, literal, maybe, repeat, seq
from corral.chat.json_text import read_arguments, read_call, read_call_list
from corral.chat.reader import CUT_OFF, NO_NAME, Reader, ReaderSteps, calls_parser
from corral.chat.tool import ToolUse

_BEGIN, _ID, _ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_ID_LETTERS = "/[a-zA-Z0-9]{9}/"


def _read(reader: Reader, _use: ToolUse, _opening: str) -> ReaderSteps[str]:
    is_list = (yield from reader.next_char()) in ("[", "{")
    return (yield from read_call_list(reader, read_call) if is_list else _read_named(reader))


def _read_named(reader: Reader) -> ReaderSteps[str]:
    id = ""
    name, found = yield from reader.collect(_ID, _ARGUMENTS)
    if found == _ID:
        id, found = yield from reader.collect(_ARGUMENTS)
    if not found:
        return CUT_OFF
    if not name:
        return NO_NAME
    reader.call(name, id)
    yield from reader.skip_space()
    return (yield from read_arguments(reader))


def _listed_calls(g: Grammar, use: ToolUse) -> str:
    id = maybe(literal(', "id": "'), _ID_LETTERS, literal('"'))
    call = g.rule(seq(calls_of(use, '{"name": "@", "arguments": ', ""), id, literal("}")))
    return seq(literal("["), repeat(use, call, literal(", ")), literal("]"))


def _named_calls(g: Grammar, use: ToolUse) -> str:
    call = any_of(
        seq(
            literal(tool.name),
            maybe(g.mark(_ID), _ID_LETTERS),
            g.mark(_ARGUMENTS),
            json_value(tool.parameters),
        )
        for tool in use.tools
    )
    return repeat(use, g.rule(call), g.mark(_BEGIN))


_PARSE = calls_parser((_BEGIN,), _read)
LISTED = Format(
    name="mistral",
    matches=has_all(_BEGIN),
    parse=_PARSE,
    calls=_listed_calls,
    trigger=(_BEGIN,),
    markers=(_BEGIN,),
    has_short_ids=True,
)
NAMED = Format(
    name="mistral-args",
    matches=has_all(_BEGIN, _ARGUMENTS),
    parse=_PARSE,
    calls=_named_calls,
    trigger=(_BEGIN,),
    markers=(_BEGIN, _ID, _ARGUMENTS),
    has_short_ids=True,
)
