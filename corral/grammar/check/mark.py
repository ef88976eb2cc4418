"""Mark the parts of a schema that the grammar leaves to the checker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from corral.grammar.rewrite.part import AT, Schema, bare, steps_of
from corral.grammar.rewrite.widen import WHOLE, Place

CHECK = "x-check"  # the keywords of a part that have to be checked
# Keywords whose subschemas need not be valid even if the whole is.
OPPOSITES = ("not", "if", "oneOf", "contains", "propertyNames")


def mark_checks(schema: Schema, places: Iterable[Place]) -> Schema:
    """Return the schema without the marks of the rewriting pass, with the keywords to check in every part."""
    by_pointer = {str(part.get(AT, "")): part for part in _positive_parts(schema)}
    wanted: dict[int, set[str]] = {}
    for place in places:
        part, keyword = _find(place, by_pointer, schema)
        wanted.setdefault(id(part), set()).add(keyword)
    marked: Schema = bare(_with_marks(schema, wanted))
    return marked


def _find(place: Place, by_pointer: dict[str, Schema], root: Schema) -> tuple[Schema, str]:
    pointer, keyword = place
    part = by_pointer.get(pointer)
    if place != WHOLE and part is not None and keyword in part:
        return part, keyword
    steps = pointer.split("/")
    for i, step in enumerate(steps):
        part = by_pointer.get("/".join(steps[:i])) if step in OPPOSITES else None
        if part is not None and step in part:
            return part, step
    return root, ""


def _positive_parts(schema: Any) -> Iterator[Schema]:
    """Yield all parts that a value has to match, as a whole or in one of several cases."""
    if not isinstance(schema, dict):
        return
    yield schema
    for way, part in steps_of(schema):
        if way[0] not in OPPOSITES:
            yield from _positive_parts(part)


def _with_marks(schema: Any, wanted: dict[int, set[str]]) -> Any:
    if isinstance(schema, list):
        return [_with_marks(item, wanted) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {k: _with_marks(v, wanted) for k, v in schema.items()}
    return {**found, CHECK: sorted(wanted[id(schema)])} if id(schema) in wanted else found
