"""Tool calls with each argument between tags, converted to JSON while they are streamed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from corral.chat.grammar import Grammar, any_of, json_value, literal, maybe, seq
from corral.chat.json_text import collect_value, parse_json
from corral.chat.parameter import (
    forms_of,
    has_text_rules,
    options_of,
    properties_of,
    required_of,
    types_of,
    value_types,
)
from corral.chat.reader import CUT_OFF, Reader, ReaderSteps
from corral.chat.tool import Tool

_JSON_OPENINGS = ("{", "[", '"')
_NEWLINE = maybe(literal("\n"))
_PYTHON = {"True": "true", "False": "false", "None": "null"}


@dataclass(frozen=True, slots=True)
class Tags:
    key: str
    end_key: str
    end_value: str
    end_call: str
    value: str = ""
    gap: str = ""  # text between the tags and a value


def read_xml_arguments(
    reader: Reader, tool: Tool | None, tags: Tags, opened: str | None = None
) -> ReaderSteps[str]:
    """Read the arguments up to the end of the call. Returns an error message, or "".

    `opened`: the first tag, if it was already read.
    """
    reader.arguments("{")
    n = 0
    while True:
        if opened is None:
            yield from reader.skip_space()
            opened = yield from reader.accept(tags.key, tags.end_call)
        if opened != tags.key:
            break
        opened = None
        key, end = yield from reader.collect(tags.end_key)
        if end is None:
            return CUT_OFF
        reader.arguments(f"{', ' if n else ''}{json.dumps(key, ensure_ascii=False)}: ")
        n += 1
        if tags.value:
            yield from reader.skip_space()
            yield from reader.accept(tags.value)
        if (yield from _read_argument(reader, properties_of(tool).get(key), tags)) is None:
            return CUT_OFF
    if opened is None:
        return "its arguments are not enclosed in tags"
    reader.arguments("}")
    return ""


def _read_argument(reader: Reader, schema: dict[str, Any] | None, tags: Tags) -> ReaderSteps[str | None]:
    if tags.gap:
        yield from reader.accept(tags.gap)
    ends = (tags.gap + tags.end_value, tags.end_value)
    if schema is not None and _is_plain_text(schema):
        reader.arguments('"')
        found = yield from reader.until(
            ends, lambda text: reader.arguments(json.dumps(text, ensure_ascii=False)[1:-1])
        )
        reader.arguments('"')
        return found
    parts: list[str] = []
    if schema is not None and not _is_open_text(schema) and (yield from reader.next_char()) in _JSON_OPENINGS:
        # Strings in it may contain the end tag.
        parts.append((yield from collect_value(reader)))
    found = yield from reader.until(ends, parts.append)
    reader.arguments(_as_json("".join(parts), schema or {}))
    return found


def _is_plain_text(schema: dict[str, Any]) -> bool:
    """Whether values are written without quotes. Strings with rules are quoted, so that the rules can be
    enforced."""
    return types_of(schema) == {"string"} and not has_text_rules(schema)


def _is_open_text(schema: dict[str, Any]) -> bool:
    is_text = {"string"} <= types_of(schema) <= {"string", "null"}
    return is_text and not has_text_rules(schema) and not options_of(schema)


def _as_json(text: str, schema: dict[str, Any]) -> str:
    """Return the text as it is if it is JSON of an allowed type, otherwise as a JSON string."""
    text = text.strip()
    types = types_of(schema)
    value = parse_json(text)
    if value is ... and text in _PYTHON and value_types(parse_json(_PYTHON[text])) & types:
        return _PYTHON[text]
    is_text = value is ... or ("string" in types and not value_types(value) & types)
    return json.dumps(text, ensure_ascii=False) if is_text else text


def xml_arguments(g: Grammar, tool: Tool, tags: Tags) -> str:
    """Return the grammar of a call's arguments, in the order of the schema, up to the end of the call."""
    forms = [_xml_arguments(g, form, tags) for form in forms_of(tool)]
    all_forms = forms[0] if len(forms) == 1 else any_of(form or '""' for form in forms)
    return seq(all_forms, g.mark(tags.end_call))


def _xml_arguments(g: Grammar, tool: Tool, tags: Tags) -> str:
    required = required_of(tool)
    value_tag = seq(_NEWLINE, g.mark(tags.value)) if tags.value else ""
    parts = []
    for name, schema in properties_of(tool).items():
        key = seq(g.mark(tags.key), literal(name), g.mark(tags.end_key), value_tag, literal(tags.gap))
        part = seq(key, _value(g, schema, tags), _NEWLINE)
        parts.append(part if name in required else maybe(part))
    return seq(*parts)


def _value(g: Grammar, schema: dict[str, Any], tags: Tags) -> str:
    if _is_open_text(schema):
        return g.up_to(tags.end_value)
    end = seq(literal(tags.gap), g.mark(tags.end_value))
    if not _is_plain_text(schema):
        return seq(json_value(schema), end)
    options = (literal(option) for option in options_of(schema) if isinstance(option, str))
    return seq(any_of(options), end)
