"""What becomes of every JSON Schema keyword and format: drafts 4 to 2020-12, and what OpenAPI adds.

corral/grammar/keyword.py says how far each is followed; here are schemas and values that show it.
`python -m tests.tools.schema_keywords` writes the tables into docs/howto/structured.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corral.grammar import keyword
from corral.grammar.keyword import Support, Verdict

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "structured.md"

VERDICTS: tuple[Verdict, ...] = ("exact", "checked", "limited", "refused", "annotation")
EXACT, CHECKED, LIMITED, REFUSED, ANNOTATION = VERDICTS

_OPPOSITE = "where the opposite is type, const, enum, required, a bound or a property with one of these"
_DRAFT_4 = "http://json-schema.org/draft-04/schema#"
_DRAFT_7 = "http://json-schema.org/draft-07/schema#"
_DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
_PAIR: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
_INTEGER: dict[str, Any] = {"type": "integer"}
_NAMED_PART: dict[str, Any] = {"$defs": {"n": _INTEGER}, "$ref": "#/$defs/n"}


@dataclass(frozen=True, slots=True)
class Keyword:
    """One keyword or format, a schema in which it matters, a value that follows it and one that does not.

    `refused`: a schema in which the grammar does not follow it. A refused keyword needs no values, an
    annotation only a `good` one.
    """

    support: Support
    name: str
    schema: dict[str, Any]
    good: Any = None
    bad: Any = None
    refused: dict[str, Any] | None = None

    @property
    def verdict(self) -> Verdict:
        return self.support.verdict


def _row(
    name: str,
    schema: dict[str, Any],
    good: Any = None,
    bad: Any = None,
    refused: dict[str, Any] | None = None,
) -> Keyword:
    return Keyword(keyword.KEYWORDS[name], name, schema, good, bad, refused)


def _format(name: str, *values: Any, kind: str = "string") -> Keyword:
    return Keyword(keyword.FORMATS[name], name, {"type": kind, "format": name}, *values)


def _two_resources(part: dict[str, Any]) -> dict[str, Any]:
    """A dynamic reference that two schemas could be meant by."""
    return {"$ref": "urn:a", "$defs": {name: {"$id": f"urn:{name}", **part} for name in "ab"}}


_CORE = (
    _row("$ref", _NAMED_PART, 1, "a"),
    _row("$defs", _NAMED_PART, 1, "a"),
    _row("definitions", {"definitions": {"n": _INTEGER}, "$ref": "#/definitions/n"}, 1, "a"),
    _row("$anchor", {"$defs": {"n": {"$anchor": "here", **_INTEGER}}, "$ref": "#here"}, 1, "a"),
    _row("$id", {"$defs": {"n": {"$id": "urn:n", **_INTEGER}}, "$ref": "urn:n"}, 1, "a"),
    _row(
        "id",
        {"$schema": _DRAFT_4, "definitions": {"n": {"id": "#here", **_INTEGER}}, "$ref": "#here"},
        1,
        "a",
    ),
    _row(
        "$dynamicRef",
        {"$dynamicRef": "#n", "$defs": {"n": {"$dynamicAnchor": "n", **_INTEGER}}},
        *(1, "a"),
        refused=_two_resources({"$dynamicRef": "#n", "$defs": {"n": {"$dynamicAnchor": "n"}}}),
    ),
    _row("$dynamicAnchor", {"$ref": "#n", "$defs": {"n": {"$dynamicAnchor": "n", **_INTEGER}}}, *(1, "a")),
    _row(
        "$recursiveRef",
        {"$schema": _DRAFT_2019, "type": "array", "items": {"$recursiveRef": "#"}},
        *([[]], [1]),
        refused={
            "$schema": _DRAFT_2019,
            **_two_resources({"$recursiveAnchor": True, "items": {"$recursiveRef": "#"}}),
        },
    ),
    _row(
        "$recursiveAnchor",
        {"$schema": _DRAFT_2019, "$recursiveAnchor": True, "type": "array", "items": {"$recursiveRef": "#"}},
        *([[]], [1]),
    ),
    _row("$schema", {"$schema": _DRAFT_7, **_INTEGER}, 1),
    _row(
        "$vocabulary",
        {"$vocabulary": {"https://json-schema.org/draft/2020-12/vocab/core": True}, **_INTEGER},
        1,
    ),
    _row("$comment", {"$comment": "a number", **_INTEGER}, 1),
)
_ANY_TYPE = (
    _row("type", {"type": ["integer", "null"]}, None, "a"),
    _row("enum", {"enum": [1, "a", None, {"a": [1]}]}, {"a": [1]}, {"a": [2]}),
    _row("const", {"const": {"a": [1, None]}}, {"a": [1, None]}, {"a": [1]}),
    _row("anyOf", {"anyOf": [_INTEGER, {"type": "null"}]}, None, "a"),
    _row(
        "oneOf",
        {"oneOf": [{"type": "number", "maximum": 5}, {"type": "number", "minimum": 3}]},
        *(6, 4),
        refused={"type": "string", "oneOf": [{"pattern": "^a"}, {"pattern": "b$"}]},
    ),
    _row("allOf", {"allOf": [_INTEGER, {"maximum": 3}]}, 3, 4),
    _row(
        "not",
        {"type": "integer", "not": {"const": 1}},
        *(2, 1),
        refused={"type": "string", "not": {"pattern": "^a"}},
    ),
    _row(
        "if",
        {"type": "integer", "if": {"minimum": 5}, "then": {"maximum": 7}},
        *(4, 8),
        refused={"type": "string", "if": {"pattern": "^a"}, "then": {"maxLength": 3}},
    ),
    _row("then", {"type": "integer", "if": {"minimum": 5}, "then": {"maximum": 7}}, 7, 8),
    _row("else", {"type": "integer", "if": {"minimum": 5}, "else": {"minimum": 3}}, 3, 2),
)
_OBJECTS = (
    _row("properties", _PAIR, {"a": 1}, {"a": "x"}),
    _row("required", {**_PAIR, "required": ["a"]}, {"a": 1}, {"b": 1}),
    _row("additionalProperties", {"additionalProperties": _INTEGER}, {"x": 1}, {"x": "a"}),
    _row(
        "patternProperties",
        {"patternProperties": {"^x": _INTEGER}, "additionalProperties": False},
        *({"xy": 1}, {"xy": "a"}),
        refused={"patternProperties": {"^x": _INTEGER, "y$": {}}},
    ),
    _row(
        "minProperties",
        {**_PAIR, "minProperties": 2},
        *({"a": 1, "b": 1}, {"b": 1}),
        refused={"additionalProperties": _INTEGER, "minProperties": 2},
    ),
    _row(
        "maxProperties",
        {"additionalProperties": _INTEGER, "maxProperties": 1},
        *({"x": 1}, {"x": 1, "y": 1}),
        refused={**_PAIR, "additionalProperties": _INTEGER, "maxProperties": 1},
    ),
    _row(
        "propertyNames",
        {"propertyNames": {"pattern": "^x"}},
        *({"xa": 1}, {"a": 1}),
        refused={"propertyNames": {"pattern": "^x", "maxLength": 3}},
    ),
    _row(
        "dependentRequired",
        {**_PAIR, "dependentRequired": {"a": ["b"]}},
        *({"b": 1}, {"a": 1}),
        refused={"dependentRequired": {name: [name + name] for name in "abcdefgh"}},
    ),
    _row(
        "dependentSchemas",
        {**_PAIR, "dependentSchemas": {"a": {"required": ["b"]}}},
        *({"b": 1}, {"a": 1}),
        refused={"dependentSchemas": {name: {"required": [name + name]} for name in "abcdefgh"}},
    ),
    _row(
        "dependencies",
        {"$schema": _DRAFT_7, **_PAIR, "dependencies": {"a": ["b"]}},
        *({"b": 1}, {"a": 1}),
        refused={"dependencies": {"a": ["b"]}, "dependentRequired": {"a": ["c"]}},
    ),
    _row(
        "unevaluatedProperties",
        {"allOf": [_PAIR], "properties": {"c": {}}, "unevaluatedProperties": False},
        *({"a": 1}, {"d": 1}),
        refused={"anyOf": [{"properties": {name: {}}} for name in "abcdef"], "unevaluatedProperties": False},
    ),
)
_ARRAYS = (
    _row("items", {"type": "array", "items": _INTEGER}, [1, 2], ["a"]),
    _row("prefixItems", {"type": "array", "prefixItems": [_INTEGER], "items": False}, [1], ["a"]),
    _row(
        "additionalItems",
        {"$schema": _DRAFT_7, "type": "array", "items": [_INTEGER], "additionalItems": {"type": "null"}},
        [1, None],
        [1, 2],
    ),
    _row("minItems", {"type": "array", "minItems": 1}, [1], []),
    _row("maxItems", {"type": "array", "maxItems": 1}, [1], [1, 2]),
    _row(
        "uniqueItems",
        {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True},
        *([2, 1], [2, 2]),
        refused={"type": "array", "uniqueItems": True},
    ),
    _row(
        "contains",
        {"type": "array", "contains": {"const": 1}, "items": _INTEGER, "maxItems": 3},
        *([2, 1], [2, 2]),
        refused={"type": "array", "contains": _INTEGER},
    ),
    _row(
        "minContains",
        {"type": "array", "contains": {"const": 1}, "items": _INTEGER, "maxItems": 3, "minContains": 2},
        *([2, 1, 1], [2, 1]),
        refused={"type": "array", "contains": _INTEGER, "minContains": 2},
    ),
    _row(
        "maxContains",
        {"type": "array", "contains": {"const": 1}, "items": _INTEGER, "maxItems": 3, "maxContains": 1},
        *([2, 1], [1, 1]),
        refused={"type": "array", "contains": _INTEGER, "maxContains": 2},
    ),
    _row(
        "unevaluatedItems",
        {"type": "array", "prefixItems": [{}], "unevaluatedItems": False},
        *([1], [1, 2]),
        refused={"type": "array", "contains": _INTEGER, "unevaluatedItems": False},
    ),
)
_SCALARS = (
    _row("minLength", {"type": "string", "minLength": 2}, "ab", "a"),
    _row("maxLength", {"type": "string", "maxLength": 1}, "é", "ab"),
    _row(
        "pattern",
        {"type": "string", "pattern": "b$"},
        *("ab", "ba"),
        refused={"type": "string", "pattern": "^(?!a)[ab]*$"},
    ),
    _row(
        "format",
        {"type": "string", "format": "ipv4"},
        *("1.2.3.4", "1.2.3"),
        refused={"type": "string", "format": "color"},
    ),
    _row("contentEncoding", {"type": "string", "contentEncoding": "base64"}, "!"),
    _row("contentMediaType", {"type": "string", "contentMediaType": "text/html"}, "!"),
    _row("contentSchema", {"type": "string", "contentSchema": _INTEGER}, "!"),
    _row("minimum", {"type": "number", "minimum": 1.5}, 1.5, 1.4),
    _row("maximum", {"type": "number", "maximum": 1.5}, 1.5, 1.6),
    _row("exclusiveMinimum", {"type": "integer", "exclusiveMinimum": 3}, 4, 3),
    _row("exclusiveMaximum", {"type": "integer", "exclusiveMaximum": 3}, 2, 3),
    _row("multipleOf", {"type": "number", "multipleOf": 0.25}, 1.25, 1.2),
)
_ABOUT = tuple(
    _row(name, {name: value, **_INTEGER}, 1)
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
    _row(name, {name: value, **_INTEGER}, 1)
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
    "time": ("23:59:59Z", "24:00:00Z"),
    "date-time": ("2024-12-31T23:59:59.5+01:00", "2024-12-31T23:59:59"),
    "duration": ("P1DT12H", "1D"),
    "email": ("a.b@example.org", "a.b"),
    "hostname": ("a-1.example", "-a"),
    "ipv4": ("127.0.0.1", "127.0.0.256"),
    "ipv6": ("fe80::1", "fe80::1::2"),
    "uri": ("http://example.org/a?b#c", "/a"),
    "uuid": ("01234567-89ab-cdef-0123-456789ABCDEF", "01234567-89ab-cdef-0123-456789abcde"),
    "json-pointer": ("/a~1b/0", "a"),
    "relative-json-pointer": ("1/a", "/a"),
    "byte": ("YQ==", "Y"),
    "uuid1": ("01234567-89ab-1def-8123-456789abcdef", "01234567-89ab-4def-8123-456789abcdef"),
    "uuid3": ("01234567-89ab-3def-8123-456789abcdef", "01234567-89ab-4def-8123-456789abcdef"),
    "uuid4": ("01234567-89ab-4def-8123-456789abcdef", "01234567-89ab-1def-8123-456789abcdef"),
    "uuid5": ("01234567-89ab-5def-8123-456789abcdef", "01234567-89ab-4def-8123-456789abcdef"),
    "ipv4interface": ("10.0.0.1/8", "10.0.0.1/33"),
    "uri-reference": ("../a?b#c", "a b"),
    "iri-reference": ("/a", "a b"),
    "iri": ("http://example.org/a", "/a"),
    "uri-template": ("/a/{b}{?c*}", "/a/{b"),
    "idn-hostname": ("a-1.example", "-a"),
    "idn-email": ("a.b@example.org", "a.b"),
    "regex": ("^(a|b[0-9])+$", "(a"),
}
_HINTS = ("password", "binary", "path", "file-path", "directory-path")
_OF_NUMBERS = ("int32", "int64", "float", "double")

FORMATS: tuple[Keyword, ...] = (
    *(_format(name, *values) for name, values in _STRINGS.items()),
    *(_format(name) for name in ("color", "phone")),
    *(_format(name, "any text") for name in _HINTS),
    *(_format(name, 1 << 40, kind="integer") for name in _OF_NUMBERS),
)


def render_table(rows: tuple[Keyword, ...] = KEYWORDS) -> str:
    """A Markdown table: a row for each group, a column for each verdict."""
    lines = [
        "| | exact | checked | limited | refused | says nothing about values |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for group in dict.fromkeys(row.support.group for row in rows):
        cells = (
            ", ".join(f"`{row.name}`" for row in rows if (row.support.group, row.verdict) == (group, verdict))
            for verdict in VERDICTS
        )
        lines.append(f"| {group} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def render_limits(rows: tuple[Keyword, ...] = KEYWORDS) -> str:
    """A Markdown table of what is followed only in some forms."""
    by_limit: dict[tuple[str, Verdict], list[str]] = {}
    for row in rows:
        if row.verdict in (CHECKED, LIMITED):
            by_limit.setdefault((row.support.limit, row.verdict), []).append(f"`{row.name}`")
    lines = ["| keyword | a part of the grammar | otherwise |", "| --- | --- | --- |"]
    others = {CHECKED: "checked", LIMITED: "refused"}
    lines += [
        f"| {', '.join(names)} | {limit.replace(_OPPOSITE, 'with a simple opposite')} | {others[verdict]} |"
        for (limit, verdict), names in by_limit.items()
    ]
    return "\n".join(lines) + "\n"


def tables() -> dict[str, str]:
    """What stands between which markers of the page."""
    formats = render_table(FORMATS)
    return {"keywords": render_table(), "limits": render_limits(KEYWORDS + FORMATS), "formats": formats}


def insert_tables(page: str) -> str:
    for name, table in tables().items():
        before, start, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        page = before + start + table + end + after
    return page


if __name__ == "__main__":
    PAGE.write_text(insert_tables(PAGE.read_text()))
