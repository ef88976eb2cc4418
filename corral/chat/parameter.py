"""What a JSON Schema says of the arguments of a function, one by one.

Schemas come from clients: what makes no sense in them is passed over here, the engine refuses what it cannot
follow.
"""

from __future__ import annotations

import json
from typing import Any

from corral.chat.tool import Tool
from corral.grammar.schema import resolve

_SHARED = ("x-guidance", "$defs", "definitions")  # what parts of a schema need of the whole
_TEXT_RULES = {"pattern", "format", "minLength", "maxLength", "anyOf", "oneOf", "allOf", "not"}
_TYPES = {
    str: {"string"},
    bool: {"boolean"},
    int: {"integer", "number"},
    float: {"integer", "number"},
    type(None): {"null"},
    list: {"array"},
    dict: {"object"},
}


def properties_of(tool: Tool | None) -> dict[str, dict[str, Any]]:
    """The schemas of a function's arguments, each of which stands by itself."""
    root = tool.parameters if tool else {}
    properties = resolve(root, root).get("properties")
    if not isinstance(properties, dict):
        return {}
    return {name: _stand_alone(resolve(schema, root), root) for name, schema in properties.items()}


def required_of(tool: Tool) -> list[Any]:
    """The names of the arguments that a call may not leave out."""
    return _as_list(resolve(tool.parameters, tool.parameters).get("required"))


def types_of(schema: dict[str, Any]) -> set[str]:
    """The types of the values that a schema takes; empty: it does not say."""
    found: set[str] = set()
    for part in _alternatives(schema):
        if "type" in part:
            found.update(map(str, _as_list(part["type"])))
        elif options := options_of(part):
            found.update(*map(value_types, options))
        else:
            return set()
    return found


def has_text_rules(schema: dict[str, Any]) -> bool:
    """Whether there are rules for the strings that a schema takes, other than a list of them."""
    parts = _alternatives(schema)
    return any(_TEXT_RULES & part.keys() or (part is not schema and options_of(part)) for part in parts)


def value_types(value: Any) -> set[str]:
    return _TYPES.get(type(value), set())


def options_of(schema: dict[str, Any]) -> list[Any]:
    return [schema["const"]] if "const" in schema else _as_list(schema.get("enum", []))


def _alternatives(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The schemas one of which a value has to follow."""
    found: list[dict[str, Any]] = []
    seen: set[int] = set()
    waiting: list[Any] = [schema]
    while waiting:
        part = resolve(waiting.pop(), schema)
        if id(part) in seen:
            continue
        seen.add(id(part))
        choices = part.get("anyOf", part.get("oneOf"))
        if isinstance(choices, list) and "type" not in part and not options_of(part):
            waiting += choices
        else:
            found.append(part)
    return found


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _stand_alone(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    shared = _SHARED if "$ref" in json.dumps(schema) else _SHARED[:1]
    return {**schema, **{key: root[key] for key in shared if key in root}}
