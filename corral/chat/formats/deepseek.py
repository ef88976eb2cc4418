"""DeepSeek R1, V3 and V3.1: calls between `<｜tool▁call▁begin｜>` and `<｜tool▁call▁end｜>`."""

from __future__ import annotations

from corral.chat.format import Format, has_all
from corral.chat.grammar import Grammar, any_of, json_value, literal, maybe, repeat, seq
from corral.chat.json_text import read_arguments
from corral.chat.reader import CUT_OFF, NO_NAME, Reader, ReaderSteps, calls_parser
from corral.chat.tool import ToolUse

_ALL_BEGIN, _ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_BEGIN, _SEPARATOR, _END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_MARKERS = (_ALL_BEGIN, _ALL_END, _BEGIN, _SEPARATOR, _END)


def _read_function(reader: Reader, _use: ToolUse, opening: str) -> ReaderSteps[str]:
    """Read `function`, the separator and the name on its own line, or only the name and the separator."""
    if opening == _ALL_BEGIN:
        yield from reader.accept(_BEGIN)
    name, found = yield from reader.collect(_SEPARATOR)
    yield from reader.skip_space()
    if found and (yield from reader.next_char()) != "{":
        name, found = yield from reader.collect("\n")
        yield from reader.accept("```json")
        yield from reader.skip_space()
    if not found:
        return CUT_OFF
    if not name:
        return NO_NAME
    reader.call(name)
    problem = yield from read_arguments(reader)
    if not problem:
        yield from reader.accept_end("```")
        yield from reader.accept_end(_END)
    return problem


def _fenced_calls(g: Grammar, use: ToolUse) -> str:
    newline = maybe(literal("\n"))
    call = any_of(
        seq(literal(f"{tool.name}\n```json\n"), json_value(tool.parameters), newline, literal("```"))
        for tool in use.tools
    )
    one = g.rule(seq(g.mark(_BEGIN), literal("function"), g.mark(_SEPARATOR), call, g.mark(_END)))
    return seq(repeat(use, one, newline), g.mark(_ALL_END))


def _plain_calls(g: Grammar, use: ToolUse) -> str:
    call = any_of(
        seq(literal(tool.name), g.mark(_SEPARATOR), json_value(tool.parameters)) for tool in use.tools
    )
    one = g.rule(seq(g.mark(_BEGIN), call, g.mark(_END)))
    return seq(repeat(use, one, ""), g.mark(_ALL_END))


_PARSE = calls_parser((_ALL_BEGIN, _BEGIN), _read_function, _ALL_END)
FENCED = Format(
    name="deepseek",
    matches=has_all(_ALL_BEGIN, "```json"),
    parse=_PARSE,
    calls=_fenced_calls,
    trigger=(_ALL_BEGIN,),
    markers=_MARKERS,
)
PLAIN = Format(
    name="deepseek-v3.1",
    matches=has_all(_ALL_BEGIN),
    parse=_PARSE,
    calls=_plain_calls,
    trigger=(_ALL_BEGIN,),
    markers=_MARKERS,
)
