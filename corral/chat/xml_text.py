"""Tool calls whose arguments are written one by one between tags, turned into JSON while they come."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from corral.chat.grammar import Grammar, any_of, json_value, literal, seq
from corral.chat.json_text import parse_json
from corral.chat.reader import Reader, Steps
from corral.chat.tool import Tool

_TEXT_RULES = {"pattern", "format", "minLength", "maxLength"}


@dataclass(frozen=True, slots=True)
class Tags:
    """What stands around a call's arguments."""

    key: str
    end_key: str
    end_value: str
    end_call: str
    value: str = ""
    gap: str = ""  # between its tags and a value


def read_xml_arguments(
    reader: Reader, tool: Tool | None, tags: Tags, opened: str | None = None
) -> Steps[str]:
    """The arguments up to the end of the call. Returns what is wrong with them, if anything.

    `opened`: the first tag, where that has been read already.
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
        name: list[str] = []
        if (yield from reader.until((tags.end_key,), name.append)) is None:
            return "it is cut off"
        key = "".join(name).strip()
        reader.arguments(f"{', ' if n else ''}{json.dumps(key, ensure_ascii=False)}: ")
        n += 1
        if tags.value:
            yield from reader.skip_space()
            yield from reader.accept(tags.value)
        if (yield from _read_argument(reader, _schema_of(tool, key), tags)) is None:
            return "it is cut off"
    if opened is None:
        return "its arguments are not between their tags"
    reader.arguments("}")
    return ""


def _read_argument(reader: Reader, schema: dict[str, Any], tags: Tags) -> Steps[str | None]:
    if tags.gap:
        yield from reader.accept(tags.gap)
    ends = (tags.gap + tags.end_value, tags.end_value)
    if not _is_plain_text(schema):
        parts: list[str] = []
        found = yield from reader.until(ends, parts.append)
        reader.arguments(_as_json("".join(parts), schema))
        return found
    reader.arguments('"')
    found = yield from reader.until(
        ends, lambda text: reader.arguments(json.dumps(text, ensure_ascii=False)[1:-1])
    )
    reader.arguments('"')
    return found


def _is_plain_text(schema: dict[str, Any]) -> bool:
    """A string of any characters is written as it is; one with rules is quoted, so that they can be kept."""
    return schema.get("type") == "string" and not _TEXT_RULES & schema.keys()


def _as_json(text: str, schema: dict[str, Any]) -> str:
    """A value as it was written if that is JSON, else as a string."""
    text = text.strip()
    value = parse_json(text)
    is_right = isinstance(value, str) if schema.get("type") == "string" else value is not ...
    return text if is_right else json.dumps(text, ensure_ascii=False)


def xml_arguments(g: Grammar, tool: Tool, tags: Tags) -> str:
    """The grammar of a call's arguments, in the order of the schema, up to the end of the call."""
    properties = tool.parameters.get("properties") or {}
    required = tool.parameters.get("required") or []
    opening = f"{tags.end_key}\n{tags.value}" if tags.value else tags.end_key
    parts = []
    for name, schema in properties.items():
        key = literal(f"{tags.key}{name}{opening}{tags.gap}")
        part = seq(key, _value(g, schema, tags), literal("\n"))
        parts.append(part if name in required else f"({part})?")
    return seq(*parts, g.mark(tags.end_call))


def _value(g: Grammar, schema: Any, tags: Tags) -> str:
    end = tags.gap + tags.end_value
    if not isinstance(schema, dict) or not _is_plain_text(schema):
        return seq(json_value(schema), literal(end))
    options = [schema["const"]] if "const" in schema else schema.get("enum")
    if options:
        return any_of(literal(str(option) + end) for option in options)
    return g.up_to(end)


def _schema_of(tool: Tool | None, key: str) -> dict[str, Any]:
    properties = tool.parameters.get("properties") if tool else None
    schema = properties.get(key) if isinstance(properties, dict) else None
    return schema if isinstance(schema, dict) else {}
