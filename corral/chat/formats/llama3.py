"""Llama 3.x: an answer is `{"name": ..., "parameters": ...}`, or a call follows `<|python_tag|>`."""

from __future__ import annotations

import json
import re

from corral.chat.code_text import code_arguments, find_runner
from corral.chat.format import Format, has_all
from corral.chat.grammar import Grammar, calls_of
from corral.chat.json_text import parse_json, read_call
from corral.chat.reader import Reader, ReaderSteps
from corral.chat.tool import ToolUse

_TAG = "<|python_tag|>"
_BUILT_IN = re.compile(r"\s*([\w.]+)\.call\((.*)\)\s*", re.DOTALL)
_KEYWORD = re.compile(r'\s*(\w+)\s*=\s*("(?:[^"\\]|\\.)*"|[^,"\s]+)\s*(?:,|$)')


def _parse(reader: Reader, use: ToolUse) -> ReaderSteps[None]:
    """Parse an answer. Calls are recognized at the start, after other calls, and after the tag."""
    tag: str | None = ""
    while tag is not None:
        reader.begin_raw(tag)
        yield from reader.skip_space()
        tag = tag or (yield from reader.accept(_TAG))
        if (yield from reader.next_char()) == "{":
            problem = yield from read_call(reader, arguments=("parameters", "arguments"), known=use.names)
            if not problem:
                reader.begin_raw()
                yield from reader.skip_space()
                yield from reader.accept(";", ",")
                tag = ""
                continue
            reader.no_call(problem)
        elif tag:
            yield from _read_code(reader, use)
        else:
            reader.keep_raw()
        tag = yield from reader.until((_TAG,), reader.content)


def _read_code(reader: Reader, use: ToolUse) -> ReaderSteps[None]:
    """Read what follows the tag and is not JSON: a built-in call, or a program for the tool that runs
    code."""
    parts: list[str] = []
    yield from reader.rest(parts.append)
    code = "".join(parts)
    built_in = _BUILT_IN.fullmatch(code)
    runner = find_runner(use)
    if built_in and built_in[1] in use.names:
        reader.call(built_in[1])
        reader.arguments(json.dumps(_keywords(built_in[2]), ensure_ascii=False))
        reader.end_raw()
    elif runner:
        reader.call(runner)
        code_arguments(reader, code)
        reader.end_raw()
    else:
        reader.no_call("it is code, but no function runs code")


def _keywords(text: str) -> dict[str, object]:
    values = {}
    for key, written in _KEYWORD.findall(text):
        value = parse_json(written)
        values[key] = written.strip("'") if value is ... else value
    return values


def _calls(_g: Grammar, use: ToolUse) -> str:
    return calls_of(use, '@", "parameters": ', "}")


FORMAT = Format(
    name="llama3",
    matches=has_all("<|start_header_id|>ipython<|end_header_id|>"),
    parse=_parse,
    calls=_calls,
    trigger=('{"name": "',),
    is_trigger_first=True,
    markers=(_TAG,),
)
