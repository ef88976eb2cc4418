"""GLM 4.5 and later: `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`."""

from __future__ import annotations

from corral.chat.format import Format, has_all
from corral.chat.grammar import Grammar, any_of, literal, repeat, seq
from corral.chat.reader import Reader, Steps
from corral.chat.tool import ToolUse
from corral.chat.xml_text import Tags, read_xml_arguments, xml_arguments

_BEGIN, _END = "<tool_call>", "</tool_call>"
_TAGS = Tags(
    key="<arg_key>", end_key="</arg_key>", value="<arg_value>", end_value="</arg_value>", end_call=_END
)


def _parse(reader: Reader, use: ToolUse) -> Steps[None]:
    while (yield from reader.until((_BEGIN,), reader.content)):
        reader.begin_raw()
        problem = yield from _read_function(reader, use)
        if problem:
            reader.no_call(problem, _BEGIN)
        else:
            reader.end_raw()


def _read_function(reader: Reader, use: ToolUse) -> Steps[str]:
    parts: list[str] = []
    found = yield from reader.until((_TAGS.key, _END), parts.append)
    name = "".join(parts).strip()
    if found is None:
        return "it is cut off"
    if not name or "\n" in name:
        return "it names no function"
    reader.call(name)
    return (yield from read_xml_arguments(reader, use.find(name), _TAGS, found))


def _calls(g: Grammar, use: ToolUse) -> str:
    call = any_of(seq(literal(f"{tool.name}\n"), xml_arguments(g, tool, _TAGS)) for tool in use.tools)
    return repeat(use, g.rule(call), seq(literal("\n"), g.mark(_BEGIN)))


FORMAT = Format(
    name="glm",
    matches=has_all(_BEGIN, "<arg_key>", "<arg_value>"),
    parse=_parse,
    calls=_calls,
    trigger=(_BEGIN,),
    markers=(_BEGIN, _END, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)
