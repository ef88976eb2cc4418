"""gpt-oss: every part of an answer is a message in a channel; calls are messages to a function."""

from __future__ import annotations

import re

from corral.chat.format import Format, has_all
from corral.chat.grammar import Grammar, any_of, json_value, literal, repeat, seq
from corral.chat.json_text import read_arguments
from corral.chat.reader import Emit, Reader, ReaderSteps
from corral.chat.tool import ToolUse

_START, _CHANNEL, _CONSTRAIN = "<|start|>", "<|channel|>", "<|constrain|>"
_MESSAGE, _END, _CALL, _RETURN = "<|message|>", "<|end|>", "<|call|>", "<|return|>"
_ENDS = (_END, _CALL, _RETURN, _START)
_TRIGGER = (_CHANNEL, "commentary to=functions.")
_RECIPIENT = re.compile(r"to=(functions\.)?([^\s<]+)")


def _parse(reader: Reader, use: ToolUse) -> ReaderSteps[None]:
    ended: str | None = ""
    while True:
        reader.begin_raw(_START if ended == _START else "")
        head, found = yield from reader.collect(_MESSAGE)
        if found is None:
            reader.keep_raw()
            return
        if name := _recipient(head, use):
            emit = yield from _read_function(reader, name)
        else:
            reader.end_raw()
            emit = reader.reasoning if f"{_CHANNEL}analysis" in head else reader.content
        ended = yield from reader.until(_ENDS, emit)


def _recipient(head: str, use: ToolUse) -> str:
    """Return the function that a message is addressed to; empty if it is addressed to none."""
    found = _RECIPIENT.search(head) if use.is_possible else None
    return found[2] if found and (found[1] or found[2] in use.names) else ""


def _read_function(reader: Reader, name: str) -> ReaderSteps[Emit]:
    """Read a call. Returns where the rest of the message goes: to content, if it was not a call."""
    reader.call(name)
    yield from reader.skip_space()
    if problem := (yield from read_arguments(reader)):
        reader.no_call(problem)
        return reader.content
    reader.end_raw()
    return lambda _: None


def _lead(g: Grammar) -> str:
    analysis = seq(g.mark(_CHANNEL), literal("analysis"), g.mark(_MESSAGE), g.up_to(_END))
    return f"({seq(analysis, g.mark(_START), literal('assistant'))})?"


def _wrap(g: Grammar, answer: str) -> str:
    return seq(g.mark(_CHANNEL), literal("final"), g.mark(_MESSAGE), answer)


def _calls(g: Grammar, use: ToolUse) -> str:
    call = any_of(
        seq(
            literal(f"{tool.name} "),
            g.mark(_CONSTRAIN),
            literal("json"),
            g.mark(_MESSAGE),
            json_value(tool.parameters),
        )
        for tool in use.tools
    )
    next_one = seq(g.mark(_START), literal("assistant"), g.mark(*_TRIGGER))
    return repeat(use, g.rule(seq(call, g.mark(_CALL))), next_one)


FORMAT = Format(
    name="harmony",
    matches=has_all(_CHANNEL, _MESSAGE),
    parse=_parse,
    calls=_calls,
    trigger=_TRIGGER,
    lead=_lead,
    wrap=_wrap,
    markers=(_START, _CHANNEL, _CONSTRAIN, _MESSAGE, _END, _CALL, _RETURN),
    wraps_content=True,
    reads_reasoning=True,
)
