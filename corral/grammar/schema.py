"""JSON Schemas as trees: their parts and places."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

# Keywords whose values contain schemas: by name, in a list, alone. Definitions come first.
BY_NAME = ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas")
COMBINING = ("allOf", "anyOf", "oneOf")  # several schemas for the same value
_IN_LISTS = (*COMBINING, "prefixItems", "items")
_ALONE = ("items", "additionalItems", "additionalProperties", "contains", "propertyNames")


def parts_of(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield the direct subschemas of a schema, with the steps of their JSON pointers."""
    if not isinstance(schema, dict):
        return
    for keyword in BY_NAME:
        if isinstance(schema.get(keyword), dict):
            for name, part in schema[keyword].items():
                yield f"{keyword}/{name.replace('~', '~0').replace('/', '~1')}", part
    for keyword in _IN_LISTS:
        if isinstance(schema.get(keyword), list):
            yield from ((f"{keyword}/{i}", part) for i, part in enumerate(schema[keyword]))
    for keyword in _ALONE:
        if isinstance(schema.get(keyword), dict):
            yield keyword, schema[keyword]


def all_parts(schema: Any, pointer: str = "#") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every subschema that is an object, the root first, with its JSON pointer."""
    if isinstance(schema, dict):
        yield pointer, schema
    for step, part in parts_of(schema):
        yield from all_parts(part, f"{pointer}/{step}")


def rewrite(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return the schema with every part changed, inner parts first."""
    if not isinstance(schema, dict):
        return schema
    changed = dict(schema)
    for keyword in BY_NAME:
        if isinstance(schema.get(keyword), dict):
            changed[keyword] = {name: rewrite(part, change) for name, part in schema[keyword].items()}
    for keyword in _IN_LISTS:
        if isinstance(schema.get(keyword), list):
            changed[keyword] = [rewrite(part, change) for part in schema[keyword]]
    for keyword in _ALONE:
        if isinstance(schema.get(keyword), dict):
            changed[keyword] = rewrite(schema[keyword], change)
    return change(changed)


def resolve(schema: Any, root: Any) -> dict[str, Any]:
    """Return a schema, or the one it references in the same document; empty if there is none."""
    for _ in range(8):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        schema = root
        for step in reference[2:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            schema = schema.get(name) if isinstance(schema, dict) else None
    return schema if isinstance(schema, dict) else {}
