"""Fix where llguidance would enforce a JSON Schema less strictly than meant, or refuse it without need.

Rewrites express the same in a supported way; objections name what is not enforced and must be refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from corral.grammar.rewrite.look import is_irregular
from corral.grammar.rewrite.part import AT
from corral.grammar.schema import resolve

Schema = dict[str, Any]

MAX_EXACT = 2**53  # larger integers are rounded

_COUNTS = (
    *("minLength", "maxLength", "minItems", "maxItems", "minContains", "maxContains"),
    *("minProperties", "maxProperties"),
)
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_APPLICATORS = ("anyOf", "oneOf", "allOf", "$ref")
_NOTHING: dict[str, Any] = {"uniqueItems": False, "dependentRequired": {}, "dependentSchemas": {}}
_CONTROL = re.compile(r"[\x00-\x07\x0b\x0e-\x1f]")
_ESCAPED = re.compile(r"\\[xuc0]")  # a character by its number
_SET_OPERATION = re.compile(r"\[[^\]]*(&&|--|~~)")

# Days that exist; llguidance's own pattern allows 29 February in every year.
_LEAP = r"([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-29"
_YEAR = r"([0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})"
_DAY = (
    r"((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = rf"({_YEAR}-{_DAY}|{_LEAP})"
_OFFSET = r"(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_TIME = rf"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{{1,6}})?{_OFFSET}"
_FORMATS = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}T{_TIME}$"}


def repair(schema: Schema, root: Any) -> Schema:
    """Rewrite one part of a schema in a supported way."""
    repaired = {k: v for k, v in schema.items() if not _says_nothing(k, v)}
    if not isinstance(schema.get("items"), list):
        repaired.pop("additionalItems", None)  # it applies only after a list of items
    for keyword in _COUNTS:
        count = repaired.get(keyword)
        if isinstance(count, float) and count.is_integer() and abs(count) <= MAX_EXACT:
            repaired[keyword] = int(count)
    pattern = _FORMATS.get(str(repaired.get("format")))
    if pattern and "pattern" not in repaired:
        repaired["pattern"] = pattern
        del repaired["format"]
    if isinstance(repaired.get("oneOf"), list) and "anyOf" not in repaired and _can_be_any_of(repaired, root):
        repaired["anyOf"] = repaired.pop("oneOf")
    only = repaired.get("allOf")
    if isinstance(only, list) and len(only) == 1 and isinstance(only[0], dict):
        rest = {k: v for k, v in repaired.items() if k != "allOf"}
        is_clear = only[0].keys() & rest.keys() <= {AT}
        repaired = {**rest, **only[0]} if is_clear else repaired
    # Applicators go last: llguidance applies bounds only right next to the items or numbers they belong to.
    return {k: repaired[k] for k in sorted(repaired, key=lambda k: k in _APPLICATORS)}


def _can_be_any_of(schema: Schema, root: Any) -> bool:
    """Whether `oneOf` may be replaced by `anyOf`; untyped branches allow everything that is not an
    object."""
    untyped = [branch for branch in schema["oneOf"] if not _types(resolve(branch, root))]
    is_mixed = bool(_types(schema) - {"object"}) and len(untyped) > 1
    return not is_mixed and are_apart(schema["oneOf"], root)


def are_apart(branches: Any, root: Any) -> bool:
    """Whether no value can match two of the branches: they differ in type, or in a tag."""
    if not isinstance(branches, list) or len(branches) < 2:
        return False
    parts = [resolve(branch, root) for branch in branches]
    types = [_types(part) for part in parts]
    if all(types) and len(set().union(*types)) == sum(map(len, types)):
        return True
    names = set.intersection(*(set(_tags(part, root)) for part in parts))
    return any(_are_distinct([_tags(part, root)[name] for part in parts]) for name in names)


def objections(schema: Schema) -> Iterator[tuple[str, str]]:
    """Yield the keywords of one part that would not be enforced exactly, and why."""
    for keyword in (*_BOUNDS, "const", "enum"):
        if _has_inexact(schema.get(keyword)):
            yield keyword, "integers beyond 2^53 cannot be distinguished"
    if isinstance(schema.get("pattern"), str) and _SET_OPERATION.search(schema["pattern"]):
        yield "pattern", "&&, -- and ~~ in a character class have another meaning"
    if is_irregular(schema.get("pattern")):
        yield (
            "pattern",
            "look-around, back references and \\b are beyond a grammar here; write it without them",
        )
    if schema.get("format") == "unknown" or (schema.get("format") in _FORMATS and "pattern" in schema):
        yield "format", "the format is unknown, or combined with a pattern"
    if _has_narrow_bound(schema):
        yield (
            "exclusiveMinimum" if "exclusiveMinimum" in schema else "exclusiveMaximum",
            ("another bound is less than 1 away, so the excluded bound itself would be allowed"),
        )
    yield from _uncounted(schema)
    least, required = schema.get("minProperties", 0), schema.get("required", [])
    if (
        is_open(schema)
        and isinstance(least, int)
        and isinstance(required, list)
        and least > len(required) + 1
    ):
        yield "minProperties", "a property with an arbitrary name could be repeated and counted twice"


def _uncounted(schema: Schema) -> Iterator[tuple[str, str]]:
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return
    if all(name in required for name in properties) or (not is_open(schema) and _is_counted(schema)):
        return
    for keyword in ("minProperties", "maxProperties"):
        if schema.get(keyword, 0):
            hint = "require all declared properties, or set additionalProperties: false"
            yield keyword, f"declared properties that may be left out cannot be counted; {hint}"


def _is_counted(schema: Schema) -> bool:
    """Whether at most one optional property is required or allowed: llguidance counts no further."""
    one_more = len(schema.get("required", [])) + 1
    least, most = schema.get("minProperties", 0), schema.get("maxProperties")
    return isinstance(least, int | float) and least <= one_more and most in (None, one_more)


def control_characters(schema: Schema) -> Iterator[tuple[str, str]]:
    """Yield the keywords with texts that need an escape by number."""
    for keyword in ("const", "enum", "properties", "required", "pattern"):
        value = schema.get(keyword)
        names = list(value) if keyword == "properties" and isinstance(value, dict) else value
        is_escaped = keyword == "pattern" and isinstance(value, str) and _ESCAPED.search(value)
        if is_escaped or _has_control(names):
            yield keyword, "control characters are not supported together with arbitrary property names"


def is_open(schema: Schema) -> bool:
    """Whether an object may have undeclared properties."""
    return "patternProperties" in schema or schema.get("additionalProperties", True) is not False


def _says_nothing(keyword: str, value: Any) -> bool:
    return keyword in _NOTHING and value == _NOTHING[keyword] and type(value) is type(_NOTHING[keyword])


def _types(schema: Schema) -> set[str]:
    found = schema.get("type")
    names = {found} if isinstance(found, str) else set(found) if isinstance(found, list) else set()
    return {"number" if name == "integer" else str(name) for name in names}


def _tags(schema: Schema, root: Any) -> dict[str, list[Any]]:
    """Return the allowed values of required properties with `const` or `enum`."""
    properties = schema.get("properties")
    required = schema.get("required")
    if not isinstance(properties, dict) or not isinstance(required, list):
        return {}
    tags: dict[str, list[Any]] = {}
    for name in required:
        part = resolve(properties.get(name), root)
        options = [part["const"]] if "const" in part else part.get("enum")
        if isinstance(options, list):
            tags[name] = options
    return tags


def _are_distinct(groups: list[list[Any]]) -> bool:
    """Whether no scalar is in two of the groups; 1 equals 1.0, but not true."""
    seen: set[tuple[bool, Any]] = set()
    for group in groups:
        if not all(isinstance(value, str | int | float | bool | None) for value in group):
            return False
        keys = {(isinstance(value, bool), value) for value in group}
        if keys & seen:
            return False
        seen |= keys
    return True


def _has_inexact(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float | list | dict):
        return False
    if isinstance(value, int | float):
        return abs(value) > MAX_EXACT
    return any(_has_inexact(item) for item in (value.values() if isinstance(value, dict) else value))


def _has_control(value: Any) -> bool:
    if isinstance(value, str):
        return bool(_CONTROL.search(value))
    if isinstance(value, dict):
        return _has_control([*value, *value.values()])
    return isinstance(value, list) and any(_has_control(item) for item in value)


def _has_narrow_bound(schema: Schema) -> bool:
    if _types(schema) == {"number"} and schema.get("type") == "integer":
        return False
    low, high = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    return _is_excluded_near(above, high if below is None else below) or _is_excluded_near(
        below, low if above is None else above
    )


def _is_excluded_near(excluded: Any, other: Any) -> bool:
    if not _is_number(excluded) or not _is_number(other) or float(excluded) != math.trunc(excluded):
        return False
    return bool(math.trunc(other) == excluded)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
