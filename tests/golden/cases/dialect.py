"""What every dialect must show: features of answers, and errors. A dialect says how it is asked for each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tests.golden.case import MANY, MANY_SEALED, ONE, ONE_SEALED, Ask, Begin, Case, Model, Sleep

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
UNIQUE = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
_CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'

# Name of a feature, and what the model does.
FEATURES = {
    "text": Model(),
    "reasoning": Model("<think>\nHm.\n</think>\n\nYes."),
    "one call": Model(f"Look. {_CALL}"),
    "several calls": Model(f"{_CALL}\n{_CALL.replace('Rome', 'Oslo')}"),
    "cut call": Model(_CALL),
    "stop string": Model("One, two, three."),
    "length": Model("One, two, three."),
    "logprobs": Model("Hé."),
    "error after the first token": Model("Hello.", breaks_after=3),
    "structured output": Model('{"city":"Rome"}'),
    "redraw": Model('["a","a"]', instead='["a","ab"]'),
    "unmet schema": Model('["a","a"]', instead='["a","a"]'),
    "three answers": Model("Hi."),
}
N_CUT = 57  # tokens, in the middle of a call's arguments


@dataclass(frozen=True, slots=True)
class Dialect:
    """`features`: the fields that ask for each of FEATURES. `lacks`: those that it has not, and why."""

    name: str
    path: str
    body: dict[str, Any]
    features: dict[str, dict[str, Any]]
    lacks: dict[str, str] = field(default_factory=dict)
    streamed: dict[str, Any] | None = field(default_factory=lambda: {"stream": True})  # None: it cannot
    whole: dict[str, Any] = field(default_factory=dict)

    def ask(self, headers: dict[str, str] | None = None, **fields: Any) -> Ask:
        return Ask("POST", self.path, {**self.body, **self.whole, **fields}, headers or {})

    def stream(self, headers: dict[str, str] | None = None, **fields: Any) -> Ask:
        return Ask("POST", self.path, {**self.body, **(self.streamed or {}), **fields}, headers or {})


def features_of(dialect: Dialect) -> Iterator[Case]:
    """Every feature, whole and streamed."""
    for name, fields in dialect.features.items():
        yield Case(f"{dialect.name}: {name}, whole", (dialect.ask(**fields),), FEATURES[name])
        if dialect.streamed is not None:
            yield Case(f"{dialect.name}: {name}, streamed", (dialect.stream(**fields),), FEATURES[name])


def errors_of(dialect: Dialect) -> Iterator[Case]:
    """Every refusal."""
    plain = dialect.ask()
    text = plain.body
    yield Case(f"{dialect.name}: no JSON", (replace(plain, body=b"{"),))
    yield Case(
        f"{dialect.name}: a field of a wrong type", (dialect.ask(temperature="hot"), dialect.ask(seed=[]))
    )
    yield Case(
        f"{dialect.name}: other methods",
        tuple(Ask(method, plain.path) for method in ("GET", "HEAD", "PUT", "OPTIONS")),
    )
    yield Case(
        f"{dialect.name}: a longer path",
        (Ask("POST", f"{plain.path}/x", text), Ask("POST", f"{plain.path}/", text)),
    )
    yield Case(
        f"{dialect.name}: a model that does not exist", (dialect.ask(model="x"), dialect.stream(model="x"))
    )
    without = {name: value for name, value in text.items() if name != "model"}
    yield Case(f"{dialect.name}: no model is named", (replace(plain, body=without),))
    yield Case(f"{dialect.name}: an alias of the model", (dialect.ask(model="m-alias"),))
    keys = ("", "wrong", "read-only", "inference-only", "user")
    yield Case(
        f"{dialect.name}: keys",
        tuple(replace(plain, key=key) for key in keys),
        setups=(ONE_SEALED, MANY_SEALED),
    )
    yield Case(
        f"{dialect.name}: a body that is too large",
        (replace(plain, body=b" " * ((1 << 20) + 1)),),
        options={"max_body_mib": 1},
    )
    yield Case(f"{dialect.name}: a full queue", (Begin(plain), plain), Model(n_slots=1), {"queue_size": 0})
    limited = replace(plain, key="limited")
    yield Case(f"{dialect.name}: a key at its limit", (limited, limited), setups=(ONE_SEALED, MANY_SEALED))
    yield Case(
        f"{dialect.name}: while the model loads",
        (plain, dialect.stream()),
        Model(is_ready=False),
        setups=(ONE, ONE_SEALED),
    )
    yield Case(f"{dialect.name}: a failed engine", (Sleep("failed"), plain), setups=(ONE, ONE_SEALED))
    acts = (dialect.ask(), dialect.stream(model="n"))
    yield Case(
        f"{dialect.name}: models that are loaded for it",
        acts,
        Model(is_loaded=False),
        setups=(MANY, MANY_SEALED),
    )
    asks = (replace(plain, path=f"{plain.path}?autoload=false"), dialect.ask(model="n"))
    yield Case(
        f"{dialect.name}: a model that is not loaded for it",
        asks,
        Model(is_loaded=False),
        {"models_autoload": False},
        (MANY,),
    )
    page = {"origin": "https://example.com"}
    yield Case(
        f"{dialect.name}: a page of another origin",
        (dialect.ask(page), dialect.stream({"origin": "http://localhost:3000"})),
    )
    yield Case(f"{dialect.name}: the client's id of the request", (dialect.ask({"x-request-id": "mine"}),))
