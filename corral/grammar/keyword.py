"""How far each JSON Schema keyword and format is followed: the table that `/props` and the docs show.

`exact`: always enforced. `checked`: enforced where the grammar can express it, otherwise checked while the
answer grows. `limited`: enforced where the grammar can express it, otherwise the request fails with 400 and
suggests a form that works. `refused`: 400. `annotation`: no effect on values.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Verdict = Literal["exact", "checked", "limited", "refused", "annotation"]

_NONE = "none: a part of the mask of every token"
_REDRAWS = "otherwise up to --schema-retries redraws of"
_ALTERNATIVES = "compiling: one alternative for each combination, at most 128 for one part of the schema"


class Support(NamedTuple):
    """How a keyword is supported. `limit`: when it is enforced; `cost`: of enforcing it."""

    group: str
    verdict: Verdict
    limit: str = ""
    cost: str = ""


def _rows(group: str, verdict: Verdict, *names: str, limit: str = "", cost: str = "") -> dict[str, Support]:
    return dict.fromkeys(names, Support(group, verdict, limit, cost))


def _exact(group: str, *names: str) -> dict[str, Support]:
    return _rows(group, "exact", *names, cost=_NONE)


def _limited(group: str, name: str, limit: str, cost: str = _ALTERNATIVES) -> dict[str, Support]:
    return _rows(group, "limited", name, limit=limit, cost=cost)


def _checked(group: str, name: str, limit: str, part: str = "the value") -> dict[str, Support]:
    return _rows(group, "checked", name, limit=limit, cost=f"{_ALTERNATIVES}; {_REDRAWS} {part}")


_OPPOSITE = "where the opposite is type, const, enum, required, a bound or a property with one of these"

KEYWORDS: dict[str, Support] = {
    **_exact("core", "$ref", "$defs", "definitions", "$anchor", "$id", "id"),
    **_limited("core", "$dynamicRef", "where it leads to the same schema on every way", _NONE),
    **_exact("core", "$dynamicAnchor"),
    **_limited("core", "$recursiveRef", "where it leads to the same schema on every way", _NONE),
    **_exact("core", "$recursiveAnchor"),
    **_rows("core", "annotation", "$schema", "$vocabulary", "$comment"),
    **_exact("any type", "type", "enum", "const", "anyOf", "allOf"),
    **_checked("any type", "oneOf", f"branches that exclude each other, or {_OPPOSITE}"),
    **_checked("any type", "not", _OPPOSITE),
    **_checked("any type", "if", f"conditions {_OPPOSITE}"),
    **_exact("any type", "then", "else"),
    **_exact("objects", "properties", "required", "additionalProperties"),
    **_limited("objects", "patternProperties", "patterns that do not overlap", _NONE),
    **_checked("objects", "minProperties", "up to 1, or where names are known or all are required"),
    **_checked("objects", "maxProperties", "where names are known, or all declared ones are required"),
    **_checked("objects", "propertyNames", "enum, const, or one of pattern, format and length", "a name"),
    **_checked("objects", "dependentRequired", "up to 7 independent names"),
    **_checked("objects", "dependentSchemas", "up to 7 independent names"),
    **_limited("objects", "dependencies", "not next to its successors for the same name"),
    **_checked("objects", "unevaluatedProperties", "next to anyOf with up to 5 branches, and all else"),
    **_exact("arrays", "items", "prefixItems", "additionalItems", "minItems", "maxItems"),
    **_checked("arrays", "uniqueItems", "items of enum, const or boolean with at most 400 arrays", "an item"),
    **_checked(
        "arrays",
        "contains",
        "with a maxItems that leaves at most 64 places, or if all items match",
        "an item",
    ),
    **_checked("arrays", "minContains", "as contains", "an item"),
    **_checked("arrays", "maxContains", f"as contains, and {_OPPOSITE}", "an item"),
    **_checked("arrays", "unevaluatedItems", "without contains"),
    **_exact("strings", "minLength", "maxLength"),
    **_checked("strings", "pattern", "without look-around, back references and \\b"),
    **_limited("strings", "format", "the formats below", _NONE),
    **_rows("strings", "annotation", "contentEncoding", "contentMediaType", "contentSchema"),
    **_exact("numbers", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    **_rows("about the schema", "annotation", "title", "description", "default", "examples"),
    **_rows("about the schema", "annotation", "deprecated", "readOnly", "writeOnly"),
    **_rows("OpenAPI", "annotation", "nullable", "discriminator", "example", "xml", "externalDocs"),
}

FORMATS: dict[str, Support] = {
    **_exact("strings", "date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6"),
    **_exact("strings", "uri", "uuid", "json-pointer", "relative-json-pointer", "byte"),
    **_exact("strings", "uuid1", "uuid3", "uuid4", "uuid5", "ipv4interface"),
    **_limited("strings", "uri-reference", "hosts are names or IPv4 addresses", _NONE),
    **_limited("strings", "iri-reference", "ASCII", _NONE),
    **_limited("strings", "iri", "ASCII, with a host", _NONE),
    **_limited("strings", "uri-template", "ASCII", _NONE),
    **_limited("strings", "idn-hostname", "ASCII in lower case", _NONE),
    **_limited("strings", "idn-email", "ASCII", _NONE),
    **_limited("strings", "regex", "characters, classes, quantifiers, one level of groups", _NONE),
    **_rows("strings", "refused", "color", "phone"),
    **_rows("strings", "annotation", "password", "binary", "path", "file-path", "directory-path"),
    **_rows("numbers", "annotation", "int32", "int64", "float", "double"),
}


def render_support() -> dict[str, dict[str, dict[str, str]]]:
    """Return the tables for `/props`."""
    return {"keywords": _render(KEYWORDS), "formats": _render(FORMATS)}


def _render(table: dict[str, Support]) -> dict[str, dict[str, str]]:
    return {
        name: {
            key: text
            for key, text in (
                ("support", row.verdict),
                ("where", row.limit),
                ("cost", row.cost.removeprefix(_NONE)),
            )
            if text
        }
        for name, row in table.items()
    }
