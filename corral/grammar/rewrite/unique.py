"""Rewrite `uniqueItems` exactly, if items cannot be equal or there are only a few arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

from corral.grammar.rewrite.case import Case
from corral.grammar.rewrite.merge import Accepts, item_of
from corral.grammar.rewrite.part import NotExact, Schema

MAX_ARRAYS = 400
MAX_POSITIONS = 16


def unique_cases(
    case: Case, expand: Callable[[Any], list[Case]], are_apart: Callable[[Any, Any], bool], accepts: Accepts
) -> list[Case]:
    """Return the arrays without `uniqueItems`, or a list of all arrays."""
    if "uniqueItems" not in case.rules:
        return [case]
    rules = {k: v for k, v in case.rules.items() if k != "uniqueItems"}
    plain = Case("array", rules, None, case.seen)
    most = rules.get("maxItems", math.inf)
    if most <= 1 or (most <= MAX_POSITIONS and _are_all_apart(rules, int(most), are_apart)):
        return [plain]
    arrays = _arrays(rules, expand, accepts)
    if arrays is None:
        reason = "items must be compared with each other"
        hint = f"it can be followed for enum, const or boolean items with at most {MAX_ARRAYS} arrays"
        raise NotExact("uniqueItems", reason, hint)
    return [Case("array", {}, tuple(arrays), case.seen)] if arrays else []


def _are_all_apart(rules: Schema, n: int, are_apart: Callable[[Any, Any], bool]) -> bool:
    items = [item_of(rules, i) for i in range(n)]
    return all(are_apart(items[i], items[j]) for i in range(n) for j in range(i))


def _arrays(rules: Schema, expand: Callable[[Any], list[Case]], accepts: Accepts) -> list[Any] | None:
    """Return every array without equal items, shorter ones first; None if there are too many."""
    known: dict[int, list[Any] | None] = {}
    found: list[Any] = []
    level: list[list[Any]] = [[]]
    n = 0
    while level and n <= rules.get("maxItems", math.inf):
        found += level if n >= rules.get("minItems", 0) else []
        values = known.setdefault(
            min(n, len(rules.get("prefixItems", []))), _values(item_of(rules, n), expand)
        )
        if values is None or len(found) + len(level) > MAX_ARRAYS:
            return None
        level = [[*a, v] for a, v in product(level, values) if not any(_same(v, w, accepts) for w in a)]
        n += 1
    return found if len(found) <= MAX_ARRAYS else None


def _values(item: Any, expand: Callable[[Any], list[Case]]) -> list[Any] | None:
    found: list[Any] = []
    for case in expand(item):
        if case.type == "boolean" and case.values is None:
            found += [True, False]
        elif case.type == "null":
            found.append(None)
        elif case.values is None:
            return None
        else:
            found += case.values
    return found


def _same(a: Any, b: Any, accepts: Accepts) -> bool:
    return accepts(a, {"const": b})
