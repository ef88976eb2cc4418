"""Command R7B and later: `<|START_ACTION|>[{"tool_name": ..., "parameters": ...}]<|END_ACTION|>`."""

from __future__ import annotations

from corral.chat.format import Format, has_all
from corral.chat.grammar import GAP, Grammar, calls_of, literal, repeat, seq
from corral.chat.json_text import read_call, read_call_list
from corral.chat.reader import Reader, ReaderSteps
from corral.chat.tool import ToolUse

_BEGIN, _END = "<|START_ACTION|>", "<|END_ACTION|>"
_ANSWERS = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")


def _parse(reader: Reader, _use: ToolUse) -> ReaderSteps[None]:
    while found := (yield from reader.until((_BEGIN, *_ANSWERS), reader.content)):
        if found != _BEGIN:
            continue
        reader.begin_raw(_BEGIN)
        yield from reader.skip_space()
        if problem := (yield from read_call_list(reader, _read)):
            reader.no_call(problem)
            continue
        reader.end_raw()
        yield from reader.accept_end(_END)


def _read(reader: Reader) -> ReaderSteps[str]:
    return read_call(reader, names=("tool_name",), arguments=("parameters",), ids=("tool_call_id",))


def _wrap(g: Grammar, answer: str) -> str:
    return seq(g.mark(_ANSWERS[0]), answer, g.mark(_ANSWERS[1]))


def _calls(g: Grammar, use: ToolUse) -> str:
    call = g.rule(calls_of(use, '"tool_name": "@", "parameters": ', "}"))
    one = g.rule(seq(literal('{"tool_call_id": "'), "/[0-9]{1,3}/", literal('", '), call))
    calls = repeat(use, one, seq(literal(","), GAP))
    return seq(literal("["), GAP, calls, GAP, literal("]"), g.mark(_END))


FORMAT = Format(
    name="command-r",
    matches=has_all(_BEGIN, _END),
    parse=_parse,
    calls=_calls,
    trigger=(_BEGIN,),
    wrap=_wrap,
    markers=(_BEGIN, _END, *_ANSWERS),
    wraps_content=True,
)
