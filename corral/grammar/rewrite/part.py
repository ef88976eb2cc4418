"""Shared parts of the rewriting pass: schemas of draft 2020-12, and the error for what cannot be exact.

A schema in the pass carries the JSON pointers of the client's parts under `AT`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

AT = "x-at"  # the place of a part in the client's schema
MERGED = "x-merged"  # marks a part that the pass combined from several
TYPES = ("null", "boolean", "number", "string", "array", "object")
SILENT = frozenset(
    [
        *("$defs", "definitions", "$schema", "$id", "id", "$anchor", "$comment", "$vocabulary", AT, MERGED),
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
        *("contentEncoding", "contentMediaType", "contentSchema"),
        *("nullable", "discriminator", "example", "xml", "externalDocs"),
    ]
)

# All keywords whose values contain schemas: by name, in a list, alone.
BY_NAME = ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas")
IN_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
ALONE = (
    *("items", "additionalItems", "additionalProperties", "contains", "propertyNames"),
    *("not", "if", "then", "else", "unevaluatedProperties", "unevaluatedItems"),
)


class NotExact(Exception):
    """A keyword cannot be enforced exactly. `hint`: what to write instead."""

    def __init__(self, keyword: str, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.keyword = keyword
        self.reason = reason
        self.hint = hint
        self.pointer = ""

    def place(self, schema: Schema, keyword: str) -> None:
        """Set the keyword and the place, unless an inner part has set them already."""
        if self.pointer:
            return
        self.keyword, self.pointer = keyword or self.keyword, str(schema.get(AT) or "")
        steps = self.pointer.split("/")
        # The pass itself added the negation: the client wrote the keyword further up.
        for i in reversed(range(len(steps) if MERGED in schema else 0)):
            if steps[i] in ("if", "not", "oneOf"):
                self.keyword, self.pointer = steps[i], "/".join(steps[:i])
                return

    @property
    def message(self) -> str:
        what = f"keyword '{self.keyword}' at {self.pointer or '#'} cannot be enforced: {self.reason}"
        return f"{what}; {self.hint}" if self.hint else what


def is_any(schema: Any) -> bool:
    """Whether a schema obviously allows every value."""
    return schema is True or (isinstance(schema, dict) and schema.keys() <= SILENT)


def both(a: Any, b: Any) -> Any:
    """Return a schema for values that are valid against both."""
    if a is False or b is False:
        return False
    if is_any(a) or is_any(b):
        return b if is_any(a) else a
    return a if bare(a) == bare(b) else {"allOf": [a, b], MERGED: True}


def bare(schema: Any) -> Any:
    """Return a schema without the marks of the rewriting pass."""
    if isinstance(schema, dict):
        return {k: bare(v) for k, v in schema.items() if k not in (AT, MERGED)}
    return [bare(item) for item in schema] if isinstance(schema, list) else schema


def steps_of(schema: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the direct subschemas of a schema, in any keyword, with their paths."""
    if not isinstance(schema, dict):
        return
    for keyword in BY_NAME:
        if isinstance(schema.get(keyword), dict):
            yield from (((keyword, name), part) for name, part in schema[keyword].items())
    for keyword in IN_LISTS:
        if isinstance(schema.get(keyword), list):
            yield from (((keyword, str(i)), part) for i, part in enumerate(schema[keyword]))
    for keyword in ALONE:
        if isinstance(schema.get(keyword), dict | bool):
            yield (keyword,), schema[keyword]


def mark(schema: Any, pointer: str = "#") -> Any:
    """Return a copy in which every part is marked with its place."""
    if not isinstance(schema, dict):
        return schema
    marked = {k: _copy_holder(k, v) for k, v in schema.items()}
    for way, part in steps_of(schema):
        place = "/".join([pointer, *(escape(step) for step in way)])
        holder = marked if len(way) == 1 else marked[way[0]]
        key: Any = int(way[1]) if isinstance(holder, list) else way[-1]
        holder[key] = mark(part, place)
    return {**marked, AT: pointer}


def escape(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")


def _copy_holder(keyword: str, value: Any) -> Any:
    if keyword in BY_NAME and isinstance(value, dict):
        return dict(value)
    return list(value) if keyword in IN_LISTS and isinstance(value, list) else value
