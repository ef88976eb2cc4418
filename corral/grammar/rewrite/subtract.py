"""Subtract one case from another: the base of `not`, `if` and `oneOf`."""

from __future__ import annotations

import math
from typing import Any

from corral.grammar.rewrite.case import NUMBERS, Case, schema_of
from corral.grammar.rewrite.merge import Accepts, item_of, merge, property_of
from corral.grammar.rewrite.other_text import other_texts
from corral.grammar.rewrite.part import AT, MERGED, NotExact, Schema, is_any

MAX_POSITIONS = 16
_HINT = "negate only type, const, enum, required, bounds and properties"


def subtract(base: Case, other: Case, accepts: Accepts) -> list[Case]:
    """Return the values of `base` that are not in `other`. Raises NotExact if that cannot be expressed."""
    if base.type != other.type and not (base.type in NUMBERS and other.type in NUMBERS):
        return [base]
    if base.values is not None:
        return _without(base, other, accepts)
    if other.values is not None:
        return _exclude(base, other.values, accepts)
    if other.type == "integer" and base.type != "integer":
        raise NotExact("not", "numbers that are not integers cannot be told by their text", _HINT)
    found = [merge(base, Case(base.type, rules), accepts) for rules in _violations(base, other, accepts)]
    return [case for case in found if case is not None]


def _without(base: Case, other: Case, accepts: Accepts) -> list[Case]:
    if any("format" in text for text in other.rule("texts", [])):
        raise NotExact("not", "validators do not agree about formats", _HINT)
    schema = schema_of(other)
    values = tuple(value for value in base.values or () if not accepts(value, schema))
    return [Case(base.type, {}, values, base.seen)] if values else []


def _exclude(base: Case, values: tuple[Any, ...], accepts: Accepts) -> list[Case]:
    """Return a case without certain values."""
    if base.type == "boolean":
        rest = tuple(value for value in (True, False) if value not in values)
        return [Case("boolean", {}, rest, base.seen)] if rest else []
    if base.type == "null":
        return []
    if base.type == "string":
        rules = [{"texts": [{"pattern": other_texts(list(values))}]}]
    elif base.type in NUMBERS:
        rules = _around(sorted(values), base.type == "integer")
    else:
        raise NotExact("not", f"one {base.type} cannot be excluded", _HINT)
    found = [merge(base, Case(base.type, rule), accepts) for rule in rules]
    return [case for case in found if case is not None]


def _around(values: list[Any], is_integer: bool) -> list[Schema]:
    """Return the ranges between the numbers."""
    if is_integer:
        values = [value for value in values if value == int(value)]
        ends = [(value + 1, value - 1) for value in map(int, values)]
        keys = ("minimum", "maximum")
    else:
        ends = [(value, value) for value in values]
        keys = ("exclusiveMinimum", "exclusiveMaximum")
    lows: list[Schema] = [{}, *({keys[0]: low} for low, _ in ends)]
    highs: list[Schema] = [*({keys[1]: high} for _, high in ends), {}]
    return [{**low, **high} for low, high in zip(lows, highs, strict=True)]


def _violations(base: Case, other: Case, accepts: Accepts) -> list[Schema]:
    """Return alternatives of rules, each of which violates those of `other`."""
    if other.type in NUMBERS:
        return _outside(other)
    if other.type == "string":
        return _other_strings(other)
    if other.type == "array":
        return _other_arrays(base, other)
    return _other_objects(base, other, accepts) if other.type == "object" else []


def _outside(other: Case) -> list[Schema]:
    if "multipleOf" in other.rules:
        raise NotExact("not", "numbers that are no multiples cannot be told by their text", _HINT)
    opposite = {
        "minimum": "exclusiveMaximum",
        "maximum": "exclusiveMinimum",
        "exclusiveMinimum": "maximum",
        "exclusiveMaximum": "minimum",
    }
    return [{opposite[k]: bound} for k, bound in other.rules.items()]


def _other_strings(other: Case) -> list[Schema]:
    if "texts" in other.rules:
        raise NotExact("not", "the opposite of a pattern or format cannot be said", _HINT)
    return _lengths(other, "minLength", "maxLength")


def _lengths(other: Case, least: str, most: str) -> list[Schema]:
    found: list[Schema] = [{least: other.rules[most] + 1}] if most in other.rules else []
    return found + ([{most: other.rules[least] - 1}] if other.rule(least, 0) > 0 else [])


def _other_arrays(base: Case, other: Case) -> list[Schema]:
    if "uniqueItems" in other.rules:
        raise NotExact("not", "arrays with equal items cannot be said", _HINT)
    found = _lengths(other, "minItems", "maxItems")
    n_prefix = len(other.rule("prefixItems", []))
    if not is_any(other.rule("items", True)):
        n_prefix = int(min(base.rule("maxItems", math.inf), MAX_POSITIONS + 1))
        if n_prefix > MAX_POSITIONS:
            raise NotExact("not", "any item could be another one", f"add maxItems, at most {MAX_POSITIONS}")
    for i in range(n_prefix):
        part = item_of(other.rules, i)
        if not is_any(part):
            found.append({"minItems": i + 1, "prefixItems": [True] * i + [negated(part)]})
    return found + [_other_count(*rule) for rule in other.rule("contains", [])]


def _other_count(part: Any, least: int, most: int | None) -> Schema:
    if least != 1 or most is not None:
        raise NotExact("not", "the opposite of counted items cannot be said", _HINT)
    return {"items": negated(part)}


def _other_objects(base: Case, other: Case, accepts: Accepts) -> list[Schema]:
    found = _lengths(other, "minProperties", "maxProperties")
    found += [{"properties": {name: False}} for name in other.rule("required", [])]
    names = dict.fromkeys(other.rule("properties", {}))
    is_open = any(not is_any(part) for part in other.rule("patternProperties", {}).values())
    if is_open or not is_any(other.rule("additionalProperties", True)) or "names" in other.rules:
        names |= dict.fromkeys(_all_names(base))
    for name in names:
        part = both_of_name(other, name, accepts)
        if not is_any(part):
            found.append({"required": [name], "properties": {name: negated(part)}})
    return found


def both_of_name(other: Case, name: str, accepts: Accepts) -> Any:
    """Return the schema of a property, False if its name is not allowed."""
    is_named = all(accepts(name, part) for part in other.rule("names", []))
    return property_of(other.rules, name, accepts) if is_named else False


def _all_names(base: Case) -> list[str]:
    if base.rule("additionalProperties", True) is not False or base.rule("patternProperties"):
        hint = "add additionalProperties: false to the object itself"
        raise NotExact("not", "any other property could be the one", hint)
    return list(base.rule("properties", {}))


def negated(part: Any) -> Any:
    """Return the negation of a schema."""
    if isinstance(part, bool):
        return not part
    return False if is_any(part) else {"not": part, AT: part.get(AT), MERGED: True}
