"""JSON Schemas from clients, bounded and made ready to be followed word by word."""

from __future__ import annotations

from typing import Any

from corral.core.errors import InvalidRequest

MAX_DEPTH = 64
MAX_NODES = 20_000
MAX_PROPERTIES = 1000  # of one object: the order of optional ones makes them dear

# How JSON may be laid out. Where there is no choice, text between values need not be drawn token by token.
# `flexible` is llama-server's way: a space, or a line break with an indent; never white space without end.
WHITESPACE: dict[str, dict[str, Any]] = {
    "compact": {"whitespace_flexible": False},
    "spaced": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
    "flexible": {"whitespace_pattern": r"( |\n[ ]{0,20})?"},
}
_OPEN_ENDED = {
    "additionalProperties",
    "unevaluatedProperties",
    "patternProperties",
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
}


def prepare_schema(schema: Any, field: str, whitespace: str, is_lenient: bool = False) -> Any:
    """The schema as the engine takes it. Objects are closed where it leaves that open, as llama-server does.

    `whitespace` names a layout; `is_lenient`: what cannot be enforced is left out instead of refused.
    """
    if not isinstance(schema, dict | bool):
        raise InvalidRequest("must be a JSON Schema: an object", field=field)
    _check_size(schema, field)
    if not isinstance(schema, dict):
        return schema
    closed = schema if _has_key(schema, "allOf") else _close(schema)
    options = WHITESPACE[whitespace]
    return {**closed, "x-guidance": {**options, "lenient": True} if is_lenient else options}


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


def _has_key(node: Any, key: str) -> bool:
    return (isinstance(node, dict) and key in node) or any(_has_key(child, key) for child in _children(node))


def _close(schema: Any) -> Any:
    """No other properties than the ones that are named, wherever the schema does not speak of others."""
    if not isinstance(schema, dict):
        return schema
    closed = dict(schema)
    for key in ("properties", "$defs", "definitions", "patternProperties"):
        if isinstance(schema.get(key), dict):
            closed[key] = {name: _close(part) for name, part in schema[key].items()}
    for key in ("items", "additionalProperties"):
        if key in schema:
            closed[key] = _close(schema[key])
    for key in ("anyOf", "oneOf", "prefixItems"):
        if isinstance(schema.get(key), list):
            closed[key] = [_close(part) for part in schema[key]]
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list) or _OPEN_ENDED & schema.keys():
        return closed
    if all(name in properties for name in required):
        closed["additionalProperties"] = False
    return closed
