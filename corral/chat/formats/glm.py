"""GLM 4.5 and later: `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`."""

from __future__ import annotations

from corral.chat.format import Format, has_all
from corral.chat.grammar import Grammar, any_of, literal, maybe, repeat, seq
from corral.chat.reader import CUT_OFF, NO_NAME, Reader, ReaderSteps, calls_parser
from corral.chat.tool import ToolUse
from corral.chat.xml_text import Tags, read_xml_arguments, xml_arguments

_BEGIN, _END = "<tool_call>", "</tool_call>"
_TAGS = Tags(
    key="<arg_key>", end_key="</arg_key>", value="<arg_value>", end_value="</arg_value>", end_call=_END
)


def _read_function(reader: Reader, use: ToolUse, _opening: str) -> ReaderSteps[str]:
    name, found = yield from reader.collect(_TAGS.key, _END)
    if found is None:
        return CUT_OFF
    if not name or "\n" in name:
        return NO_NAME
    reader.call(name)
    return (yield from read_xml_arguments(reader, use.find(name), _TAGS, found))


def _calls(g: Grammar, use: ToolUse) -> str:
    newline = maybe(literal("\n"))
    call = any_of(seq(literal(tool.name), newline, xml_arguments(g, tool, _TAGS)) for tool in use.tools)
    return repeat(use, g.rule(call), seq(newline, g.mark(_BEGIN)))


FORMAT = Format(
    name="glm",
    matches=has_all(_BEGIN, "<arg_key>", "<arg_value>"),
    parse=calls_parser((_BEGIN,), _read_function),
    calls=_calls,
    trigger=(_BEGIN,),
    markers=(_BEGIN, _END, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    has_single_arguments=True,
)
