"""Add the types that a JSON Schema implies but does not name: those that its other keywords belong to.

Strictly read, `{"items": ...}` allows every string and number, but its author means an array. A type is
added only where a schema describes a value and nothing else that applies to this value names one. Schemas
that only restrict such a value (`allOf`, `oneOf`, a `$ref` next to other keywords) and those inside `not`
or `if` stay as they are, so that every value that is valid against the result is also valid against the
client's schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from corral.grammar.schema import COMBINING, all_parts, resolve

Schema = dict[str, Any]

_KEYWORDS: dict[str, frozenset[str]] = {
    "object": frozenset(
        [
            *("properties", "required", "additionalProperties", "patternProperties", "unevaluatedProperties"),
            *("minProperties", "maxProperties", "propertyNames"),
            *("dependentRequired", "dependentSchemas", "dependencies"),
        ]
    ),
    "array": frozenset(
        [
            *("items", "prefixItems", "additionalItems", "unevaluatedItems", "minItems", "maxItems"),
            *("uniqueItems", "contains", "minContains", "maxContains"),
        ]
    ),
    "string": frozenset(
        [
            *("minLength", "maxLength", "pattern", "format"),
            *("contentEncoding", "contentMediaType", "contentSchema"),
        ]
    ),
    "number": frozenset(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]),
}
_NUMBER_FORMATS = ("int32", "int64", "float", "double")
_NAMES_TYPES = {"type", "enum", "const"}
_ASSERTIONS = frozenset().union(
    *_KEYWORDS.values(), _NAMES_TYPES, ["$ref", "anyOf", "oneOf", "allOf", "not", "if", "then", "else"]
)
_DYNAMIC = {"$dynamicRef", "$recursiveRef"}
_MAX_STEPS = 200_000  # some seconds at most
# Keywords whose schemas describe a separate value: by name, in a list, alone.
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_OTHERS = ("items", "prefixItems", "additionalItems", "additionalProperties")


def add_types(schema: Any) -> None:
    """Add types to the caller's own copy of a schema, in place. Raises ValueError if that takes too long."""
    if isinstance(schema, dict):
        _Typing(schema).run()


class _Typing:
    """One schema, with its references resolved."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._named = {"#": root, **_index(root)}
        self._values = [root, *(value for _, part in all_parts(root) for value in _values_in(part))]
        self._n_steps = 0
        self._looked: dict[int, tuple[bool, set[str]]] = {}
        # Targets of references that restrict a value whose type another part may name.
        self._restricting = self._find_restricting()
        self._described = set(map(id, self._values)) - self._restricting | {id(root)}

    def run(self) -> None:
        for value in self._values:
            if id(value) in self._described:
                self._describe(value, set())

    def _find_restricting(self) -> set[int]:
        found: set[int] = set()
        seen: set[tuple[int, bool]] = set()
        # Each schema, and whether nothing else applies to the value.
        waiting: list[tuple[Any, bool]] = [(value, True) for value in self._values]
        while waiting:
            schema, is_alone = waiting.pop()
            if not isinstance(schema, dict) or (id(schema), is_alone) in seen:
                continue
            seen.add((id(schema), is_alone))
            is_alone = is_alone and _n_assertions(schema) == 1
            target = self._target(schema)
            if target is not None and not is_alone:
                found.add(id(target))
            waiting += [(target, is_alone), *((branch, is_alone) for branch in _list(schema, "anyOf"))]
            waiting += [
                (branch, False) for keyword in ("oneOf", "allOf") for branch in _list(schema, keyword)
            ]
        return found

    def _describe(self, schema: Schema, types: set[str]) -> None:
        """Add the types of the value that `schema` describes. `types`: those that enclosing keywords
        belong to."""
        if not types and self._is_only_reference(schema):
            return  # its target has the types
        parts = list(self._applied(schema))
        if any(self._names_types(part) for part in parts):
            return
        types = types.union(*map(_types_of, parts))
        inline = [branch for part in self._inline(schema) for branch in _list(part, "anyOf")]
        branches = [b for part in parts for keyword in ("anyOf", "oneOf") for b in _list(part, keyword)]
        found = [self._look_into(branch) for branch in branches if isinstance(branch, dict)]
        is_named = any(names_types for names_types, _ in found)
        if not is_named and (types or len(branches) > len(inline)):
            # Branches of `oneOf` must not get types: a value could then match one of them instead of two.
            _set_type(schema, types.union(*(implied for _, implied in found)))
            return
        for branch in inline:
            if isinstance(branch, dict):
                self._describe(branch, types)

    def _is_only_reference(self, schema: Schema) -> bool:
        target = self._target(schema)
        is_only = target is not None and _n_assertions(schema) == 1
        return is_only and id(target) in self._described

    def _names_types(self, part: Schema) -> bool:
        is_unknown = "$ref" in part and self._target(part) is None
        return bool(_NAMES_TYPES & part.keys() or _DYNAMIC & part.keys()) or is_unknown

    def _target(self, schema: Schema) -> Schema | None:
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return None
        if reference not in self._named:
            found = resolve({"$ref": reference}, self._root)
            self._named[reference] = {} if "$ref" in found and not reference.startswith("#/") else found
        return self._named[reference] or None

    def _inline(self, schema: Schema) -> Iterator[Schema]:
        """Yield the schema and the parts of its `allOf`, but nothing that is referenced elsewhere."""
        yield schema
        for part in _list(schema, "allOf"):
            if isinstance(part, dict):
                yield from self._inline(part)

    def _applied(self, schema: Schema) -> Iterator[Schema]:
        """Yield the schema and everything a value must match together with it."""
        return self._closure(schema, ("allOf",))

    def _look_into(self, branch: Schema) -> tuple[bool, set[str]]:
        """Return whether a branch names types, and the types that its keywords belong to."""
        if id(branch) not in self._looked:
            parts = list(self._closure(branch, COMBINING))
            names_types = any(map(self._names_types, parts))
            self._looked[id(branch)] = names_types, set().union(*map(_types_of, parts))
        return self._looked[id(branch)]

    def _closure(self, schema: Any, keywords: tuple[str, ...]) -> Iterator[Schema]:
        seen: set[int] = set()
        waiting = [schema]
        while waiting:
            part = waiting.pop()
            if isinstance(part, dict) and id(part) not in seen:
                seen.add(id(part))
                self._n_steps += 1
                if self._n_steps > _MAX_STEPS:
                    raise ValueError("its references expand to too many parts")
                yield part
                waiting += [self._target(part), *(p for keyword in keywords for p in _list(part, keyword))]


def _index(root: Schema) -> dict[str, Schema]:
    """Index the parts by everything that references can call them."""
    named: dict[str, Schema] = {}
    for pointer, part in all_parts(root):
        named[pointer] = part
        for keyword, prefix in (("$anchor", "#"), ("$id", ""), ("id", "")):
            if isinstance(part.get(keyword), str) and part is not root:
                named.setdefault(prefix + part[keyword], part)
    return named


def _values_in(part: Schema) -> Iterator[Schema]:
    """Yield the schemas in a part that describe separate values."""
    for keyword in _BY_NAME:
        if isinstance(part.get(keyword), dict):
            yield from (value for value in part[keyword].values() if isinstance(value, dict))
    for keyword in _OTHERS:
        found = part.get(keyword)
        yield from (value for value in _list(part, keyword) if isinstance(value, dict))
        if isinstance(found, dict):
            yield found


def _n_assertions(schema: Schema) -> int:
    return len(_ASSERTIONS & schema.keys())


def _list(schema: Schema, keyword: str) -> list[Any]:
    found = schema.get(keyword)
    return found if isinstance(found, list) else []


def _types_of(schema: Schema) -> set[str]:
    """Return the types that the keywords of one part belong to."""
    keys = schema.keys() - {"format"} if schema.get("format") in _NUMBER_FORMATS else schema.keys()
    return {name for name, keywords in _KEYWORDS.items() if keywords & keys}


def _set_type(schema: Schema, types: set[str]) -> None:
    """Set the type as the first key: some keywords are applied only after it."""
    if types:
        names = sorted(types)
        rest = dict(schema)
        schema.clear()
        schema |= {"type": names[0] if len(names) == 1 else names, **rest}
