"""Functionary v3.2 writes `>>>name` and arguments, v3.1 `<function=name>{...}</function>`."""

from __future__ import annotations

import json

from corral.chat.format import Format, has_all
from corral.chat.grammar import Grammar, any_of, calls_of, json_value, literal, repeat, seq
from corral.chat.json_text import read_arguments
from corral.chat.reader import Reader, Steps
from corral.chat.tool import ToolUse

_TURN = ">>>"
_FUNCTION, _END = "<function=", "</function>"


def _parse_turns(reader: Reader, use: ToolUse) -> Steps[None]:
    """The prompt ends with the first `>>>`; `all` is not a function but the reader of the answer."""
    while True:
        reader.begin_raw()
        line: list[str] = []
        if (yield from reader.until(("\n",), line.append)) is None:
            reader.keep_raw()
            return
        name = "".join(line).strip()
        if name not in use.names:
            if name == "all":
                reader.end_raw()
            else:
                reader.keep_raw()
            if (yield from reader.until((_TURN,), reader.content)) is None:
                return
            continue
        reader.call(name)
        problem = yield from _read_turn(reader)
        if problem:
            reader.no_call(problem)
        else:
            reader.end_raw()
        if (yield from reader.until((_TURN,), reader.content)) is None:
            return


def _read_turn(reader: Reader) -> Steps[str]:
    yield from reader.skip_space()
    if (yield from reader.next_char()) == "{":
        return (yield from read_arguments(reader))
    code: list[str] = []
    yield from reader.rest(code.append)
    reader.arguments(json.dumps({"code": "".join(code)}, ensure_ascii=False))
    return ""


def _turn_calls(g: Grammar, use: ToolUse) -> str:
    one = g.rule(any_of(seq(literal(f"{tool.name}\n"), json_value(tool.parameters)) for tool in use.tools))
    return repeat(use, one, literal(_TURN))


def _parse_tags(reader: Reader, _use: ToolUse) -> Steps[None]:
    while (yield from reader.until((_FUNCTION,), reader.content)):
        reader.begin_raw()
        name: list[str] = []
        problem = "it is cut off"
        if (yield from reader.until((">",), name.append)):
            reader.call("".join(name).strip())
            yield from reader.skip_space()
            problem = yield from read_arguments(reader)
        if problem:
            reader.no_call(problem, _FUNCTION)
            continue
        reader.end_raw()
        yield from reader.skip_space()
        yield from reader.accept(_END)


def _tag_calls(g: Grammar, use: ToolUse) -> str:
    return repeat(use, g.rule(calls_of(use, "@>", _END)), literal(_FUNCTION))


TURNS = Format(
    name="functionary-v3.2",
    matches=has_all(">>>all"),
    parse=_parse_turns,
    calls=_turn_calls,
    wraps_content=True,
)
TAGS = Format(
    name="functionary-v3.1",
    matches=has_all("<function=", "</function>"),
    parse=_parse_tags,
    calls=_tag_calls,
    trigger=(_FUNCTION,),
)
