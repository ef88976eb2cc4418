"""Rewrite `minProperties` with required properties if all names are known."""

from __future__ import annotations

import math
from itertools import combinations

from corral.grammar.rewrite.part import Schema

MAX_ALTERNATIVES = 64


def count_rules(rules: Schema) -> list[Schema]:
    """Return alternatives that require enough properties, or the rules as they are if that is impossible."""
    names = optional_names(rules)
    if names is None:
        return [rules]
    required = rules.get("required", [])
    n_missing = rules["minProperties"] - len(required)
    rest = {k: v for k, v in rules.items() if k != "minProperties"}
    if n_missing <= 0:
        return [rest]
    if n_missing > len(names):
        return []
    if math.comb(len(names), n_missing) > MAX_ALTERNATIVES:
        return [rules]
    return [{**rest, "required": [*required, *more]} for more in combinations(names, n_missing)]


def optional_names(rules: Schema) -> list[str] | None:
    """Return the optional properties if they must be counted; None if there is nothing to rewrite."""
    is_open = rules.get("additionalProperties", True) is not False or rules.get("patternProperties")
    if is_open or rules.get("minProperties", 0) <= 1:
        return None
    required = rules.get("required", [])
    return [n for n, part in rules.get("properties", {}).items() if n not in required and part is not False]
