"""Every place in a request's body where a value can be, found in what `/openapi.json` says of it.

Knows JSON Schema as far as ours uses it; what to put into a place, and what has to come of it, is the tests'
business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Schema = dict[str, Any]
Wrap = Callable[[Any], Any]

NUMBERS = ("integer", "number")
# How JSON Schema calls the longest that each type may be.
LIMITS = {"string": "maxLength", "array": "maxItems", "object": "maxProperties"}


@dataclass(frozen=True)
class Place:
    """`field`: the one of the body that it is in. `wrap`: makes a value the whole field."""

    field: str
    name: str
    kind: str
    schema: Schema
    wrap: Wrap

    def fill(self, value: Any) -> dict[str, Any]:
        return {self.field: self.wrap(value)}

    @property
    def limit(self) -> int | None:
        """The longest value that it may have."""
        if "enum" in self.schema or "const" in self.schema:
            return 0
        return self.schema.get(LIMITS[self.kind])


def places(schema: Schema, components: Schema) -> Iterator[Place]:
    """All places of a body that is an object, one for each type that may be there."""
    for name, inner in schema["properties"].items():
        for field in (name, *inner.get("x-aliases", ())):
            yield from _walk(field, field, inner, components, lambda value: value)


def example(schema: Schema, components: Schema) -> Any:
    """Something that is right as far as the schema tells."""
    schema = _resolve(schema, components)
    for key in ("examples", "enum"):
        if key in schema:
            return schema[key][0]
    if "const" in schema:
        return schema["const"]
    if "anyOf" in schema:
        return example(schema["anyOf"][0], components)
    kinds = schema.get("type", "string")
    kind = kinds if isinstance(kinds, str) else kinds[0]
    if kind in NUMBERS:
        return max(0, schema.get("minimum", 0))
    if kind == "array":
        return [example(schema.get("items", {}), components)] * schema.get("minItems", 0)
    if kind == "object":
        return {name: example(schema["properties"][name], components) for name in schema.get("required", ())}
    return {"string": "a" * schema.get("minLength", 1), "boolean": False, "null": None}[kind]


def _walk(field: str, name: str, schema: Schema, components: Schema, wrap: Wrap) -> Iterator[Place]:
    schema = _resolve(schema, components)
    if "anyOf" in schema:
        for branch in schema["anyOf"]:
            yield from _walk(field, name, branch, components, wrap)
        return
    kinds = schema.get("type", "any")
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        if kind != "null":
            yield Place(field, name, kind, schema, wrap)
        if kind == "array":
            yield from _walk_items(field, name, schema, components, wrap)
        if kind == "object":
            yield from _walk_properties(field, name, schema, components, wrap)


def _walk_items(field: str, name: str, schema: Schema, components: Schema, wrap: Wrap) -> Iterator[Place]:
    if "prefixItems" not in schema:
        items = schema.get("items", {})
        yield from _walk(field, f"{name}[]", items, components, lambda value: wrap([value]))
        return
    row = [example(item, components) for item in schema["prefixItems"]]
    for i, item in enumerate(schema["prefixItems"]):

        def put(value: Any, i: int = i) -> Any:
            return wrap([*row[:i], value, *row[i + 1 :]])

        yield from _walk(field, f"{name}[{i}]", item, components, put)


def _walk_properties(
    field: str, name: str, schema: Schema, components: Schema, wrap: Wrap
) -> Iterator[Place]:
    for key, inner in schema.get("properties", {}).items():

        def put(value: Any, key: str = key) -> Any:
            return wrap({**example(schema, components), key: value})

        yield from _walk(field, f"{name}.{key}", inner, components, put)


def _resolve(schema: Schema, components: Schema) -> Schema:
    reference = schema.get("$ref")
    return components[reference.rpartition("/")[2]] if reference else schema
