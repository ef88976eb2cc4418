"""MiniMax M2: `<minimax:tool_call><invoke name="..."><parameter name="...">value</parameter></invoke>...`."""

from __future__ import annotations

from corral.chat.format import Format, has_all
from corral.chat.grammar import Grammar, any_of, literal, repeat, seq
from corral.chat.reader import NO_NAME, Reader, ReaderSteps, calls_parser
from corral.chat.tool import ToolUse
from corral.chat.xml_text import Tags, read_xml_arguments, xml_arguments

_BEGIN, _END = "<minimax:tool_call>", "</minimax:tool_call>"
_INVOKE = '<invoke name="'
_TAGS = Tags(key='<parameter name="', end_key='">', end_value="</parameter>", end_call="</invoke>")


def _read_block(reader: Reader, use: ToolUse, _opening: str) -> ReaderSteps[str]:
    """Read calls up to the end of the block or of the text."""
    while True:
        yield from reader.skip_space()
        if problem := (yield from _read_invoke(reader, use)):
            return problem
        reader.begin_raw()
        if (yield from reader.accept_end(_END)) is not None:
            return ""


def _read_invoke(reader: Reader, use: ToolUse) -> ReaderSteps[str]:
    if (yield from reader.accept(_INVOKE)) is None:
        return NO_NAME
    name, problem = yield from reader.announce('">')
    return problem or (yield from read_xml_arguments(reader, use.find(name), _TAGS))


def _calls(g: Grammar, use: ToolUse) -> str:
    call = any_of(
        seq(literal(f'{_INVOKE}{tool.name}">\n'), xml_arguments(g, tool, _TAGS)) for tool in use.tools
    )
    newline = literal("\n")
    return seq(newline, repeat(use, g.rule(call), newline), newline, g.mark(_END))


FORMAT = Format(
    name="minimax",
    matches=has_all(_BEGIN, "<invoke name="),
    parse=calls_parser((_BEGIN,), _read_block),
    calls=_calls,
    trigger=(_BEGIN,),
    markers=(_BEGIN, _END),
    has_single_arguments=True,
)
