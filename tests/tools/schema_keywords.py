"""What becomes of every JSON Schema keyword and format: drafts 4 to 2020-12, and what OpenAPI adds.

`enforced`: answers follow it. `refused`: a 400 says so. `annotation`: it says nothing about values and is
accepted. `python -m tests.tools.schema_keywords` writes the tables into docs/howto/structured.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "structured.md"

ENFORCED = "enforced"
REFUSED = "refused"
ANNOTATION = "annotation"
VERDICTS = (ENFORCED, REFUSED, ANNOTATION)

_DRAFT_4 = "http://json-schema.org/draft-04/schema#"
_DRAFT_7 = "http://json-schema.org/draft-07/schema#"
_DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
_PAIR: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
_INTEGER: dict[str, Any] = {"type": "integer"}
_NAMED_PART: dict[str, Any] = {"$defs": {"n": _INTEGER}, "$ref": "#/$defs/n"}


@dataclass(frozen=True, slots=True)
class Keyword:
    """One keyword or format, a schema in which it matters, a value that follows it and one that does not.

    A refused keyword needs no values, an annotation only a `good` one.
    """

    group: str
    name: str
    verdict: str
    schema: dict[str, Any]
    good: Any = None
    bad: Any = None


def _enforced(group: str, name: str, schema: dict[str, Any], good: Any, bad: Any) -> Keyword:
    return Keyword(group, name, ENFORCED, schema, good, bad)


def _refused(group: str, name: str, schema: dict[str, Any]) -> Keyword:
    return Keyword(group, name, REFUSED, schema)


def _annotation(group: str, name: str, schema: dict[str, Any], good: Any) -> Keyword:
    return Keyword(group, name, ANNOTATION, schema, good)


_CORE = (
    _enforced("core", "$ref", _NAMED_PART, 1, "a"),
    _enforced("core", "$defs", _NAMED_PART, 1, "a"),
    _enforced("core", "definitions", {"definitions": {"n": _INTEGER}, "$ref": "#/definitions/n"}, 1, "a"),
    _enforced("core", "$anchor", {"$defs": {"n": {"$anchor": "here", **_INTEGER}}, "$ref": "#here"}, 1, "a"),
    _enforced("core", "$id", {"$defs": {"n": {"$id": "urn:n", **_INTEGER}}, "$ref": "urn:n"}, 1, "a"),
    _enforced(
        "core",
        "id",
        {"$schema": _DRAFT_4, "definitions": {"n": {"id": "#here", **_INTEGER}}, "$ref": "#here"},
        1,
        "a",
    ),
    _refused("core", "$dynamicRef", {"$dynamicRef": "#"}),
    _refused("core", "$dynamicAnchor", {"$dynamicAnchor": "n", **_INTEGER}),
    _refused(
        "core",
        "$recursiveRef",
        {"$schema": _DRAFT_2019, "type": "array", "items": {"$recursiveRef": "#"}},
    ),
    _refused("core", "$recursiveAnchor", {"$schema": _DRAFT_2019, "$recursiveAnchor": True, **_INTEGER}),
    _annotation("core", "$schema", {"$schema": _DRAFT_7, **_INTEGER}, 1),
    _annotation(
        "core",
        "$vocabulary",
        {"$vocabulary": {"https://json-schema.org/draft/2020-12/vocab/core": True}, **_INTEGER},
        1,
    ),
    _annotation("core", "$comment", {"$comment": "a number", **_INTEGER}, 1),
)
_ANY_TYPE = (
    _enforced("any type", "type", {"type": ["integer", "null"]}, None, "a"),
    _enforced("any type", "enum", {"enum": [1, "a", None, {"a": [1]}]}, {"a": [1]}, {"a": [2]}),
    _enforced("any type", "const", {"const": {"a": [1, None]}}, {"a": [1, None]}, {"a": [1]}),
    _enforced("any type", "anyOf", {"anyOf": [_INTEGER, {"type": "null"}]}, None, "a"),
    _enforced("any type", "oneOf", {"oneOf": [_INTEGER, {"type": "null"}]}, None, "a"),
    _enforced("any type", "allOf", {"allOf": [_INTEGER, {"maximum": 3}]}, 3, 4),
    _refused("any type", "not", {"type": "integer", "not": {"const": 1}}),
    _refused("any type", "if", {"if": _INTEGER, "then": {"maximum": 3}, "else": {"maxLength": 3}}),
    _refused("any type", "then", {"then": {"maximum": 3}}),
    _refused("any type", "else", {"else": {"maximum": 3}}),
)
_OBJECTS = (
    _enforced("objects", "properties", _PAIR, {"a": 1}, {"a": "x"}),
    _enforced("objects", "required", {**_PAIR, "required": ["a"]}, {"a": 1}, {"b": 1}),
    _enforced("objects", "additionalProperties", {"additionalProperties": _INTEGER}, {"x": 1}, {"x": "a"}),
    _enforced(
        "objects",
        "patternProperties",
        {"patternProperties": {"^x": _INTEGER}, "additionalProperties": False},
        {"xy": 1},
        {"xy": "a"},
    ),
    _enforced("objects", "minProperties", {**_PAIR, "minProperties": 1}, {"b": 1}, {}),
    _enforced(
        "objects",
        "maxProperties",
        {"additionalProperties": _INTEGER, "maxProperties": 1},
        {"x": 1},
        {"x": 1, "y": 1},
    ),
    _refused("objects", "propertyNames", {"propertyNames": {"pattern": "^x"}}),
    _refused("objects", "dependentRequired", {**_PAIR, "dependentRequired": {"a": ["b"]}}),
    _refused("objects", "dependentSchemas", {**_PAIR, "dependentSchemas": {"a": {"required": ["b"]}}}),
    _refused("objects", "dependencies", {"$schema": _DRAFT_7, **_PAIR, "dependencies": {"a": ["b"]}}),
    _refused("objects", "unevaluatedProperties", {**_PAIR, "unevaluatedProperties": False}),
)
_ARRAYS = (
    _enforced("arrays", "items", {"type": "array", "items": _INTEGER}, [1, 2], ["a"]),
    _enforced(
        "arrays", "prefixItems", {"type": "array", "prefixItems": [_INTEGER], "items": False}, [1], ["a"]
    ),
    _enforced(
        "arrays",
        "additionalItems",
        {"$schema": _DRAFT_7, "type": "array", "items": [_INTEGER], "additionalItems": {"type": "null"}},
        [1, None],
        [1, 2],
    ),
    _enforced("arrays", "minItems", {"type": "array", "minItems": 1}, [1], []),
    _enforced("arrays", "maxItems", {"type": "array", "maxItems": 1}, [1], [1, 2]),
    _refused("arrays", "uniqueItems", {"type": "array", "uniqueItems": True}),
    _refused("arrays", "contains", {"type": "array", "contains": _INTEGER}),
    _refused("arrays", "minContains", {"type": "array", "contains": _INTEGER, "minContains": 2}),
    _refused("arrays", "maxContains", {"type": "array", "contains": _INTEGER, "maxContains": 2}),
    _refused("arrays", "unevaluatedItems", {"type": "array", "prefixItems": [{}], "unevaluatedItems": False}),
)
_SCALARS = (
    _enforced("strings", "minLength", {"type": "string", "minLength": 2}, "ab", "a"),
    _enforced("strings", "maxLength", {"type": "string", "maxLength": 1}, "é", "ab"),
    _enforced("strings", "pattern", {"type": "string", "pattern": "b$"}, "ab", "ba"),
    _enforced("strings", "format", {"type": "string", "format": "ipv4"}, "1.2.3.4", "1.2.3"),
    _annotation("strings", "contentEncoding", {"type": "string", "contentEncoding": "base64"}, "!"),
    _annotation("strings", "contentMediaType", {"type": "string", "contentMediaType": "text/html"}, "!"),
    _annotation("strings", "contentSchema", {"type": "string", "contentSchema": _INTEGER}, "!"),
    _enforced("numbers", "minimum", {"type": "number", "minimum": 1.5}, 1.5, 1.4),
    _enforced("numbers", "maximum", {"type": "number", "maximum": 1.5}, 1.5, 1.6),
    _enforced("numbers", "exclusiveMinimum", {"type": "integer", "exclusiveMinimum": 3}, 4, 3),
    _enforced("numbers", "exclusiveMaximum", {"type": "integer", "exclusiveMaximum": 3}, 2, 3),
    _enforced("numbers", "multipleOf", {"type": "number", "multipleOf": 0.25}, 1.25, 1.2),
)
_ABOUT = tuple(
    _annotation("about the schema", name, {name: value, **_INTEGER}, 1)
    for name, value in {
        "title": "a",
        "description": "a",
        "default": "a",
        "examples": ["a"],
        "deprecated": True,
        "readOnly": True,
        "writeOnly": True,
    }.items()
)
_OPENAPI = tuple(
    _annotation("OpenAPI", name, {name: value, **_INTEGER}, 1)
    for name, value in {
        "nullable": True,
        "discriminator": {"propertyName": "a"},
        "example": "a",
        "xml": {"name": "a"},
        "externalDocs": {"url": "http://example.org"},
    }.items()
)

KEYWORDS: tuple[Keyword, ...] = (*_CORE, *_ANY_TYPE, *_OBJECTS, *_ARRAYS, *_SCALARS, *_ABOUT, *_OPENAPI)

_STRINGS: dict[str, Any] = {
    "date": ("2024-02-29", "2024-02-30"),
    "time": ("23:59:60Z", "24:00:00Z"),
    "date-time": ("2024-12-31T23:59:59.5+01:00", "2024-12-31T23:59:59"),
    "duration": ("P1DT12H", "1D"),
    "email": ("a.b@example.org", "a.b"),
    "hostname": ("a-1.example", "-a"),
    "ipv4": ("127.0.0.1", "127.0.0.256"),
    "ipv6": ("fe80::1", "fe80::1::2"),
    "uri": ("http://example.org/a?b#c", "/a"),
    "uuid": ("01234567-89ab-cdef-0123-456789ABCDEF", "01234567-89ab-cdef-0123-456789abcde"),
}
_UNKNOWN = (
    *("idn-email", "idn-hostname", "iri", "iri-reference", "uri-reference", "uri-template", "regex"),
    *("json-pointer", "relative-json-pointer", "color", "phone", "byte", "binary", "password"),
)
_OF_NUMBERS = ("int32", "int64", "float", "double")

FORMATS: tuple[Keyword, ...] = (
    *(_enforced("strings", name, {"type": "string", "format": name}, *v) for name, v in _STRINGS.items()),
    *(_refused("strings", name, {"type": "string", "format": name}) for name in _UNKNOWN),
    *(_annotation("numbers", name, {"type": "integer", "format": name}, 1 << 40) for name in _OF_NUMBERS),
)


def render_table(rows: tuple[Keyword, ...] = KEYWORDS) -> str:
    """A Markdown table: a row for each group, a column for each verdict."""
    lines = ["| | enforced | refused | says nothing about values |", "| --- | --- | --- | --- |"]
    for group in dict.fromkeys(row.group for row in rows):
        cells = (
            ", ".join(f"`{row.name}`" for row in rows if (row.group, row.verdict) == (group, verdict))
            for verdict in VERDICTS
        )
        lines.append(f"| {group} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def tables() -> dict[str, str]:
    """What stands between which markers of the page."""
    return {"keywords": render_table(), "formats": render_table(FORMATS)}


def insert_tables(page: str) -> str:
    for name, table in tables().items():
        before, start, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        page = before + start + table + end + after
    return page


if __name__ == "__main__":
    PAGE.write_text(insert_tables(PAGE.read_text()))
