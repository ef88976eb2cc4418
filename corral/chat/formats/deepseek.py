"""DeepSeek R1, V3 and V3.1: calls between `<｜tool▁call▁begin｜>` and `<｜tool▁call▁end｜>`."""

from __future__ import annotations

from corral.chat.format import Format, has_all
from corral.chat.grammar import Grammar, any_of, json_value, literal, repeat, seq
from corral.chat.json_text import read_arguments
from corral.chat.reader import Reader, Steps
from corral.chat.tool import ToolUse

_ALL_BEGIN, _ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_BEGIN, _SEPARATOR, _END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_MARKERS = (_ALL_BEGIN, _ALL_END, _BEGIN, _SEPARATOR, _END)


def _parse(reader: Reader, _use: ToolUse) -> Steps[None]:
    while opening := (yield from reader.until((_ALL_BEGIN, _BEGIN), reader.content)):
        reader.begin_raw()
        if opening == _ALL_BEGIN:
            yield from reader.skip_space()
            yield from reader.accept(_BEGIN)
        problem = yield from _read_function(reader)
        if problem:
            reader.no_call(problem, opening)
            continue
        reader.end_raw()
        yield from reader.skip_space()
        yield from reader.accept(_ALL_END)


def _read_function(reader: Reader) -> Steps[str]:
    """`function`, the separator and the name on a line of its own, or just the name and the separator."""
    first: list[str] = []
    if (yield from reader.until((_SEPARATOR,), first.append)) is None:
        return "it is cut off"
    name = "".join(first).strip()
    yield from reader.skip_space()
    if (yield from reader.next_char()) != "{":
        line: list[str] = []
        if (yield from reader.until(("\n",), line.append)) is None:
            return "it is cut off"
        name = "".join(line).strip()
        yield from reader.accept("```json")
        yield from reader.skip_space()
    reader.call(name)
    problem = yield from read_arguments(reader)
    if not problem:
        yield from reader.until((_END,), lambda _: None)
    return problem


def _fenced_calls(g: Grammar, use: ToolUse) -> str:
    call = any_of(
        seq(literal(f"{tool.name}\n```json\n"), json_value(tool.parameters), literal("\n```"))
        for tool in use.tools
    )
    one = g.rule(seq(g.mark(_BEGIN), literal("function"), g.mark(_SEPARATOR), call, g.mark(_END)))
    return seq(repeat(use, one, literal("\n")), g.mark(_ALL_END))


def _plain_calls(g: Grammar, use: ToolUse) -> str:
    call = any_of(
        seq(literal(tool.name), g.mark(_SEPARATOR), json_value(tool.parameters)) for tool in use.tools
    )
    one = g.rule(seq(g.mark(_BEGIN), call, g.mark(_END)))
    return seq(repeat(use, one, ""), g.mark(_ALL_END))


FENCED = Format(
    name="deepseek",
    matches=has_all(_ALL_BEGIN, "```json"),
    parse=_parse,
    calls=_fenced_calls,
    trigger=(_ALL_BEGIN,),
    markers=_MARKERS,
)
PLAIN = Format(
    name="deepseek-v3.1",
    matches=has_all(_ALL_BEGIN),
    parse=_parse,
    calls=_plain_calls,
    trigger=(_ALL_BEGIN,),
    markers=_MARKERS,
)
