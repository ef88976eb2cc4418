"""Convert the requested form of an answer to a constraint for the engine."""

from __future__ import annotations

from typing import Any

import msgspec

from corral.chat.grammar import json_value
from corral.core.errors import InvalidRequest
from corral.core.params import Constraint, JsonWhitespace
from corral.generate.demand import Demand
from corral.generate.vocab import Vocab
from corral.grammar.json_schema import plan_schema
from corral.schema.completion import GenerationFields
from corral.schema.llama_server import GrammarTrigger

_TOKEN, _WORD = 0, 1  # types of triggers


def grammar_or_schema(grammar: str, json_schema: Any, whitespace: JsonWhitespace) -> Constraint | None:
    """Convert the server's default grammar or schema."""
    if grammar and json_schema is not None:
        raise InvalidRequest("cannot be combined with 'json_schema'", field="grammar")
    if grammar:
        return constrain(Demand("grammar", "gbnf", grammar), whitespace)
    return (
        constrain(Demand("json_schema", "json", json_schema), whitespace) if json_schema is not None else None
    )


def constrain(demand: Demand, whitespace: JsonWhitespace) -> Constraint:
    if demand.kind != "json":
        return Constraint(kind=demand.kind, text=demand.value, field=demand.field)
    plan = plan_schema(demand.value, demand.field, whitespace)
    return Constraint(
        kind="lark",
        text=f"start: {json_value(plan.grammar)}",
        field=demand.field,
        schemas={demand.field: plan.grammar},
        checks=(plan.check,) if plan.check is not None else (),
    )


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
