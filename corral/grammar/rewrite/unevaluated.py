"""Apply `unevaluatedProperties` and `unevaluatedItems` once everything that applies to a value is merged."""

from __future__ import annotations

from dataclasses import replace

from corral.grammar.rewrite.case import Case, Seen
from corral.grammar.rewrite.merge import Accepts, merge
from corral.grammar.rewrite.part import NotExact, Schema


def close_rest(case: Case, schema: Schema, accepts: Accepts) -> Case | None:
    """Return the case with the schema's `unevaluated...` applied to what nothing has evaluated."""
    if case.type == "object" and "unevaluatedProperties" in schema:
        return _close(case, _object_rules(case, schema["unevaluatedProperties"]), accepts)
    if case.type == "array" and "unevaluatedItems" in schema:
        return _close(case, _array_rules(case, schema["unevaluatedItems"]), accepts)
    return case


def _close(case: Case, rules: Schema, accepts: Accepts) -> Case | None:
    known = case if case.seen.is_all else merge(case, Case(case.type, rules), accepts)
    return None if known is None else replace(known, seen=Seen(is_all=True))


def _object_rules(case: Case, rest: object) -> Schema:
    names = dict.fromkeys(sorted(case.seen.names), True)
    patterns = dict.fromkeys(sorted(case.seen.patterns), True)
    return {"properties": names, "patternProperties": patterns, "additionalProperties": rest}


def _array_rules(case: Case, rest: object) -> Schema:
    if "contains" in case.rules:
        reason = "which items contains has looked at depends on the others"
        raise NotExact("unevaluatedItems", reason, "use prefixItems and items")
    return {"prefixItems": [True] * case.seen.n_items, "items": rest}
