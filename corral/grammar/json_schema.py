"""Check JSON Schemas of clients against limits, and prepare them for llguidance."""

from __future__ import annotations

from typing import Any, NamedTuple

import jsonschema_rs

from corral.core.errors import InvalidRequest
from corral.core.params import JsonWhitespace, SchemaCheck
from corral.grammar.check import mark_checks
from corral.grammar.rewrite import NotExact, bare, read_draft, rewrite_root, rewrite_schema
from corral.grammar.rewrite.format import say_format
from corral.grammar.rewrite.look import drop_irregular
from corral.grammar.rewrite.widen import WHOLE, Place
from corral.grammar.schema import COMBINING, all_parts, rewrite
from corral.grammar.schema_rule import control_characters, is_open, objections, repair
from corral.grammar.schema_shape import check_shape
from corral.grammar.schema_type import add_types

MAX_DEPTH = 64
MAX_NODES = 20_000
MAX_PROPERTIES = 1000  # of one object: the order of optional ones makes them expensive

# The layouts of JSON. A fixed layout lets white space be forced instead of sampled.
# `flexible` is llama-server's: a space, or a line break with an indent; never unbounded white space.
WHITESPACE: dict[JsonWhitespace, dict[str, Any]] = {
    "compact": {"whitespace_flexible": False},
    "spaced": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
    "flexible": {"whitespace_pattern": r"( |\n[ ]{0,20})?"},
}
_ESCAPES = 'nrbtf\\"'  # all but \u
_NAMING = {"properties", "patternProperties"}
_ABOUT_OBJECTS = {"properties", "required", "patternProperties", "additionalProperties"}
_CONDITIONS = {"if", "then", "else", "not", "dependentSchemas", "dependentRequired"}
_PLAIN = {"properties", "required", "type", "x-at", "title", "description", "$comment"}
_UNKNOWN = "\0"  # a name that no schema declares
_KEEPS_OPEN = {
    "additionalProperties",
    "unevaluatedProperties",
    "patternProperties",
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
}


class SchemaPlan(NamedTuple):
    """A schema for the engine: `grammar` is enforced, `check` is what has to be checked in addition."""

    grammar: Any
    check: SchemaCheck | None = None


def prepare_schema(schema: Any, field: str, whitespace: JsonWhitespace, is_lenient: bool = False) -> Any:
    """Prepare the schema for the engine. As in llama-server, an object has only its declared properties, and
    a schema without `type` has the type that its keywords belong to.

    `whitespace`: the layout; `is_lenient`: drop what cannot be enforced instead of refusing it.
    """
    return _plan(schema, field, whitespace, is_lenient, None)


def plan_schema(schema: Any, field: str, whitespace: JsonWhitespace) -> SchemaPlan:
    """Prepare the schema for the engine: what the grammar cannot express is left to a check."""
    try:
        return SchemaPlan(_plan(schema, field, whitespace, False, None))
    except InvalidRequest as refusal:
        left_out: set[Place] = set()
        grammar = _plan(schema, field, whitespace, False, left_out)
        if not left_out or not _can_check(schema):
            raise refusal from None
        marked = mark_checks(complete_schema(schema), left_out)
        check = SchemaCheck(field=field, schema=marked, client=schema, refusal=str(refusal))
        return SchemaPlan(grammar, check)


def flatten_root(schema: Any) -> Any:
    """Return a prepared schema whose root combines nothing but alternatives, if that is possible."""
    if not isinstance(schema, dict) or not schema.keys() & COMBINING:
        return schema
    root = {k: v for k, v in schema.items() if k != "x-guidance"}
    if not _can_check(root):
        return schema  # the engine refuses it
    try:
        flat = bare(rewrite_root(root))
        flat = dict(rewrite(flat, lambda part: repair(part, flat)))
        _check_rules(flat, "", has_free_names=False)
    except (NotExact, InvalidRequest, ValueError):
        return schema
    return {**flat, "x-guidance": schema["x-guidance"]} if "x-guidance" in schema else flat


def _can_check(schema: Any) -> bool:
    try:
        jsonschema_rs.validator_for(schema)
    except (ValueError, jsonschema_rs.ReferencingError):
        return False
    return True


def _plan(
    schema: Any, field: str, whitespace: JsonWhitespace, is_lenient: bool, left_out: set[Place] | None
) -> Any:
    if not isinstance(schema, dict | bool):
        raise InvalidRequest("must be a JSON Schema: an object", field=field)
    if schema is False:
        return schema
    schema = {} if schema is True else schema
    _check_size(schema, field)
    check_shape(schema, field)
    try:
        completed = complete_schema(schema)
        if left_out is not None:
            completed = drop_irregular(completed, left_out)
        repaired = _say_exactly(completed, is_lenient, left_out)
    except NotExact as error:
        raise InvalidRequest(error.message, field=field) from None
    except ValueError as error:
        raise InvalidRequest(f"the schema is too complex: {error}", field=field) from None
    options = dict(WHITESPACE[whitespace])
    if is_lenient:
        return {**repaired, "x-guidance": {**options, "lenient": True}}
    if left_out is not None:
        repaired = rewrite(repaired, lambda part: _drop_counts(part, left_out))
    has_free_names = any(_NAMING & part.keys() and is_open(part) for _, part in all_parts(repaired))
    if has_free_names:
        # An undeclared name must not spell a declared one with other escapes.
        options["json_allowed_escapes"] = _ESCAPES
    _check_rules(repaired, field, has_free_names)
    return {**repaired, "x-guidance": options}


def _drop_counts(part: dict[str, Any], left_out: set[Place]) -> dict[str, Any]:
    """Leave out the counts of properties that would not be enforced exactly."""
    uncounted = {keyword for keyword, _ in objections(part)} & {"minProperties", "maxProperties"}
    if uncounted:
        left_out.add(WHOLE)
    return {k: v for k, v in part.items() if k not in uncounted}


def complete_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Add the implied types and close objects; the parts are marked with their places."""
    known = read_draft(schema)
    repaired = _close_all(rewrite(known, lambda part: repair(part, known)))
    add_types(repaired)  # in place: the rewrite has made a copy
    return dict(repaired)


def _say_exactly(
    schema: dict[str, Any], is_lenient: bool, left_out: set[Place] | None = None
) -> dict[str, Any]:
    exact = bare(rewrite_schema(schema, is_lenient, left_out))
    exact = rewrite(exact, say_format)
    return dict(rewrite(exact, lambda part: repair(part, exact)))


def _check_size(schema: Any, field: str) -> None:
    n_nodes = 0
    level = [schema]
    for _ in range(MAX_DEPTH):
        n_nodes += len(level)
        if n_nodes > MAX_NODES:
            raise InvalidRequest(f"the schema has more than {MAX_NODES} parts", field=field)
        if any(_n_properties(node) > MAX_PROPERTIES for node in level):
            raise InvalidRequest(f"an object has more than {MAX_PROPERTIES} properties", field=field)
        level = [child for node in level for child in _children(node)]
        if not level:
            return
    raise InvalidRequest(f"the schema is nested deeper than {MAX_DEPTH} levels", field=field)


def _n_properties(node: Any) -> int:
    properties = node.get("properties") if isinstance(node, dict) else None
    return len(properties) if isinstance(properties, dict) else 0


def _children(node: Any) -> list[Any]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else []


def _check_rules(schema: Any, field: str, has_free_names: bool) -> None:
    for pointer, part in all_parts(schema):
        found = [*objections(part), *(control_characters(part) if has_free_names else ())]
        for keyword, reason in found:
            message = f"keyword '{keyword}' at {pointer} cannot be enforced: {reason}"
            raise InvalidRequest(message, field=field)


def _close_all(schema: Any) -> Any:
    """Close all objects to undeclared properties, unless another part of the schema could declare more."""
    parts = [part for _, part in all_parts(schema)]
    is_mixed = any(
        ("allOf" in part and not _declares(part) >= _names_in_all(part["allOf"]))
        or not (_declares(part) >= _names_in({k: v for k, v in part.items() if k in _CONDITIONS}))
        or ("$ref" in part and _ABOUT_OBJECTS & part.keys())
        or ({"anyOf", "oneOf"} & part.keys() and _ABOUT_OBJECTS & part.keys())
        for part in parts
    )
    return schema if is_mixed else rewrite(schema, _close)


def _declares(part: dict[str, Any]) -> set[str]:
    properties = part.get("properties")
    return set(properties) if isinstance(properties, dict) else set()


def _names_in(condition: Any) -> set[str]:
    """Return the properties that a condition names, or a name that is never declared if it has other
    rules."""
    if not isinstance(condition, dict):
        return set()
    if condition.keys() - _PLAIN - _CONDITIONS:
        return {_UNKNOWN}
    lists = [condition.get("required", []), *_values(condition, "dependentRequired")]
    if not all(isinstance(names, list) for names in lists):
        return {_UNKNOWN}
    parts = [condition[k] for k in ("if", "then", "else", "not") if k in condition]
    required = {str(name) for names in lists for name in names}
    return _declares(condition) | required | _names_in_all([*parts, *_values(condition, "dependentSchemas")])


def _values(condition: dict[str, Any], keyword: str) -> list[Any]:
    found = condition.get(keyword, {})
    return list(found.values()) if isinstance(found, dict) else [None]


def _names_in_all(conditions: Any) -> set[str]:
    return set().union(*map(_names_in, conditions)) if isinstance(conditions, list) else {_UNKNOWN}


def _close(schema: dict[str, Any]) -> dict[str, Any]:
    schema = _reopen(schema)
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list) or _KEEPS_OPEN & schema.keys():
        return schema
    is_complete = all(name in properties for name in required)
    return {**schema, "additionalProperties": False} if is_complete else schema


def _reopen(schema: dict[str, Any]) -> dict[str, Any]:
    """Open the parts again that are about the same object: it may have the properties of all of them. What a
    client closes itself makes the schema mixed."""
    found = dict(schema)
    if isinstance(schema.get("allOf"), list):
        found["allOf"] = [_without_rest(part) for part in schema["allOf"]]
    if isinstance(schema.get("dependentSchemas"), dict):
        found["dependentSchemas"] = {k: _without_rest(v) for k, v in schema["dependentSchemas"].items()}
    return found


def _without_rest(part: Any) -> Any:
    return {k: v for k, v in part.items() if k != "additionalProperties"} if isinstance(part, dict) else part
