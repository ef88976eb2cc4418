"""Convert the requested form of an answer to a constraint for the engine."""

from __future__ import annotations

from typing import Any

from corral.chat.grammar import json_value
from corral.core.errors import InvalidRequest
from corral.core.params import Constraint, JsonWhitespace
from corral.grammar.json_schema import plan_schema

# Keys of the format itself, if the keywords of its schema are next to them.
_OF_FORMAT = ("type", "json_schema", "name", "strict")
_OF_WRAPPER = ("name", "strict")


def grammar_or_schema(grammar: str, json_schema: Any, whitespace: JsonWhitespace) -> Constraint | None:
    """Convert the fields `grammar` and `json_schema` of a request."""
    if grammar and json_schema is not None:
        raise InvalidRequest("cannot be combined with 'json_schema'", field="grammar")
    if grammar:
        return Constraint(kind="gbnf", text=grammar, field="grammar")
    if json_schema is not None:
        plan = plan_schema(json_schema, "json_schema", whitespace)
        return Constraint(
            kind="lark",
            text=f"start: {json_value(plan.grammar)}",
            field="json_schema",
            schemas={"json_schema": plan.grammar},
            checks=(plan.check,) if plan.check is not None else (),
        )
    return None


def schema_of_format(response_format: Any) -> Any:
    """Return the JSON Schema that `response_format` requests; None for any text.

    compat: /v1/chat/completions: the schema is next to `type`, under `json_schema`, or under
    `json_schema.schema`; without one, any object is valid.
    """
    if response_format in (None, "auto"):
        return None
    if not isinstance(response_format, dict):
        raise InvalidRequest("must be an object with a 'type', or 'auto'", field="response_format")
    kind = response_format.get("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        schema = response_format.get("schema", {})
    elif kind == "json_schema":
        wrapper = response_format.get("json_schema", response_format)
        if not isinstance(wrapper, dict):
            raise InvalidRequest("must be an object", field="response_format.json_schema")
        others = _OF_FORMAT if wrapper is response_format else _OF_WRAPPER
        schema = wrapper.get("schema", {k: v for k, v in wrapper.items() if k not in others})
    else:
        message = f"type must be 'text', 'json_object' or 'json_schema', not {kind!r:.40}"
        raise InvalidRequest(message, field="response_format")
    return {"type": "object"} if schema == {} else schema
