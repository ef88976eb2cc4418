"""LFM2 and LFM2.5: calls in Python syntax, `<|tool_call_start|>[name(key="value")]<|tool_call_end|>`."""

from __future__ import annotations

import ast
import json
import warnings
from typing import Any

from corral.chat.format import Format
from corral.chat.grammar import Grammar, any_of, json_value, literal, maybe, repeat, seq
from corral.chat.json_text import collect_value, parse_json, read_call_list, replace_surrogates
from corral.chat.parameter import forms_of, properties_of, required_of, types_of
from corral.chat.reader import CUT_OFF, NO_NAME, Reader, ReaderSteps, calls_parser
from corral.chat.tool import Tool, ToolUse

_BEGIN, _END = "<|tool_call_start|>", "<|tool_call_end|>"
_QUOTES = "\"'"
_WORDS = {"true": True, "false": False, "null": None}


def _matches(template: str) -> bool:
    return "<|tool_list_start|>" in template or "List of tools: [" in template


def _read_function(reader: Reader) -> ReaderSteps[str]:
    name, found = yield from reader.collect("(", _END)
    if found != "(":
        return NO_NAME if found else CUT_OFF
    if not name:
        return NO_NAME
    reader.call(name)
    comma = ""
    reader.arguments("{")
    while True:
        yield from reader.skip_space()
        if (yield from reader.accept(")")):
            break
        key, found = yield from reader.collect("=", _END)
        if found != "=":
            return "its arguments have no names" if found else CUT_OFF
        yield from reader.skip_space()
        value = _as_json((yield from collect_value(reader, _QUOTES)))
        if not value:
            return f"the argument '{key:.64}' has no value"
        reader.arguments(f"{comma}{json.dumps(key, ensure_ascii=False)}: {value}")
        comma = ", "
        yield from reader.skip_space()
        yield from reader.accept(",")
    reader.arguments("}")
    return ""


def _as_json(text: str) -> str:
    """Convert a Python or JSON value to JSON; empty if it is neither."""
    if parse_json(text) is not ...:
        return text
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's warnings about a model's escapes
            value = _value_of(ast.parse(text, mode="eval").body)
        return replace_surrogates(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""


def _value_of(node: ast.expr | None) -> Any:
    match node:
        case ast.Constant(value=str() | bool() | int() | float() | None as value):
            return value
        case ast.Name(id=word) if word in _WORDS:
            return _WORDS[word]
        case ast.List(elts=parts):
            return [_value_of(part) for part in parts]
        case ast.Dict(keys=keys, values=values):
            items = zip(map(_value_of, keys), map(_value_of, values), strict=True)
            return {str(key): value for key, value in items}
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
    raise ValueError("missing value")


def _calls(g: Grammar, use: ToolUse) -> str:
    call = any_of(seq(literal(f"{tool.name}("), _arguments(g, tool), literal(")")) for tool in use.tools)
    return seq(literal("["), repeat(use, g.rule(call), literal(", ")), literal("]"), g.mark(_END))


def _arguments(g: Grammar, tool: Tool) -> str:
    forms = [_form(g, form) for form in forms_of(tool)]
    return forms[0] if len(forms) == 1 else any_of(form or '""' for form in forms)


def _form(g: Grammar, tool: Tool) -> str:
    """Return the grammar of arguments in the order of the schema, with commas between those that are
    present."""
    required = required_of(tool)
    first, later = "", ""  # the arguments from here on: if none precedes them, and if some do
    for name, schema in reversed(properties_of(tool).items()):
        argument = g.rule(seq(literal(f"{name}="), _value(schema)))
        here, next_one = seq(argument, later), seq(literal(", "), argument)
        if name in required:
            first, later = here, g.rule(seq(next_one, later))
        else:
            first = any_of([here, first]) if first else maybe(here)
            later = g.rule(seq(maybe(next_one), later))
    return first


def _value(schema: dict[str, Any]) -> str:
    is_truth = types_of(schema) == {"boolean"}
    return any_of([literal("True"), literal("False")]) if is_truth else json_value(schema)


FORMAT = Format(
    name="lfm2",
    matches=_matches,
    parse=calls_parser((_BEGIN,), lambda reader, *_: read_call_list(reader, _read_function), _END),
    calls=_calls,
    trigger=(_BEGIN,),
    markers=(_BEGIN, _END),
    has_single_arguments=True,
)
