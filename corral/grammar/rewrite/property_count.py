"""Rewrite `minProperties` and `maxProperties` with fewer or required properties if all names are known."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations

from corral.grammar.rewrite.part import Schema

MAX_ALTERNATIVES = 64


def needs_count(rules: Schema) -> bool:
    """Whether `count_rules` would change the rules. They may be malformed, where only a `$ref` leads."""
    least, most = rules.get("minProperties", 0), rules.get("maxProperties", math.inf)
    if not (isinstance(least, int | float) and isinstance(most, int | float)):
        return False
    is_fixed = most == 0 or max(least, len(rules.get("required", []))) > most
    return is_fixed or _optional_names(rules) is not None


def count_rules(rules: Schema) -> list[Schema]:
    """Return alternatives that have only counts that are enforced, or the rules as they are if there would be
    too many."""
    required = rules.get("required", [])
    least, most = rules.get("minProperties", 0), rules.get("maxProperties", math.inf)
    if max(least, len(required)) > most:
        return []
    if most == 0:
        return [{"maxProperties": 0}]
    names = _optional_names(rules)
    if names is None:
        return [rules]
    least, most = max(0, int(least) - len(required)), int(min(most - len(required), len(names)))
    if least > most:
        return []
    rest = {k: v for k, v in rules.items() if k not in ("minProperties", "maxProperties")}
    if most == 1 < len(names):
        return [{**rest, "minProperties": len(required) + least, "maxProperties": len(required) + 1}]
    if math.comb(len(names), most) * (math.comb(most, least) if least > 1 else 1) > MAX_ALTERNATIVES:
        return [rules]
    return [known for kept in combinations(names, most) for known in _require(rest, kept, least)]


def _require(rules: Schema, kept: tuple[str, ...], least: int) -> Iterator[Schema]:
    """Yield alternatives with `least` or more of these optional properties, and no others."""
    required = rules.get("required", [])
    properties = {n: part for n, part in rules.get("properties", {}).items() if n in kept or n in required}
    rest = {**rules, "properties": properties}
    if least <= 1:
        yield {**rest, "minProperties": len(required) + 1} if least else rest
    else:
        for more in combinations(kept, least):
            yield {**rest, "required": [*required, *more]}


def _optional_names(rules: Schema) -> list[str] | None:
    """Return the optional properties if they must be counted; None if there is nothing to rewrite."""
    is_open = rules.get("additionalProperties", True) is not False or rules.get("patternProperties")
    if is_open or ("maxProperties" not in rules and rules.get("minProperties", 0) <= 1):
        return None
    required = rules.get("required", [])
    return [n for n, part in rules.get("properties", {}).items() if n not in required and part is not False]
