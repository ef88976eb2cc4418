"""Models without tool training: answers are JSON, either calls of functions or a response as text."""

from __future__ import annotations

from corral.chat.format import Format
from corral.chat.grammar import Grammar, any_of, calls_of, json_value, literal, repeat, seq
from corral.chat.json_text import collect_value, parse_json, read_call, read_call_list, read_string
from corral.chat.reader import Reader, ReaderSteps
from corral.chat.tool import ToolChoice, ToolUse

_INSTRUCTION = (
    "Reply with JSON only. To call functions write "
    '{"tool_calls": [{"name": "function name", "arguments": {...}}]}; '
    'to answer the user write {"response": "your answer"}.'
)


def _parse(reader: Reader, _use: ToolUse) -> ReaderSteps[None]:
    reader.begin_raw()
    yield from reader.skip_space()
    problem = (yield from _read_answer(reader)) if (yield from reader.accept("{")) else None
    if problem is None:
        reader.keep_raw()
    elif problem:
        reader.no_call(problem)
    else:
        reader.end_raw()
        yield from reader.accept_end("}")
    yield from reader.rest(reader.content)


def _read_answer(reader: Reader) -> ReaderSteps[str | None]:
    """Read an answer. Returns an error message or "" for a call, None if it is neither a call nor a
    response."""
    yield from reader.skip_space()
    key = parse_json((yield from collect_value(reader)))
    yield from reader.skip_space()
    yield from reader.accept(":")
    yield from reader.skip_space()
    if key == "response" and (yield from reader.next_char()) == '"':
        yield from read_string(reader, reader.content)
        return ""
    if key not in ("tool_calls", "tool_call"):
        return None
    return (yield from read_call_list(reader, read_call))


def _calls(g: Grammar, use: ToolUse) -> str:
    one = g.rule(calls_of(use, '{"name": "@", "arguments": ', "}"))
    calls = seq(literal('{"tool_calls": ['), repeat(use, one, literal(", ")), literal("]}"))
    if use.choice is ToolChoice.REQUIRED:
        return calls
    return any_of([calls, seq(literal('{"response": '), json_value({"type": "string"}), literal("}"))])


FORMAT = Format(
    name="generic",
    matches=lambda _: True,
    parse=_parse,
    calls=_calls,
    is_always_bound=True,
    instruction=_INSTRUCTION,
)
