"""Mistral: `[TOOL_CALLS][{"name": ..., "arguments": ...}]`, in newer models `[TOOL_CALLS]name[ARGS]{...}`."""

from __future__ import annotations

from corral.chat.format import Format, has_all
from corral.chat.grammar import Grammar, any_of, calls_of, json_value, literal, repeat, seq
from corral.chat.json_text import read_arguments, read_call, read_call_list
from corral.chat.reader import Reader, Steps
from corral.chat.tool import ToolUse

_BEGIN, _ID, _ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


def _parse(reader: Reader, _use: ToolUse) -> Steps[None]:
    while (yield from reader.until((_BEGIN,), reader.content)):
        reader.begin_raw()
        yield from reader.skip_space()
        is_list = (yield from reader.next_char()) in ("[", "{")
        problem = yield from (read_call_list(reader, read_call) if is_list else _read_named(reader))
        if problem:
            reader.no_call(problem, _BEGIN)
        else:
            reader.end_raw()
            yield from reader.skip_space()


def _read_named(reader: Reader) -> Steps[str]:
    name: list[str] = []
    id: list[str] = []
    found = yield from reader.until((_ID, _ARGUMENTS), name.append)
    if found == _ID:
        found = yield from reader.until((_ARGUMENTS,), id.append)
    function = "".join(name).strip()
    if found is None or not function:
        return "it is cut off"
    reader.call(function, "".join(id).strip())
    yield from reader.skip_space()
    return (yield from read_arguments(reader))


def _listed_calls(g: Grammar, use: ToolUse) -> str:
    call = g.rule(calls_of(use, '{"name": "@", "arguments": ', "}"))
    return seq(literal("["), repeat(use, call, literal(", ")), literal("]"))


def _named_calls(g: Grammar, use: ToolUse) -> str:
    call = any_of(
        seq(literal(tool.name), g.mark(_ARGUMENTS), json_value(tool.parameters)) for tool in use.tools
    )
    return repeat(use, g.rule(call), g.mark(_BEGIN))


LISTED = Format(
    name="mistral",
    matches=has_all(_BEGIN),
    parse=_parse,
    calls=_listed_calls,
    trigger=(_BEGIN,),
    markers=(_BEGIN,),
    has_short_ids=True,
)
NAMED = Format(
    name="mistral-args",
    matches=has_all(_BEGIN, _ARGUMENTS),
    parse=_parse,
    calls=_named_calls,
    trigger=(_BEGIN,),
    markers=(_BEGIN, _ID, _ARGUMENTS),
    has_short_ids=True,
)
