"""What `/openapi.json` says: the errors of all routes from one table, and what bodies and answers look like.

Routes name what is peculiar to them; what any of them may answer is added where the description is made.
Knows shapes and statuses, and nothing of how answers come about.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from corral.api.operation import name_operations, tags
from corral.api.schema.parse import aliases_of
from corral.core.errors import error_classes

Schema = dict[str, Any]
Responses = dict[int | str, dict[str, Any]]

JSON = "application/json"
EVENTS = "text/event-stream"
BINARY = "application/octet-stream"
TEXT = "text/plain"

ERRORS = {
    400: "the request is wrong: `message` says what, `param` which field",
    401: "the server has keys, and the request has none of them",
    403: "the request's `Host`, its `Origin` or the client's address is not allowed",
    404: "there is no such thing",
    408: "the request came too slowly",
    409: "it is busy, or there already",
    413: "the body is larger than `--max-body-mb`",
    431: "the request's header is too large",
    500: "the model or the server failed",
    501: "this server, or its model, cannot do it: `message` names the option it takes",
    503: "the model is loading, the engine is being restarted, or too many wait already: try again",
    507: "no room left, in memory or on disk",
}
# What a connection answers before there is a request, with what they are called here.
OF_CONNECTIONS = {408: "TooSlow", 431: "HeaderTooLarge"}
_EVERYWHERE = (403, *OF_CONNECTIONS, 500, 503)
_OF_BODIES = (400, 413)
_PREFIX = "#/components/schemas/{model}"
_RETRY_AFTER = {
    "description": "Seconds after which another try makes sense.",
    "schema": {"type": "integer", "minimum": 0},
}
_LIMITS = {"ge": "minimum", "le": "maximum"}
_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
}


def shape(**fields: str | Schema) -> Schema:
    """An object with such fields, as `n="integer"`; `"a|b"`: either of two types; `"a?"`: optional."""
    types = {
        name: kind.removesuffix("?").split("|") for name, kind in fields.items() if isinstance(kind, str)
    }
    simple = {name: {"type": kinds[0] if len(kinds) == 1 else kinds} for name, kinds in types.items()}
    return {
        "type": "object",
        "properties": {name: simple.get(name, kind) for name, kind in fields.items()},
        "required": [n for n, kind in fields.items() if not (isinstance(kind, str) and kind.endswith("?"))],
    }


def optional(**names: str) -> Schema:
    """An object any field of which may be missing, as `integer="n m"`."""
    return shape(**{name: f"{kind}?" for kind, line in names.items() for name in line.split()})


def list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def either(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


_EVENT = shape(data="string")  # of each one in a stream


def answers(schema: Schema | None, *errors: int, also: Collection[str] = ()) -> Responses:
    """The `responses` of a route: JSON of this shape, other kinds of content as well or instead, and errors
    that are not everywhere."""
    content: dict[str, Any] = {JSON: {"schema": schema}} if schema is not None else {}
    content |= {kind: {"schema": _EVENT if kind == EVENTS else {"type": "string"}} for kind in also}
    good: Responses = {200: {"description": "It is done.", "content": content}}
    return good | {status: {"description": ERRORS[status]} for status in errors}


@cache
def body_of(*models: type[BaseModel], required: bool = True, also: tuple[str, ...] = ()) -> dict[str, Any]:
    """What a route reads that reads its body itself: a model, or one of several."""
    schemas = [schema_of(model) for model in models]
    return body_like(schemas[0] if len(schemas) == 1 else either(*schemas), required, also)


def body_like(schema: Schema, required: bool = True, also: Collection[str] = ()) -> dict[str, Any]:
    content: dict[str, Any] = {JSON: {"schema": schema}}
    content |= {kind: {"schema": {"type": "string", "format": "binary"}} for kind in also}
    return {"requestBody": {"required": required, "content": content}}


@cache
def schema_of(model: type[BaseModel]) -> Schema:
    """A model as clients may send it: what is not required may also be null, and have other names."""
    schema = _nullable(_plain(model.model_json_schema(ref_template=_PREFIX)))
    properties = schema["properties"]
    for other, name in aliases_of(model).items():
        properties[name] = {**properties[name], "x-aliases": [*properties[name].get("x-aliases", ()), other]}
    inner = {name: _nullable(other) for name, other in schema.get("$defs", {}).items()}
    return {**schema, "title": model.__name__, **({"$defs": inner} if inner else {})}


def query(name: str, about: str, required: bool = False, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": about, "required": required, "schema": schema}


def queries(*parameters: dict[str, Any], **extra: Any) -> dict[str, Any]:
    """What a route reads of its query; with the rest of its `openapi_extra`."""
    return {"parameters": list(parameters), **extra}


def describe(app: FastAPI, public_paths: Collection[str], has_keys: bool) -> None:
    """Have the application describe itself truly. `public_paths`: what may be read without a key."""
    made: Callable[[], dict[str, Any]] = app.openapi
    done: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not done:
            done.update(_complete(made(), public_paths, has_keys))
        return done

    app.openapi = openapi  # type: ignore[method-assign]


def _complete(schema: dict[str, Any], public_paths: Collection[str], has_keys: bool) -> dict[str, Any]:
    known = {error.status for error in error_classes()} | OF_CONNECTIONS.keys()
    schemas: dict[str, Any] = {"Error": _error_schema()}
    paths: dict[str, Any] = {}
    for path, operations in schema["paths"].items():
        paths[path] = {}
        for method, operation in operations.items():
            is_public = method == "get" and path in public_paths
            common = [*_EVERYWHERE, *(() if is_public else (401,))]
            common += _OF_BODIES if "requestBody" in operation else ()
            paths[path][method] = _finish(operation, known.intersection(common), schemas)
            if has_keys and not is_public:
                paths[path][method]["security"] = [{name: []} for name in _KEYS]
    components = {"schemas": schemas, "responses": {_name(s): _error_response(s) for s in sorted(known)}}
    if has_keys:
        components["securitySchemes"] = _KEYS
    return {**schema, "tags": tags(), "paths": name_operations(paths), "components": components}


def _finish(operation: dict[str, Any], common: Collection[int], schemas: dict[str, Any]) -> dict[str, Any]:
    """An operation with the errors of all, and its models among the components."""
    finished = dict(operation)
    given = {int(s): r for s, r in operation["responses"].items() if s != "422"}
    statuses = sorted({*given, *common})
    finished["responses"] = {
        str(s): given[s] if s == 200 else _reference("responses", _name(s)) for s in statuses
    }
    if body := operation.get("requestBody"):
        finished["requestBody"] = {**body, "content": _hoist(body["content"], schemas)}
    return finished


def _hoist(value: Any, schemas: dict[str, Any]) -> Any:
    """The same, with references where models are; these go among the schemas."""
    if isinstance(value, list):
        return [_hoist(item, schemas) for item in value]
    if not isinstance(value, dict):
        return value
    if "properties" not in value or "title" not in value:
        return {key: _hoist(item, schemas) for key, item in value.items()}
    schemas.update(value.get("$defs", {}))
    schemas[value["title"]] = {key: item for key, item in value.items() if key != "$defs"}
    return _reference("schemas", value["title"])


def _plain(schema: Any) -> Any:
    """Without titles, which repeat the names, and with limits under the names that JSON Schema has for them:
    pydantic knows no better for numbers that we check ourselves."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: item for key, item in schema.items() if key != "title" or not isinstance(item, str)}
    return {_LIMITS.get(key, key): _plain(item) for key, item in kept.items()}


def _nullable(schema: Schema) -> Schema:
    required = schema.get("required", ())
    fields = schema["properties"].items()
    return {**schema, "properties": {k: f if k in required else _or_null(f) for k, f in fields}}


def _or_null(field: Schema) -> Schema:
    if kinds := field.get("type"):
        kinds = [kinds] if isinstance(kinds, str) else kinds
        return {**field, "type": [*kinds, "null"], **_with_null(field, "enum")}
    if "anyOf" in field:
        null = {"type": "null"}
        return field if null in field["anyOf"] else {**field, "anyOf": [*field["anyOf"], null]}
    if "$ref" in field:
        rest = {key: item for key, item in field.items() if key != "$ref"}
        return {**rest, "anyOf": [{"$ref": field["$ref"]}, {"type": "null"}]}
    return field


def _with_null(field: Schema, name: str) -> Schema:
    return {name: [*field[name], None]} if name in field else {}


def _error_schema() -> Schema:
    types = sorted({error.type for error in error_classes()})
    fields = shape(code="integer|string", message="string", type={"enum": types}, param="string?")
    return {**shape(error=fields), "title": "Error"}


def _error_response(status: int) -> dict[str, Any]:
    response: dict[str, Any] = {
        "description": ERRORS[status],
        "content": {JSON: {"schema": _reference("schemas", "Error")}},
    }
    return {**response, "headers": {"Retry-After": _RETRY_AFTER}} if status == 503 else response


@cache
def _name(status: int) -> str:
    """The most general error with this status gives the response its name."""
    names = (error.__name__ for error in error_classes() if error.status == status)
    return OF_CONNECTIONS.get(status) or next(names)


def _reference(kind: str, name: str) -> dict[str, str]:
    return {"$ref": f"#/components/{kind}/{name}"}
