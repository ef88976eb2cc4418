"""Rewrite `propertyNames` with declared properties and patterns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corral.grammar.rewrite.case import Case
from corral.grammar.rewrite.format import pattern_of
from corral.grammar.rewrite.merge import Accepts, property_of
from corral.grammar.rewrite.other_text import one_of
from corral.grammar.rewrite.part import NotExact, Schema, is_any

MAX_NAMES = 200


def name_rules(rules: Schema, expand: Callable[[Any], list[Case]], accepts: Accepts) -> Schema | None:
    """Return the rules of objects without `names`; None if no object can satisfy them."""
    if "names" not in rules:
        return rules
    schemas = rules["names"]
    schema = schemas[0] if len(schemas) == 1 else {"allOf": schemas}
    cases = [case for case in expand(schema) if case.type == "string"]
    rules = {k: v for k, v in rules.items() if k != "names"}
    if not all(accepts(name, schema) for name in rules.get("required", [])):
        return None
    names = rules.get("properties", {})
    properties = {n: property_of(rules, n, accepts) if accepts(n, schema) else False for n in names}
    if all(case.values is not None for case in cases):
        return _only(rules, properties, [value for case in cases for value in case.values or ()], accepts)
    return _limit({**rules, "properties": properties}, cases, accepts)


def _only(rules: Schema, properties: Schema, names: list[str], accepts: Accepts) -> Schema:
    """Rewrite objects with a finite set of names."""
    if len(names) > MAX_NAMES:
        raise NotExact("propertyNames", f"more than {MAX_NAMES} names", "list them under properties")
    more = {n: property_of(rules, n, accepts) for n in names if n not in properties}
    rest = {k: v for k, v in rules.items() if k not in ("patternProperties", "additionalProperties")}
    return {**rest, "properties": {**properties, **more}, "additionalProperties": False}


def _limit(rules: Schema, cases: list[Case], accepts: Accepts) -> Schema:
    """Rewrite objects whose other names must match patterns."""
    patterns = [_pattern(case) for case in cases]
    rest = rules.get("additionalProperties", True)
    if None in patterns or (rest is False and not rules.get("patternProperties")):
        return rules
    if rules.get("patternProperties"):
        reason = "next to patternProperties both would have to match"
        raise NotExact("propertyNames", reason, "put the condition into patternProperties")
    pattern = "|".join(f"(?:{p})" for p in patterns) if len(patterns) > 1 else str(patterns[0])
    declared = [name for name, part in rules.get("properties", {}).items() if part is not False]
    if not is_any(rest) and any(accepts(name, {"pattern": pattern}) for name in declared):
        reason = "the rule for other properties would apply to declared ones as well"
        raise NotExact("propertyNames", reason, "use a pattern that declared names do not match")
    return {**rules, "patternProperties": {pattern: rest}, "additionalProperties": False}


def _pattern(case: Case) -> str | None:
    """Return a pattern for the strings of a case; None if it allows all strings."""
    if case.values is not None:
        return one_of(list(case.values))
    texts, least, most = case.rule("texts", []), case.rule("minLength", 0), case.rule("maxLength")
    length = rf"^[\s\S]{{{least},{'' if most is None else most}}}$" if least or most is not None else None
    if not texts:
        return length
    if len(texts) > 1 or length:
        hint = "say it all in one pattern"
        raise NotExact("propertyNames", "only one pattern, format or length can be followed", hint)
    found = texts[0].get("pattern") or pattern_of(texts[0]["format"])
    if found is None:
        raise NotExact("propertyNames", "the format has no pattern", "use a pattern")
    return str(found)
