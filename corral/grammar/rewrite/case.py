"""Cases: a schema as a union of descriptions of one JSON type each.

`rules` hold the keywords of the type, with lists where several may apply: `texts` (schemas with `pattern`
or `format`), `names` (schemas of property names), `contains` (schema, least, most).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from corral.grammar.rewrite.part import AT, TYPES, Schema

NUMBERS = ("number", "integer")
_OF_TYPE: dict[str, tuple[str, ...]] = {
    "null": (),
    "boolean": (),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "string": ("minLength", "maxLength"),
    "array": ("prefixItems", "items", "minItems", "maxItems"),
    "object": (
        *("properties", "patternProperties", "additionalProperties", "required"),
        *("minProperties", "maxProperties"),
    ),
}
_OF_TYPE["integer"] = _OF_TYPE["number"]


@dataclass(frozen=True, slots=True)
class Seen:
    """What of an object or array has been evaluated; `unevaluated...` applies to the rest."""

    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    is_all: bool = False
    n_items: int = 0

    def add(self, other: Seen) -> Seen:
        return Seen(
            self.names | other.names,
            self.patterns | other.patterns,
            self.is_all or other.is_all,
            max(self.n_items, other.n_items),
        )


@dataclass(frozen=True, slots=True)
class Case:
    """Values of one type. `values`: only these, without rules."""

    type: str
    rules: Schema = field(default_factory=dict)
    values: tuple[Any, ...] | None = None
    seen: Seen = Seen()

    def rule(self, keyword: str, default: Any = None) -> Any:
        return self.rules.get(keyword, default)


def type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def cases_of(schema: Schema) -> list[Case]:
    """Return the cases that the keywords of the types describe, without `enum` and `const`."""
    return [_case(name, schema) for name in types_of(schema)]


def types_of(schema: Schema) -> list[str]:
    found = schema.get("type", list(TYPES))
    names = [found] if isinstance(found, str) else list(found)
    return [name for name in dict.fromkeys(names) if not (name == "integer" and "number" in names)]


def _case(name: str, schema: Schema) -> Case:
    rules = {k: schema[k] for k in _OF_TYPE.get(name, ()) if k in schema}
    if name == "string":
        texts = [{k: schema[k], AT: schema.get(AT)} for k in ("pattern", "format") if k in schema]
        rules |= {"texts": texts} if texts else {}
    if name == "array":
        rules |= _array_rules(schema)
    if name == "object" and "propertyNames" in schema:
        rules["names"] = [schema["propertyNames"]]
    return Case(name, rules, seen=_seen(name, schema))


def _array_rules(schema: Schema) -> Schema:
    rules: Schema = {}
    if "contains" in schema:
        most = schema.get("maxContains")
        rules["contains"] = [(schema["contains"], schema.get("minContains", 1), most)]
    if schema.get("uniqueItems") is True:
        rules["uniqueItems"] = True
    return rules


def _seen(name: str, schema: Schema) -> Seen:
    if name == "object":
        names, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        return Seen(frozenset(names), frozenset(patterns), "additionalProperties" in schema)
    if name == "array":
        return Seen(is_all="items" in schema, n_items=len(schema.get("prefixItems", [])))
    return Seen()


def schema_of(case: Case) -> Schema:
    """Return a case as a schema of draft 2020-12, with all of its keywords."""
    if case.values is not None:
        return {"enum": list(case.values)}
    inner = ("texts", "names", "contains")
    rules = {k: v for k, v in case.rules.items() if k not in inner and (k, v) != ("prefixItems", [])}
    schema = {"type": case.type, **rules}
    more: list[Schema] = list(case.rule("texts", []))
    if names := case.rule("names", []):
        schema["propertyNames"] = names[0] if len(names) == 1 else {"allOf": names}
    for part, least, most in case.rule("contains", []):
        counts = {"minContains": least} | ({} if most is None else {"maxContains": most})
        more.append({"contains": part, **counts})
    if len(more) == 1:
        return {**schema, **more[0]}
    return {**schema, "allOf": more} if more else schema
