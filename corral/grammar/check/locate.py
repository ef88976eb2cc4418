"""Find the parts of a schema that apply to a place in a value, and what has to be checked there.

A part that applies in some cases only, such as a branch of `anyOf`, is checked with the part around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

import jsonschema_rs

from corral.grammar.check.mark import CHECK, OPPOSITES
from corral.grammar.rewrite.part import Schema, escape, steps_of
from corral.grammar.schema import resolve

PATTERNS = jsonschema_rs.FancyRegexOptions(backtrack_limit=100_000)  # some milliseconds
_ROOT = "urn:corral:schema"
_OF_ITEMS = frozenset(("uniqueItems", "contains"))
_EARLY = _OF_ITEMS | {"propertyNames"}  # checked before the value ends
_OF_KIND = {
    "array": frozenset((*_OF_ITEMS, "unevaluatedItems")),
    "object": frozenset(
        [
            *("propertyNames", "dependentRequired", "dependentSchemas", "unevaluatedProperties"),
            *("patternProperties", "minProperties", "maxProperties"),
        ]
    ),
}
# Subschemas that a value of the part need not match, or whose place depends on others.
_CASES = frozenset(("anyOf", "oneOf", "then", "else", "dependentSchemas"))
_UNPLACED = frozenset(("unevaluatedProperties", "unevaluatedItems", "additionalItems"))


class Contains(NamedTuple):
    """How many items have to match, by the validator of a part's `contains`."""

    validator: Any
    least: int
    most: int | None
    pointer: str


class Rules(NamedTuple):
    """What applies at a place: `whole`: validators of the whole value, with the pointers of their parts."""

    parts: tuple[Schema, ...] = ()
    whole: tuple[tuple[Any, str], ...] = ()
    unique: str | None = None  # the pointer of the part that says so
    contains: tuple[Contains, ...] = ()
    names: tuple[tuple[Any, str], ...] = ()  # validators of names


class Locator:
    """Knows one marked schema."""

    def __init__(self, root: Schema) -> None:
        self._root = {**root, "$schema": "https://json-schema.org/draft/2020-12/schema"}
        self._registry = jsonschema_rs.Registry([(_ROOT, self._root)])
        self._pointers = {id(part): pointer for pointer, part in _all_parts(self._root)}
        self._validators: dict[str, Any] = {}
        self._marked: dict[int, bool] = {}
        self._known: dict[tuple[tuple[int, ...], str], Rules] = {}

    def rules_of_root(self, kind: str) -> Rules:
        return self._rules((self._root,), kind)

    def rules_of_property(self, around: Rules, name: str, kind: str) -> Rules:
        return self._rules(tuple(p for part in around.parts for p in _of_property(part, name)), kind)

    def rules_of_item(self, around: Rules, index: int, kind: str) -> Rules:
        return self._rules(tuple(p for part in around.parts for p in _of_item(part, index)), kind)

    def _rules(self, heads: tuple[Schema, ...], kind: str) -> Rules:
        key = (tuple(map(id, heads)), kind)
        if key not in self._known:
            self._known[key] = self._find_rules(heads, kind)
        return self._known[key]

    def _find_rules(self, heads: tuple[Schema, ...], kind: str) -> Rules:
        parts: list[Schema] = []
        whole: list[tuple[Any, str]] = []
        for head in heads:
            applied = list(self._in_place(head, kind, 0))
            parts += applied
            if any(self._needs_whole(part, kind) for part in applied):
                pointer = self._pointers[id(head)]
                whole.append((self._validator(pointer), pointer))
        is_array = kind == "array"
        unique = [self._pointers[id(p)] for p in parts if is_array and "uniqueItems" in p.get(CHECK, ())]
        counted = tuple(self._contains(p) for p in parts if is_array and "contains" in p.get(CHECK, ()))
        named = [self._pointers[id(p)] for p in parts if "propertyNames" in p.get(CHECK, ())]
        names = tuple((self._validator(f"{pointer}/propertyNames"), pointer) for pointer in named)
        return Rules(tuple(parts), tuple(whole), unique[0] if unique else None, counted, names)

    def _in_place(self, part: Any, kind: str, depth: int) -> Iterator[Schema]:
        """Yield all parts that a value of this kind must match."""
        if not isinstance(part, dict) or depth > 16:
            return
        yield part
        for child in part.get("allOf", []):
            yield from self._in_place(child, kind, depth + 1)
        if "$ref" in part:
            yield from self._in_place(self._resolve(part), kind, depth + 1)
        for keyword in ("anyOf", "oneOf"):
            possible = self._possible(part.get(keyword, []), kind)
            if len(possible) == 1:
                yield from self._in_place(possible[0], kind, depth + 1)

    def _possible(self, branches: list[Any], kind: str) -> list[Any]:
        return [b for b in branches if b is not False and _may_be(self._resolve(b), kind)]

    def _needs_whole(self, part: Schema, kind: str) -> bool:
        """Whether something has to be checked that only the whole value shows."""
        others = frozenset().union(*(known for name, known in _OF_KIND.items() if name != kind))
        return bool(set(part.get(CHECK, ())) - _EARLY - others) or any(
            self._is_marked(child) for child in self._cases(part, kind)
        )

    def _cases(self, part: Schema, kind: str) -> Iterator[Any]:
        for way, child in steps_of(part):
            keyword = way[0]
            if keyword in ("anyOf", "oneOf"):
                possible = self._possible(part[keyword], kind)
                if len(possible) > 1 and any(child is branch for branch in possible):
                    yield child
            elif (
                keyword in _CASES
                or (keyword in _UNPLACED and kind in ("object", "array"))
                or (keyword == "patternProperties" and _compile(way[1]) is None)
            ):
                yield child

    def _is_marked(self, part: Any) -> bool:
        """Whether something has to be checked in a part, at any depth."""
        if not isinstance(part, dict):
            return False
        if id(part) not in self._marked:
            self._marked[id(part)] = False  # for references to itself
            self._marked[id(part)] = CHECK in part or any(map(self._is_marked, self._below(part)))
        return self._marked[id(part)]

    def _below(self, part: Schema) -> Iterator[Any]:
        for way, child in steps_of(part):
            if way[0] not in (*OPPOSITES[:2], "$defs", "definitions"):
                yield child
        if "$ref" in part:
            yield self._resolve(part)

    def _resolve(self, part: Any) -> Any:
        if not isinstance(part, dict) or "$ref" not in part or part.keys() & {"anyOf", "allOf", "oneOf"}:
            return part
        return self._root if part["$ref"] == "#" else resolve({"$ref": part["$ref"]}, self._root)

    def _contains(self, part: Schema) -> Contains:
        pointer = self._pointers[id(part)]
        validator = self._validator(f"{pointer}/contains")
        return Contains(validator, part.get("minContains", 1), part.get("maxContains"), pointer)

    def _validator(self, pointer: str) -> Any:
        if pointer not in self._validators:
            reference = {"$ref": f"{_ROOT}#{quote(pointer[1:])}"}
            self._validators[pointer] = jsonschema_rs.validator_for(
                reference, registry=self._registry, pattern_options=PATTERNS
            )
        return self._validators[pointer]


def _all_parts(part: Any, pointer: str = "#") -> Iterator[tuple[str, Schema]]:
    if isinstance(part, dict):
        yield pointer, part
        for way, child in steps_of(part):
            yield from _all_parts(child, "/".join([pointer, *map(escape, way)]))


def _of_property(part: Schema, name: str) -> Iterator[Schema]:
    patterns = part.get("patternProperties", {})
    matching = [child for pattern, child in patterns.items() if _matches(pattern, name)]
    declared = part.get("properties", {})
    found = [*([declared[name]] if name in declared else []), *matching]
    yield from (p for p in found or [part.get("additionalProperties")] if isinstance(p, dict))


def _of_item(part: Schema, index: int) -> Iterator[Schema]:
    first = part.get("prefixItems", [])
    found = first[index] if index < len(first) else part.get("items")
    if isinstance(found, dict):
        yield found


def _may_be(part: Any, kind: str) -> bool:
    if not isinstance(part, dict):
        return True
    values = [part["const"]] if "const" in part else part.get("enum")
    if isinstance(values, list):
        return any(_kind_of(value) == kind for value in values)
    types = part.get("type", kind)
    names = [types] if isinstance(types, str) else types
    return any(("number" if name == "integer" else name) == kind for name in names)


def _kind_of(value: Any) -> str:
    kinds = {str: "string", dict: "object", list: "array", type(None): "null", bool: "boolean"}
    return kinds.get(type(value), "number")


def _matches(pattern: str, name: str) -> bool:
    compiled = _compile(pattern)
    return compiled is not None and compiled.search(name) is not None


def _compile(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern)
    except re.error:
        return None
