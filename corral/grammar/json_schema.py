"""JSON Schemas from clients, bounded and made ready to be followed word by word."""

from __future__ import annotations

from typing import Any

from corral.core.errors import InvalidRequest
from corral.core.params import JsonWhitespace
from corral.grammar.schema import all_parts, rewrite
from corral.grammar.schema_rule import control_characters, is_open, objections, repair
from corral.grammar.schema_type import add_types

MAX_DEPTH = 64
MAX_NODES = 20_000
MAX_PROPERTIES = 1000  # of one object: the order of optional ones makes them dear

# How JSON may be laid out. Where there is no choice, text between values need not be drawn token by token.
# `flexible` is llama-server's way: a space, or a line break with an indent; never white space without end.
WHITESPACE: dict[JsonWhitespace, dict[str, Any]] = {
    "compact": {"whitespace_flexible": False},
    "spaced": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
    "flexible": {"whitespace_pattern": r"( |\n[ ]{0,20})?"},
}
_ESCAPES = 'nrbtf\\"'  # all but \u
_NAMING = {"properties", "patternProperties"}
_ABOUT_OBJECTS = {"properties", "required", "patternProperties", "additionalProperties"}
_KEEPS_OPEN = {
    "additionalProperties",
    "unevaluatedProperties",
    "patternProperties",
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
}


def prepare_schema(schema: Any, field: str, whitespace: JsonWhitespace, is_lenient: bool = False) -> Any:
    """The schema as the engine takes it. As in llama-server, an object has no properties but those declared,
    and a schema without `type` means the type that its keywords belong to.

    `whitespace` names a layout; `is_lenient`: what cannot be enforced is left out instead of refused.
    """
    if not isinstance(schema, dict | bool):
        raise InvalidRequest("must be a JSON Schema: an object", field=field)
    if schema is False:
        return schema
    schema = {} if schema is True else schema
    _check_size(schema, field)
    repaired = _close_all(rewrite(schema, lambda part: repair(part, schema)))
    try:
        add_types(repaired)  # the rewrite has made a copy
    except ValueError as error:
        raise InvalidRequest(f"the schema is too complex: {error}", field=field) from None
    options = dict(WHITESPACE[whitespace])
    if is_lenient:
        return {**repaired, "x-guidance": {**options, "lenient": True}}
    has_free_names = any(_NAMING & part.keys() and is_open(part) for _, part in all_parts(repaired))
    if has_free_names:
        # An undeclared name must not be a declared one in another spelling.
        options["json_allowed_escapes"] = _ESCAPES
    _check_rules(repaired, field, has_free_names)
    return {**repaired, "x-guidance": options}


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
    """No other properties than the ones that are named, wherever nothing else could name more of them."""
    parts = [part for _, part in all_parts(schema)]
    is_mixed = any(
        "allOf" in part
        or ("$ref" in part and _ABOUT_OBJECTS & part.keys())
        or ({"anyOf", "oneOf"} & part.keys() and _ABOUT_OBJECTS & part.keys())
        for part in parts
    )
    return schema if is_mixed else rewrite(schema, _close)


def _close(schema: dict[str, Any]) -> dict[str, Any]:
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list) or _KEEPS_OPEN & schema.keys():
        return schema
    is_complete = all(name in properties for name in required)
    return {**schema, "additionalProperties": False} if is_complete else schema
