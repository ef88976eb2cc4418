"""Widen a part of a schema that cannot be expressed: leave out the keyword at fault.

What is left allows every value that the whole part allows; the rest is checked while an answer grows.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any

from corral.grammar.rewrite.part import AT, NotExact, Schema
from corral.grammar.schema import COMBINING, resolve

Place = tuple[str, str]  # the pointer of a part, and its keyword that is left out

WHOLE: Place = ("", "")  # no part in particular
_MAX_DEPTH = 16  # of references in place
_MEANT = {"minContains": "contains", "maxContains": "contains", "then": "if", "else": "if"}
_DROPPED = {
    "if": ("if", "then", "else"),
    "contains": ("contains", "minContains", "maxContains"),
    "patternProperties": ("patternProperties", "additionalProperties"),
}
CHECKED = frozenset(
    [
        *("not", "if", "oneOf", "propertyNames", "dependentRequired", "dependentSchemas", "contains"),
        *("unevaluatedProperties", "unevaluatedItems", "uniqueItems"),
        *("patternProperties", "minProperties", "maxProperties"),
    ]
)


def widen(part: Schema, blamed: NotExact, root: Schema) -> tuple[Schema, set[Place]] | None:
    """Return the part without the keyword at fault, or without all that may be at fault, and what was left
    out; None if that does not help."""
    if blamed.keyword == "$ref":
        return None
    for choose in (_blamed_by(blamed), _all_of):
        widener = _Widener(root, choose)
        widened = widener.widen(part)
        if widener.places:
            return None if widener.is_hopeless else (widened, widener.places)
    return None


def _blamed_by(error: NotExact) -> Callable[[Schema], AbstractSet[str]]:
    keyword = _MEANT.get(error.keyword, error.keyword)

    def choose(part: Schema) -> AbstractSet[str]:
        at = str(part.get(AT, ""))
        if at == error.pointer:
            return {keyword} & CHECKED & part.keys()
        step = error.pointer[len(at) + 1 :].split("/")[0] if error.pointer.startswith(f"{at}/") else ""
        return {_MEANT.get(step, step)} & CHECKED & part.keys()

    return choose


def _all_of(part: Schema) -> AbstractSet[str]:
    return CHECKED & part.keys()


class _Widener:
    """Mutable: collects the `places` of what it leaves out."""

    def __init__(self, root: Schema, choose: Callable[[Schema], AbstractSet[str]]) -> None:
        self._root = root
        self._choose = choose
        self.places: set[Place] = set()
        self.is_hopeless = False

    def widen(self, part: Any, depth: int = 0) -> Any:
        """Widen everything that applies to the same value."""
        if not isinstance(part, dict) or depth > _MAX_DEPTH:
            return part
        widened = {
            k: [self.widen(child, depth + 1) for child in v] if k in COMBINING else v for k, v in part.items()
        }
        for keyword in sorted(self._choose(part)):
            # Validators do not agree about formats: no value is right for all of them.
            self.is_hopeless = self.is_hopeless or _has_format(part[keyword])
            self.places.add((str(part.get(AT, "")), keyword) if AT in part else WHOLE)
            widened = _drop(widened, keyword)
        return self._inline(widened, depth)

    def _inline(self, part: Schema, depth: int) -> Schema:
        """Replace a reference by a widened copy of its target, if that is needed."""
        if "$ref" not in part:
            return part
        n_before, target = len(self.places), resolve({"$ref": part["$ref"]}, self._root)
        widened = self.widen(target, depth + 1)
        if len(self.places) == n_before:
            return part
        rest = {k: v for k, v in part.items() if k != "$ref"}
        return _add(rest, {k: v for k, v in widened.items() if k not in ("$defs", "definitions")})


def _drop(part: Schema, keyword: str) -> Schema:
    rest = {k: v for k, v in part.items() if k not in _DROPPED.get(keyword, (keyword,))}
    if keyword == "propertyNames" and isinstance(part[keyword], dict) and "not" in part[keyword]:
        return {**rest, keyword: {k: v for k, v in part[keyword].items() if k != "not"}}
    if keyword == "oneOf":
        return _add(rest, {"anyOf": part["oneOf"]})
    if keyword == "if" and "then" in part and "else" in part:
        return _add(rest, {"anyOf": [part["then"], part["else"]]})
    if keyword == "contains" and part.get("type", "array") == "array":
        least = max(part.get("minItems", 0), part.get("minContains", 1))
        return {**rest, "minItems": least} if least else rest
    return rest


def _add(part: Schema, other: Schema) -> Schema:
    if not part.keys() & other.keys() - {AT}:
        return {**other, **part}
    return {**part, "allOf": [*part.get("allOf", []), other]}


def _has_format(value: Any) -> bool:
    if isinstance(value, dict):
        return isinstance(value.get("format"), str) or any(map(_has_format, value.values()))
    return isinstance(value, list) and any(map(_has_format, value))
