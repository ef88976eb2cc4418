"""The rewriting pass: express what llguidance would refuse exactly with keywords that it supports.

Parts without such keywords stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema_rs

from corral.grammar.rewrite.draft import draft_of
from corral.grammar.rewrite.expand import Expander
from corral.grammar.rewrite.finish import annotations_of, finish
from corral.grammar.rewrite.part import AT, MERGED, SILENT, NotExact, Schema, bare, mark
from corral.grammar.rewrite.property_count import needs_count
from corral.grammar.rewrite.widen import Place, widen
from corral.grammar.schema import COMBINING, resolve

MAX_PARTS = 20_000
MAX_DEPTH = 64
MAX_DROPS = 8  # keywords of one part that are left out one by one
HARD = frozenset(
    [
        *("not", "if", "oneOf", "propertyNames", "dependentRequired", "dependentSchemas"),
        *("unevaluatedProperties", "unevaluatedItems", "uniqueItems", "contains"),
    ]
)
# Keywords that need the rules of drafts and references.
_OF_DRAFTS = frozenset(
    [
        *("$id", "id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor"),
        *("$schema", "dependencies", "then", "else", "minContains", "maxContains"),
    ]
)
_COUNTS = frozenset(["minProperties", "maxProperties"])
_NOTHING: Schema = {"enum": []}  # known to llguidance as unsatisfiable


def read_draft(schema: Schema) -> Schema:
    """Rewrite the schema to draft 2020-12 with local references, if it needs that, and mark every part with
    its place.

    Raises NotExact for unresolvable references.
    """
    draft = draft_of(schema)
    marked: Schema = mark(schema)
    is_simple = not (_keys(schema) & _OF_DRAFTS or _has_far_references(schema))
    if draft is None or is_simple or not _is_well_formed(schema):
        return marked
    from corral.grammar.rewrite.reference import localize  # metaschemas take long to load

    return localize(marked, draft)


def rewrite_schema(schema: Schema, is_lenient: bool = False, left_out: set[Place] | None = None) -> Schema:
    """Rewrite a marked schema without unsupported keywords. Raises NotExact, unless `is_lenient`. With
    `left_out`, keywords that cannot be expressed are left out if they can be checked, and added there."""
    if not (_keys(schema) & HARD or _has_counts(schema)) or not _is_well_formed(schema):
        return schema
    return _Rewriter(schema, is_lenient, left_out).run()


def rewrite_root(schema: Schema) -> Schema:
    """Rewrite a schema so that its root combines nothing but alternatives. Raises NotExact."""
    return _Rewriter(schema, is_lenient=False, left_out=None).run(is_hard=True)


class _Rewriter:
    """Adds definitions for combined parts, so that recursion ends."""

    def __init__(self, root: Schema, is_lenient: bool, left_out: set[Place] | None) -> None:
        self._root = root
        self._is_lenient = is_lenient
        self._left_out = left_out
        self._expander = Expander(root)
        self._merged: dict[str, str] = {}
        self._waiting: list[tuple[str, Schema]] = []
        self._n_parts = 0

    def run(self, is_hard: bool = False) -> Schema:
        found = self._visit(self._root, 0, is_hard)
        added: Schema = {}
        while self._waiting:
            name, part = self._waiting.pop()
            added[name] = self._visit({k: v for k, v in part.items() if k != MERGED}, 0, is_hard=True)
        if not isinstance(found, dict):
            found = _NOTHING
        return {**found, "$defs": {**found.get("$defs", {}), **added}} if added else found

    def _visit(self, part: Any, depth: int, is_hard: bool = False) -> Any:
        if not isinstance(part, dict):
            return part
        self._n_parts += 1
        if self._n_parts > MAX_PARTS or depth > MAX_DEPTH:
            raise NotExact("", "the schema is too complex once it is written out", "use fewer alternatives")
        if MERGED in part and "$ref" in json.dumps(bare(part)):
            return {"$ref": f"#/$defs/{self._definition(part)}"}
        if is_hard or self._is_hard(part):
            part = self._replace(part)
        return _map_parts(part, lambda child: self._visit(child, depth + 1))

    def _definition(self, part: Schema) -> str:
        key = json.dumps(bare(part), sort_keys=True)
        if key not in self._merged:
            self._merged[key] = f"merged-{len(self._merged) + 1}"
            self._waiting.append((self._merged[key], part))
        return self._merged[key]

    def _replace(self, part: Schema) -> Any:
        try:
            found = self._expand(part)
        except NotExact:
            if self._is_lenient:
                return part
            raise
        kept = annotations_of(part)
        if not isinstance(found, dict):
            return {**kept, **_NOTHING} if kept.keys() & {"$defs", "definitions"} else found
        return {**kept, **found}

    def _expand(self, part: Schema, n_left: int = MAX_DROPS) -> Any:
        """Express a part, widened as often as that is needed and possible."""
        try:
            return finish(self._expander.expand(part), self._expander)
        except NotExact as error:
            error.pointer = error.pointer or str(part.get(AT, "#"))
            widened = widen(part, error, self._root) if self._left_out is not None and n_left else None
            if widened is None or self._left_out is None:
                raise
            self._left_out |= widened[1]
        return self._expand(widened[0], n_left - 1)

    def _is_hard(self, part: Schema) -> bool:
        if MERGED in part:
            return True
        if _assertions(part) <= {"anyOf"} or _assertions(part) == {"$ref"}:
            return False
        seen: set[int] = set()
        applied = list(self._in_place(part, seen))
        # A count in one part is of the properties of all.
        is_counted = len(applied) > 1 and any(_COUNTS & known.keys() for known in applied)
        return is_counted or any(map(_needs_cases, applied))

    def _in_place(self, part: Any, seen: set[int]) -> Iterator[Schema]:
        """Yield the part and everything that applies to the same value."""
        if not isinstance(part, dict) or id(part) in seen:
            return
        seen.add(id(part))
        yield part
        for keyword in COMBINING:
            for child in part.get(keyword, []):
                yield from self._in_place(child, seen)
        if "$ref" in part:
            target = self._root if part["$ref"] == "#" else resolve(part, self._root)
            yield from self._in_place(target, seen)


def _needs_cases(part: Schema) -> bool:
    is_merged = "allOf" in part and _has_patterns(part)
    return bool(HARD & part.keys()) or is_merged or needs_count(part)


def _has_patterns(part: Schema) -> bool:
    """Whether patterns of one object may meet the rule for other names of another object."""
    text = json.dumps(part)
    return '"patternProperties"' in text and '"additionalProperties"' in text


def _has_counts(schema: Any) -> bool:
    keys = _keys(schema)
    return bool(_COUNTS & keys) or {"allOf", "patternProperties", "additionalProperties"} <= keys


def _assertions(part: Schema) -> set[str]:
    return part.keys() - SILENT


def _map_parts(part: Any, change: Callable[[Any], Any]) -> Any:
    if not isinstance(part, dict):
        return part
    found: Schema = dict(part)
    for keyword in ("$defs", "definitions", "properties", "patternProperties"):
        if isinstance(part.get(keyword), dict):
            found[keyword] = {name: change(child) for name, child in part[keyword].items()}
    for keyword in (*COMBINING, "prefixItems"):
        if isinstance(part.get(keyword), list):
            found[keyword] = [change(child) for child in part[keyword]]
    for keyword in ("items", "additionalProperties"):
        if isinstance(part.get(keyword), dict):
            found[keyword] = change(part[keyword])
    return found


def _keys(schema: Any) -> set[str]:
    """Return all keys of all objects in a schema, to see which keywords it cannot have."""
    found: set[str] = set()
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            found.update(node)
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
    return found


def _has_far_references(schema: Schema) -> bool:
    """Whether a reference points to anything but a definition or the root."""
    waiting: list[Any] = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            name = node.get("$ref", "#")
            if isinstance(name, str) and name != "#" and not _is_near(name, schema):
                return True
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
    return False


def _is_near(name: str, root: Schema) -> bool:
    head, _, last = name.rpartition("/")
    step = last.replace("~1", "/").replace("~0", "~")
    holder = root.get(head[2:]) if head in ("#/$defs", "#/definitions") else None
    return isinstance(holder, dict) and step in holder and "%" not in name


def _is_well_formed(schema: Schema) -> bool:
    """Whether the keywords have valid values, by the declared draft's metaschema."""
    try:
        return bool(jsonschema_rs.meta.is_valid(bare(schema)))
    except (ValueError, jsonschema_rs.ReferencingError):
        return False
