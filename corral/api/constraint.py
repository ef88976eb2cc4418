"""Convert the requested form of an answer to a constraint for the engine."""

from __future__ import annotations

from typing import Any

import msgspec

from corral.api.schema.completion import GenerationFields
from corral.api.schema.llama_server import GrammarTrigger
from corral.api.vocab import Vocab
from corral.chat.grammar import json_value
from corral.core.errors import InvalidRequest
from corral.core.params import Constraint, JsonWhitespace
from corral.grammar.json_schema import plan_schema

# Keys of the format itself, if the keywords of its schema are next to them.
_OF_FORMAT = ("type", "json_schema", "name", "strict")
_OF_WRAPPER = ("name", "strict")
_TOKEN, _WORD = 0, 1  # types of triggers


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


def make_lazy(constraint: Constraint | None, body: GenerationFields, vocab: Vocab) -> Constraint | None:
    """Return the constraint that applies only after a trigger, if the request asks for that."""
    if constraint is None or not body.grammar_lazy:
        return constraint
    if not body.grammar_triggers:
        raise InvalidRequest("needs at least one trigger", field="grammar_triggers")
    if constraint.checks:
        message = f"keywords of '{constraint.field}' that no grammar can express are not checked lazily"
        raise InvalidRequest(message, field="grammar_lazy")
    words = [trigger.value for trigger in body.grammar_triggers if trigger.type == _WORD]
    if not all(words):
        raise InvalidRequest("a word is empty", field="grammar_triggers")
    tokens = [_trigger_token(t, vocab) for t in body.grammar_triggers if t.type != _WORD]
    return msgspec.structs.replace(constraint, trigger_words=tuple(words), trigger_tokens=tuple(tokens))


def _trigger_token(trigger: GrammarTrigger, vocab: Vocab) -> int:
    if trigger.type != _TOKEN:
        raise InvalidRequest("patterns are not supported; send words", field="grammar_triggers")
    token = trigger.token if trigger.token >= 0 else vocab.token_of(trigger.value)
    if token is None or token >= vocab.n_tokens:
        raise InvalidRequest(
            f"{trigger.value or trigger.token!r:.40} is not a token of the model", field="grammar_triggers"
        )
    return token


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
