"""Rewrite `contains` as alternatives: the possible positions of matching items in a short array."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

from corral.grammar.rewrite.merge import item_of
from corral.grammar.rewrite.part import NotExact, Schema, both
from corral.grammar.rewrite.subtract import negated

MAX_ALTERNATIVES = 64


def contain_rules(rules: Schema, is_within: Callable[[Any, Any], bool]) -> list[Schema]:
    """Return the rules of arrays without `contains`. `is_within`: whether one schema is a subset of
    another."""
    found = [{k: v for k, v in rules.items() if k != "contains"}]
    for part, least, most in rules.get("contains", []):
        found = [rule for known in found for rule in _place(known, part, least, most, is_within)]
    return found


def _place(
    rules: Schema, part: Any, least: int, most: int | None, is_within: Callable[[Any, Any], bool]
) -> list[Schema]:
    if least == 0 and most is None:
        return [rules]
    if all(is_within(item, part) for item in [*rules.get("prefixItems", []), rules.get("items", True)]):
        return _count(rules, least, most)
    n = min(rules.get("maxItems", math.inf), math.inf)
    if max(least, rules.get("minItems", 0)) > n:
        return []
    n_ways = _n_ways(n, rules.get("minItems", 0), least, most)
    if n_ways > MAX_ALTERNATIVES:
        keyword = "maxContains" if most is not None else "minContains" if least > 1 else "contains"
        reason = "there are too many places where the items could be"
        raise NotExact(keyword, reason, f"add a maxItems for which there are at most {MAX_ALTERNATIVES}")
    places = _first_places(rules, int(n), least) if most is None else _all_places(rules, int(n), least, most)
    return [_with(rules, part, *place) for place in places]


def _count(rules: Schema, least: int, most: int | None) -> list[Schema]:
    """Bound the length, since every item matches."""
    low = max(rules.get("minItems", 0), least)
    high = min(rules.get("maxItems", math.inf), math.inf if most is None else most)
    if low > high:
        return []
    bounds: Schema = {"minItems": low} | ({} if high == math.inf else {"maxItems": int(high)})
    return [{**rules, **bounds}]


def _n_ways(n: float, shortest: int, least: int, most: int | None) -> float:
    if n == math.inf or n > MAX_ALTERNATIVES:
        return math.inf
    if most is None:
        return math.comb(int(n), least)
    return sum(
        math.comb(length, k)
        for length in range(shortest, int(n) + 1)
        for k in range(least, min(most, length) + 1)
    )


# A placement: the indices of matching items, of items that must not match, and the bounds of the length.
Place = tuple[tuple[int, ...], tuple[int, ...], int, int]


def _first_places(rules: Schema, n: int, least: int) -> Iterator[Place]:
    for chosen in combinations(range(n), least):
        yield chosen, (), max(rules.get("minItems", 0), chosen[-1] + 1), n


def _all_places(rules: Schema, n: int, least: int, most: int) -> Iterator[Place]:
    for length in range(rules.get("minItems", 0), n + 1):
        for k in range(least, min(most, length) + 1):
            for chosen in combinations(range(length), k):
                yield chosen, tuple(i for i in range(length) if i not in chosen), length, length


def _with(
    rules: Schema, part: Any, chosen: tuple[int, ...], others: tuple[int, ...], low: int, high: int
) -> Schema:
    n = max([len(rules.get("prefixItems", [])), *(i + 1 for i in (*chosen, *others))])
    prefix = [item_of(rules, i) for i in range(n)]
    for i in chosen:
        prefix[i] = both(prefix[i], part)
    for i in others:
        prefix[i] = both(prefix[i], negated(part))
    bounds = {"minItems": low, "maxItems": high}
    return {**rules, **bounds, "prefixItems": prefix} if prefix else {**rules, **bounds}
