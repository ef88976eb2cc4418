"""Qwen3-Coder: `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`.

Seed-OSS uses the same inner tags with other outer markers, and no line breaks around values.
"""

from __future__ import annotations

from corral.chat.format import Format, has_all
from corral.chat.grammar import Grammar, any_of, literal, repeat, seq
from corral.chat.reader import NO_NAME, Reader, ReaderSteps, calls_parser
from corral.chat.tool import ToolUse
from corral.chat.xml_text import Tags, read_xml_arguments, xml_arguments

_FUNCTION, _PARAMETER = "<function=", "<parameter="


def _tagged(name: str, begin: str, end: str, gap: str) -> Format:
    """Define a family with tags between two markers. `gap`: text around the value of a parameter."""
    tags = Tags(key=_PARAMETER, end_key=">", end_value="</parameter>", end_call="</function>", gap=gap)

    def read(reader: Reader, use: ToolUse, opening: str) -> ReaderSteps[str]:
        if opening == begin and (yield from reader.accept(_FUNCTION)) is None:
            return NO_NAME
        function, problem = yield from reader.announce(">")
        return problem or (yield from read_xml_arguments(reader, use.find(function), tags))

    def calls(g: Grammar, use: ToolUse) -> str:
        call = any_of(
            seq(literal(f"\n{_FUNCTION}{tool.name}>\n"), xml_arguments(g, tool, tags)) for tool in use.tools
        )
        one = g.rule(seq(call, literal("\n"), g.mark(end)))
        return repeat(use, one, seq(literal("\n"), g.mark(begin)))

    return Format(
        name=name,
        matches=has_all(begin, _FUNCTION, _PARAMETER),
        parse=calls_parser((begin, _FUNCTION), read, end),  # some models omit the outer marker
        calls=calls,
        trigger=(begin,),
        markers=(begin, end),
        has_single_arguments=True,
    )


FORMAT = _tagged("qwen3-coder", "<tool_call>", "</tool_call>", gap="\n")
SEED_OSS = _tagged("seed-oss", "<seed:tool_call>", "</seed:tool_call>", gap="")
