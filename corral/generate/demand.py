"""Find what a request demands of its answer, in the fields of llama-server, OpenAI, vLLM and SGLang."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import orjson

from corral.chat.grammar import any_of, literal
from corral.core.errors import InvalidRequest
from corral.schema.completion import GenerationFields

# Keys of the format itself, if the keywords of its schema are next to them.
_OF_FORMAT = ("type", "json_schema", "name", "strict")
_OF_WRAPPER = ("name", "strict")
_MAX_CHARS = 1 << 20
_GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
_IN_REGEX = re.compile(r"\\.|/|\n", re.DOTALL)
_ESCAPED = {"/": r"\/", "\n": r"\n"}
# Keys of `structured_outputs` that are true of every answer, or are about the engine.
_GIVEN = ("disable_any_whitespace", "disable_additional_properties", "disable_fallback")


class Demand(NamedTuple):
    """A JSON Schema or a grammar of the answer. `field`: where the client sent it."""

    field: str
    kind: Literal["json", "gbnf", "lark"]
    value: Any


def find_demand(body: GenerationFields) -> Demand | None:
    """Return what the answer must be. Fields that demand the same count as one: guidance sends two."""
    demands = list(_demands(body))
    for other in demands[1:]:
        if other[1:] != demands[0][1:]:
            raise InvalidRequest(f"cannot be combined with '{other.field}'", field=demands[0].field)
    return demands[0] if demands else None


def _demands(body: GenerationFields) -> Iterator[Demand]:
    if body.grammar:
        yield Demand("grammar", "gbnf", body.grammar)
    for name in ("guided_whitespace_pattern", "structural_tag"):
        if getattr(body, name) is not None:
            raise _cannot(name)
    if body.structured_outputs is not None:
        yield _structured(body.structured_outputs)
    for name, read in _READ.items():
        for field in (f"guided_{name}", _OF_SGLANG.get(name, "")):
            value = getattr(body, field, None)
            if value is not None:
                yield read(field, value)
    schema = schema_of_format(body.response_format)
    if schema is not None:
        yield Demand("response_format", "json", schema)
    if body.json_schema is not None:
        yield Demand("json_schema", "json", body.json_schema)


def _structured(given: dict[str, Any]) -> Demand:
    """Read vLLM's `structured_outputs`, which has exactly one demand."""
    demands = []
    for key, value in given.items():
        field = f"structured_outputs.{key:.64}"
        if value is None or value is False or key in _GIVEN or key.startswith("_"):
            continue
        if key not in _READ and key != "json_object":
            raise _cannot(field)
        demands.append(
            _READ[key](field, value) if key in _READ else Demand(field, "json", {"type": "object"})
        )
    if len(demands) != 1:
        names = ", ".join(["json_object", *_READ])
        raise InvalidRequest(f"must have exactly one of {names}", field="structured_outputs")
    return demands[0]


def _read_json(field: str, value: Any) -> Demand:
    if isinstance(value, str):
        try:
            value = orjson.loads(_text(field, value))
        except orjson.JSONDecodeError as error:
            raise InvalidRequest(f"is not valid JSON: {error}", field=field) from None
    return Demand(field, "json", value)


def _read_regex(field: str, value: Any) -> Demand:
    pattern = _IN_REGEX.sub(lambda found: _ESCAPED.get(found[0], found[0]), _text(field, value))
    return Demand(field, "lark", f"start: /{pattern}/" if pattern else 'start: ""')


def _read_choice(field: str, value: Any) -> Demand:
    if not isinstance(value, list) or not value:
        raise InvalidRequest("must be a list of texts", field=field)
    texts = [_text(f"{field}[{i}]", text) for i, text in enumerate(value)]
    return Demand(field, "lark", "start: " + any_of(literal(text) or '""' for text in texts))


def _read_grammar(field: str, value: Any) -> Demand:
    text = _text(field, value)
    return Demand(field, "gbnf" if _GBNF_RULE.search(text) else "lark", text)


_READ = {"json": _read_json, "regex": _read_regex, "choice": _read_choice, "grammar": _read_grammar}
_OF_SGLANG = {"regex": "regex", "grammar": "ebnf"}


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > _MAX_CHARS:
        raise InvalidRequest(f"must be a text of at most {_MAX_CHARS} characters", field=field)
    return value


def _cannot(field: str) -> InvalidRequest:
    return InvalidRequest("cannot be enforced", field=field)


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
        _check_unused(response_format)
        return None
    if kind == "json_object":
        schema = response_format.get("schema")
        schema = {} if schema is None else schema
    elif kind == "json_schema":
        wrapper = response_format.get("json_schema")
        wrapper = response_format if wrapper is None else wrapper
        if not isinstance(wrapper, dict):
            raise InvalidRequest("must be an object", field="response_format.json_schema")
        others = _OF_FORMAT if wrapper is response_format else _OF_WRAPPER
        schema = wrapper.get("schema", {k: v for k, v in wrapper.items() if k not in others})
    else:
        message = f"type must be 'text', 'json_object' or 'json_schema', not {kind!r:.40}"
        raise InvalidRequest(message, field="response_format")
    return {"type": "object"} if schema == {} else schema


def _check_unused(response_format: dict[str, Any]) -> None:
    for name in ("schema", "json_schema"):
        if not isinstance(response_format.get(name), dict | None):
            raise InvalidRequest("must be an object", field=f"response_format.{name}")
