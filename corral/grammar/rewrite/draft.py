"""Rewrite one part of a schema from an older draft to draft 2020-12.

Keywords that the older draft does not define are dropped, since it ignores them.
"""

from __future__ import annotations

from typing import Any

from corral.grammar.rewrite.part import AT, NotExact, Schema

NEWEST = 2020
_DRAFTS = {
    "http://json-schema.org/draft-04/schema": 4,
    "http://json-schema.org/draft-06/schema": 6,
    "http://json-schema.org/draft-07/schema": 7,
    "https://json-schema.org/draft/2019-09/schema": 2019,
    "https://json-schema.org/draft/2020-12/schema": 2020,
}
_SINCE: dict[str, int] = {
    **dict.fromkeys(["const", "contains", "propertyNames"], 6),
    **dict.fromkeys(["if", "then", "else"], 7),
    **dict.fromkeys(["dependentRequired", "dependentSchemas", "minContains", "maxContains"], 2019),
    **dict.fromkeys(["unevaluatedProperties", "unevaluatedItems", "$recursiveRef", "$anchor"], 2019),
    **dict.fromkeys(["prefixItems", "$dynamicRef", "$dynamicAnchor"], 2020),
}


def draft_of(schema: Schema) -> int | None:
    """Return the draft that a schema declares; None if it is unknown."""
    declared = schema.get("$schema")
    if declared is None:
        return NEWEST
    return _DRAFTS.get(str(declared).rstrip("#")) or _DRAFTS.get(
        str(declared).rstrip("#").replace("https://json-schema.org/draft-", "http://json-schema.org/draft-")
    )


def modernize(schema: Schema, draft: int, is_declared: bool) -> Schema:
    """Rewrite one part with keywords of the newest draft. References stay as they are."""
    part = {k: v for k, v in schema.items() if _SINCE.get(k, 0) <= draft}
    if draft <= 7 and "$ref" in part:
        return {k: v for k, v in part.items() if k in ("$ref", AT, "$defs", "definitions")}
    part = _bounds(part) if draft == 4 else part
    part = _items(part)
    if draft <= 7 or not is_declared:
        part = _dependencies(part)
    return _leftovers(part)


def _bounds(part: Schema) -> Schema:
    """Convert the exclusive bounds of draft 4, which are flags."""
    for flag, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if part.pop(flag, None) is True and bound in part:
            part[flag] = part.pop(bound)
    return part


def _items(part: Schema) -> Schema:
    more = part.pop("additionalItems", None)
    if isinstance(part.get("items"), list):
        part["prefixItems"] = part.pop("items")
        if more is not None:
            part["items"] = more
    return part


def _dependencies(part: Schema) -> Schema:
    given = part.pop("dependencies", None)
    if not isinstance(given, dict):
        return part
    for name, needed in given.items():
        keyword = "dependentRequired" if isinstance(needed, list | str) else "dependentSchemas"
        value = [needed] if isinstance(needed, str) else needed
        if name in part.get(keyword, {}):
            raise NotExact("dependencies", f"{keyword} also has {name!r:.60}", "use one of them")
        part[keyword] = {**part.get(keyword, {}), name: value}
    return part


def _leftovers(part: Schema) -> Schema:
    """Drop keywords without effect: those that belong to a missing keyword, and `uniqueItems: false`."""
    if "if" not in part:
        part = {k: v for k, v in part.items() if k not in ("then", "else")}
    if "contains" not in part:
        part = {k: v for k, v in part.items() if k not in ("minContains", "maxContains")}
    if part.get("uniqueItems") is False:
        del part["uniqueItems"]
    return part


def holds_dependencies(schema: Any) -> bool:
    return isinstance(schema, dict) and isinstance(schema.get("dependencies"), dict)
