"""Functionary v3.2 writes `>>>name` and arguments, v3.1 `<function=name>{...}</function>`."""

from __future__ import annotations

from corral.chat.code_text import RUNNERS, find_runner, read_code
from corral.chat.format import Format, has_all
from corral.chat.grammar import Grammar, any_of, calls_of, json_value, literal, repeat, seq
from corral.chat.json_text import read_arguments
from corral.chat.reader import Reader, ReaderSteps, calls_parser
from corral.chat.tool import ToolUse

_TURN = ">>>"
_FUNCTION, _END = "<function=", "</function>"
_CODE = "<|python_tag|>"


def _parse_turns(reader: Reader, use: ToolUse) -> ReaderSteps[None]:
    """Parse turns. The prompt ends with the first `>>>`; the recipient `all` is not a function but the
    user."""
    opening: str | None = ""
    while opening is not None:
        reader.begin_raw(opening)
        name, found = yield from reader.collect("\n")
        if name == "all":
            reader.end_raw()
        elif not found or name not in use.names:
            reader.keep_raw()
        elif problem := (yield from _read_turn(reader, name)):
            reader.no_call(problem)
        else:
            reader.end_raw()
        opening = yield from reader.until((_TURN,), reader.content)


def _read_turn(reader: Reader, name: str) -> ReaderSteps[str]:
    reader.call(name)
    yield from reader.skip_space()
    if name in RUNNERS and (yield from reader.next_char()) != "{":
        yield from read_code(reader)
        return ""
    return (yield from read_arguments(reader))


def _turn_calls(g: Grammar, use: ToolUse) -> str:
    one = g.rule(any_of(seq(literal(f"{tool.name}\n"), json_value(tool.parameters)) for tool in use.tools))
    return repeat(use, one, literal(_TURN))


def _read_tag(reader: Reader, use: ToolUse, opening: str) -> ReaderSteps[str]:
    if opening == _CODE:
        runner = find_runner(use)
        if runner is None:
            return "it is code, but no function runs code"
        reader.call(runner)
        yield from read_code(reader)
        return ""
    _, problem = yield from reader.announce(">")
    yield from reader.skip_space()
    return problem or (yield from read_arguments(reader))


def _tag_calls(g: Grammar, use: ToolUse) -> str:
    return repeat(use, g.rule(calls_of(use, "@>", _END)), literal(_FUNCTION))


TURNS = Format(
    name="functionary-v3.2",
    matches=has_all(">>>all"),
    parse=_parse_turns,
    calls=_turn_calls,
    wrap=lambda _, answer: seq(literal("all\n"), answer),
    wraps_content=True,
)
TAGS = Format(
    name="functionary-v3.1",
    matches=has_all("<function=", "</function>"),
    parse=calls_parser((_FUNCTION, _CODE), _read_tag, _END),
    calls=_tag_calls,
    trigger=(_FUNCTION,),
    markers=(_CODE,),
)
