"""Intersect two cases. Schemas of properties and items are not inspected."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from corral.grammar.rewrite.case import NUMBERS, Case, schema_of
from corral.grammar.rewrite.part import NotExact, Schema, both

Accepts = Callable[[Any, Any], bool]  # whether a value is valid against a schema
MAX_EXACT = 2**53

# Formats that have no text in common.
_APART = frozenset(["date", "time", "date-time", "uuid", "ipv4", "ipv6", "email", "duration"])


def merge(a: Case, b: Case, accepts: Accepts) -> Case | None:
    """Return the intersection of two cases; None if it is provably empty."""
    if a.type != b.type and not (a.type in NUMBERS and b.type in NUMBERS):
        return None
    name = "integer" if "integer" in (a.type, b.type) else a.type
    seen = a.seen.add(b.seen)
    if a.values is not None or b.values is not None:
        known, other = (a, b) if a.values is not None else (b, a)
        assert known.values is not None
        schema = schema_of(other)
        values = tuple(value for value in known.values if accepts(value, schema))
        return Case(name, {}, values, seen) if values else None
    rules = (
        _merge_objects(a.rules, b.rules, accepts) if name == "object" else _MERGERS[name](a.rules, b.rules)
    )
    return None if rules is None else Case(name, rules, None, seen)


def absent(case: Case, name: str, accepts: Accepts) -> Case | None:
    """Return the objects without a property."""
    return merge(case, Case("object", {"properties": {name: False}}), accepts)


def present(case: Case, names: list[str], accepts: Accepts) -> Case | None:
    """Return the objects with certain properties."""
    return merge(case, Case("object", {"required": names}), accepts)


def property_of(rules: Schema, name: str, accepts: Accepts) -> Any:
    """Return the schema of a property."""
    found: Any = True
    is_named = name in rules.get("properties", {})
    if is_named:
        found = rules["properties"][name]
    for pattern, part in rules.get("patternProperties", {}).items():
        if accepts(name, {"pattern": pattern}):
            is_named = True
            found = both(found, part)
    return found if is_named else rules.get("additionalProperties", True)


def item_of(rules: Schema, i: int) -> Any:
    """Return the schema of an item."""
    prefix = rules.get("prefixItems", [])
    return prefix[i] if i < len(prefix) else rules.get("items", True)


def _merge_numbers(a: Schema, b: Schema) -> Schema | None:
    rules = _bounds(a, b, ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
    factors = [Fraction(str(r["multipleOf"])) for r in (a, b) if "multipleOf" in r]
    if factors:
        rules["multipleOf"] = _as_number(_lcm(factors))
    low, high = rules.get("minimum", -math.inf), rules.get("maximum", math.inf)
    above, below = rules.get("exclusiveMinimum", -math.inf), rules.get("exclusiveMaximum", math.inf)
    is_empty = max(low, above) > min(high, below) or low >= below or above >= high or above >= below
    return None if is_empty else rules


def _lcm(factors: list[Fraction]) -> Fraction:
    if len(factors) == 1 or factors[0] == factors[1]:
        return factors[0]
    a, b = factors
    return Fraction(math.lcm(a.numerator, b.numerator), math.gcd(a.denominator, b.denominator))


def _as_number(value: Fraction) -> int | float:
    return value.numerator if value.denominator == 1 else float(value)


def _merge_strings(a: Schema, b: Schema) -> Schema | None:
    rules = _bounds(a, b, ("minLength",), ("maxLength",))
    texts = list(a.get("texts", []))
    texts += [text for text in b.get("texts", []) if _rule(text) not in map(_rule, texts)]
    formats = {text["format"] for text in texts if "format" in text}
    if len(formats & _APART) > 1 or rules.get("minLength", 0) > rules.get("maxLength", math.inf):
        return None
    return {**rules, **({"texts": texts} if texts else {})}


def _rule(text: Schema) -> tuple[Any, Any]:
    return text.get("pattern"), text.get("format")


def _merge_arrays(a: Schema, b: Schema) -> Schema | None:
    rules = _bounds(a, b, ("minItems",), ("maxItems",))
    n_prefix = max(len(r.get("prefixItems", [])) for r in (a, b))
    prefix = [both(item_of(a, i), item_of(b, i)) for i in range(n_prefix)]
    items = both(a.get("items", True), b.get("items", True))
    if False in prefix:
        prefix = prefix[: prefix.index(False)]
        items = False
    if items is False:
        rules["maxItems"] = min(rules.get("maxItems", len(prefix)), len(prefix))
    if prefix:
        rules["prefixItems"] = prefix
    if items is not True:
        rules["items"] = items
    contains = [*a.get("contains", []), *b.get("contains", [])]
    rules |= {"contains": contains} if contains else {}
    rules |= {"uniqueItems": True} if a.get("uniqueItems") or b.get("uniqueItems") else {}
    return None if rules.get("minItems", 0) > rules.get("maxItems", math.inf) else rules


def _merge_objects(a: Schema, b: Schema, accepts: Accepts) -> Schema | None:
    rules = _bounds(a, b, ("minProperties",), ("maxProperties",))
    names = dict.fromkeys([*a.get("properties", {}), *b.get("properties", {})])
    properties = {n: both(property_of(a, n, accepts), property_of(b, n, accepts)) for n in names}
    required = list(dict.fromkeys([*a.get("required", []), *b.get("required", [])]))
    other = both(a.get("additionalProperties", True), b.get("additionalProperties", True))
    patterns = {**_patterns(a, b), **_patterns(b, a)}
    rules |= {"properties": properties} if properties else {}
    rules |= {"patternProperties": patterns} if patterns else {}
    rules |= {"additionalProperties": other} if other is not True else {}
    rules |= {"required": required} if required else {}
    schemas = [*a.get("names", []), *b.get("names", [])]
    rules |= {"names": schemas} if schemas else {}
    is_empty = any(property_of(rules, name, accepts) is False for name in required)
    is_empty |= rules.get("minProperties", 0) > rules.get("maxProperties", math.inf)
    return None if is_empty or len(required) > rules.get("maxProperties", math.inf) else rules


def _patterns(a: Schema, b: Schema) -> Schema:
    """Return the patterns of one object, intersected with what another object says about the same names."""
    theirs, rest = b.get("patternProperties", {}), b.get("additionalProperties", True)
    if (
        rest is not True
        and theirs.keys() - a.get("patternProperties", {}).keys()
        and a.get("patternProperties")
    ):
        raise NotExact("patternProperties", "patterns of two objects may overlap", "use the same patterns")
    return {p: both(part, theirs.get(p, rest)) for p, part in a.get("patternProperties", {}).items()}


def _bounds(a: Schema, b: Schema, lower: tuple[str, ...], upper: tuple[str, ...]) -> Schema:
    rules = {k: max(r[k] for r in (a, b) if k in r) for k in lower if k in a or k in b}
    return rules | {k: min(r[k] for r in (a, b) if k in r) for k in upper if k in a or k in b}


_MERGERS: dict[str, Callable[[Schema, Schema], Schema | None]] = {
    "null": lambda a, b: {**a, **b},  # it has no rules
    "boolean": lambda a, b: {**a, **b},
    "number": _merge_numbers,
    "integer": _merge_numbers,
    "string": _merge_strings,
    "array": _merge_arrays,
}
