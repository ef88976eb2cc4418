"""Read the JSON Schema of a function's arguments, one argument at a time.

Schemas come from clients. Invalid parts are ignored here; the engine refuses what it cannot follow.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

from corral.chat.tool import Tool
from corral.grammar.schema import COMBINING, resolve

_SHARED = ("x-guidance", "$defs", "definitions")  # keywords of the root that its parts depend on
_MAX_NESTED = 4  # levels of nested alternatives
_MAX_FORMS = 64  # to which counts of arguments are written out
_UNBOUNDED = 0, math.inf
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
    """Return a self-contained schema for each argument of a function."""
    found: dict[str, list[dict[str, Any]]] = {}
    for form in forms_of(tool) if tool else ():
        root = form.parameters
        properties = resolve(root, root).get("properties")
        for name, schema in properties.items() if isinstance(properties, dict) else ():
            part = _stand_alone(resolve(schema, root), root)
            if schema is not False and part not in found.setdefault(name, []):
                found[name].append(part)
    return {name: _any_of(parts) for name, parts in found.items() if parts}


def forms_of(tool: Tool) -> list[Tool]:
    """Return the function once for each alternative of its whole argument object."""
    root = tool.parameters
    shared = {key: root[key] for key in _SHARED if key in root}
    parts = _flatten(resolve(root, root), root, _MAX_NESTED)
    return [replace(tool, parameters={**form, **shared}) for part in parts for form in _count(part)]


def rule_of_whole(tool: Tool) -> str:
    """Return a keyword about several arguments that no form of the function expresses; empty without one."""
    for form in forms_of(tool):
        part = form.parameters
        required, declared = _as_list(part.get("required", [])), list(_declared(part))
        least, most = _bounds(part)
        if not all(name in declared for name in required):
            return "required"
        if least > len(required):
            return "minProperties"
        if most < len(declared):
            return "maxProperties"
        if combined := next((keyword for keyword in COMBINING if keyword in part), ""):
            return combined
    return ""


def required_of(tool: Tool) -> list[Any]:
    """Return the names of the required arguments."""
    return _as_list(resolve(tool.parameters, tool.parameters).get("required"))


def types_of(schema: dict[str, Any]) -> set[str]:
    """Return the types of values that a schema allows; empty if unrestricted."""
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
    """Whether a schema restricts strings in another way than by listing them."""
    parts = _alternatives(schema)
    return any(_TEXT_RULES & part.keys() or (part is not schema and options_of(part)) for part in parts)


def value_types(value: Any) -> set[str]:
    return _TYPES.get(type(value), set())


def options_of(schema: dict[str, Any]) -> list[Any]:
    return [schema["const"]] if "const" in schema else _as_list(schema.get("enum", []))


def _flatten(part: dict[str, Any], root: dict[str, Any], n_left: int) -> list[dict[str, Any]]:
    choices = part.get("anyOf")
    if "properties" in part or not isinstance(choices, list) or not n_left:
        return [part]
    return [form for choice in choices for form in _flatten(resolve(choice, root), root, n_left - 1)]


def _count(part: dict[str, Any]) -> list[dict[str, Any]]:
    """Write out that one more argument than the required ones must be there, or at most one more."""
    properties, required = _declared(part), _as_list(part.get("required", []))
    least, most = _bounds(part)
    optional = [name for name, schema in properties.items() if name not in required and schema is not False]
    one_more = len(required) + 1
    if (least, most) == _UNBOUNDED or least > one_more or most not in (math.inf, one_more):
        return [part]
    if not 0 < len(optional) <= _MAX_FORMS:
        return [part]
    rest = {k: v for k, v in part.items() if k not in ("minProperties", "maxProperties")}
    if most == math.inf and least < one_more:
        return [rest]
    return [
        {
            **rest,
            "properties": properties if most == math.inf else _some(properties, [*required, name]),
            "required": [*required, name] if least == one_more else required,
        }
        for name in optional
    ]


def _declared(part: dict[str, Any]) -> dict[str, Any]:
    properties = part.get("properties")
    return properties if isinstance(properties, dict) else {}


def _bounds(part: dict[str, Any]) -> tuple[float, float]:
    """Return how many properties an object may have."""
    found = (part.get("minProperties"), part.get("maxProperties"))
    least, most = (
        n if isinstance(n, int | float) else none for n, none in zip(found, _UNBOUNDED, strict=True)
    )
    return least, most


def _some(properties: dict[str, Any], names: list[Any]) -> dict[str, Any]:
    return {name: schema for name, schema in properties.items() if name in names}


def _any_of(parts: list[dict[str, Any]]) -> dict[str, Any]:
    if len(parts) == 1:
        return parts[0]
    shared = {key: part[key] for part in parts for key in _SHARED if key in part}
    return {**shared, "anyOf": [{k: v for k, v in part.items() if k not in _SHARED} for part in parts]}


def _alternatives(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the schemas of which a value must match at least one."""
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
