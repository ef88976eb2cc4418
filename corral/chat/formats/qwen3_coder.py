"""Qwen3-Coder: `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`."""

from __future__ import annotations

from corral.chat.format import Format, has_all
from corral.chat.grammar import Grammar, any_of, literal, repeat, seq
from corral.chat.reader import Reader, Steps
from corral.chat.tool import ToolUse
from corral.chat.xml_text import Tags, read_xml_arguments, xml_arguments

_BEGIN, _END, _FUNCTION = "<tool_call>", "</tool_call>", "<function="
_TAGS = Tags(key="<parameter=", end_key=">", end_value="</parameter>", end_call="</function>", gap="\n")


def _parse(reader: Reader, use: ToolUse) -> Steps[None]:
    # Some forget the outer tag.
    while opening := (yield from reader.until((_BEGIN, _FUNCTION), reader.content)):
        reader.begin_raw()
        problem = yield from _read_function(reader, use, is_open=opening == _FUNCTION)
        if problem:
            reader.no_call(problem, opening)
            continue
        reader.end_raw()
        yield from reader.skip_space()
        yield from reader.accept(_END)


def _read_function(reader: Reader, use: ToolUse, is_open: bool) -> Steps[str]:
    if not is_open:
        yield from reader.skip_space()
        if (yield from reader.accept(_FUNCTION)) is None:
            return "it names no function"
    name: list[str] = []
    if (yield from reader.until((">",), name.append)) is None:
        return "it is cut off"
    function = "".join(name).strip()
    reader.call(function)
    return (yield from read_xml_arguments(reader, use.find(function), _TAGS))


def _calls(g: Grammar, use: ToolUse) -> str:
    call = any_of(
        seq(literal(f"\n{_FUNCTION}{tool.name}>\n"), xml_arguments(g, tool, _TAGS)) for tool in use.tools
    )
    one = g.rule(seq(call, literal("\n"), g.mark(_END)))
    return repeat(use, one, seq(literal("\n"), g.mark(_BEGIN)))


FORMAT = Format(
    name="qwen3-coder",
    matches=has_all(_BEGIN, _FUNCTION, "<parameter="),
    parse=_parse,
    calls=_calls,
    trigger=(_BEGIN,),
    markers=(_BEGIN, _END),
)
