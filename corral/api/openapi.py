"""The content of `/openapi.json`: the errors of all routes from one table, and the formats of bodies and
responses.

Routes declare only what is specific to them; what every route may return is added when the description is
built. Knows formats and statuses, not how responses are made.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any

from pydantic import BaseModel

from corral import __version__
from corral.api.error_shape import LLAMA_ERRORS, ErrorShape
from corral.api.group import GROUPS
from corral.api.route_table import RouteTable
from corral.core.errors import error_classes
from corral.core.key_role import Permission
from corral.schema.parse import aliases_of

Schema = dict[str, Any]
Responses = dict[int | str, dict[str, Any]]

JSON = "application/json"
EVENTS = "text/event-stream"
BINARY = "application/octet-stream"
TEXT = "text/plain"

ERRORS = {
    400: "the request is invalid: `message` says why, `param` names the field",
    401: "the server requires an API key, and the request has no valid one",
    403: "the request's `Host`, its `Origin`, the client's address or the role of its key is not allowed",
    404: "not found",
    408: "the request arrived too slowly",
    409: "busy, or already exists",
    413: "the body is larger than `--max-body-mb`",
    429: "a limit of the API key is reached: retry after `Retry-After`",
    431: "the request's headers are too large",
    500: "the model or the server failed",
    501: "not supported by this server or its model: `message` names the option that enables it",
    502: "an MCP server failed, or its tool did",
    503: "the model is loading, the engine is restarting, or the queue is full: retry later",
    507: "out of memory or disk space",
}
# Statuses that a connection returns before there is a request, and their names here.
OF_CONNECTIONS = {408: "TooSlow", 431: "HeaderTooLarge"}
_EVERYWHERE = (403, *OF_CONNECTIONS, 500, 503)
_OF_BODIES = (400, 413, 429)
_PREFIX = "#/components/schemas/{model}"
_RETRY_AFTER = {
    "description": "Seconds to wait before retrying.",
    "schema": {"type": "integer", "minimum": 0},
}
_LIMITS = {"ge": "minimum", "le": "maximum"}
_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
}


def shape(**fields: str | Schema) -> Schema:
    """Return the schema of an object with fields such as `n="integer"`; `"a|b"`: either type; `"a?"`:
    optional."""
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
    """Return the schema of an object whose fields are all optional, as in `integer="n m"`."""
    return shape(**{name: f"{kind}?" for kind, line in names.items() for name in line.split()})


def list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def either(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


_EVENT = shape(data="string")  # of each event in a stream
_BODIES: dict[str, type[BaseModel]] = {}  # by name, for references to them


def answers(schema: Schema | None, *errors: int, also: Collection[str] = ()) -> Responses:
    """Return the `responses` of a route: JSON of this schema, other content types in addition or instead, and
    errors specific to the route."""
    content: dict[str, Any] = {JSON: {"schema": schema}} if schema is not None else {}
    content |= {kind: {"schema": _EVENT if kind == EVENTS else {"type": "string"}} for kind in also}
    good: Responses = {200: {"description": "Success.", "content": content}}
    return good | {status: {"description": ERRORS[status]} for status in errors}


@cache
def body_of(*models: type[BaseModel], required: bool = True, also: tuple[str, ...] = ()) -> dict[str, Any]:
    """Describe the body of a route that parses it itself: a model, or one of several. Their schemas are made
    with the description: they cost a third of the time to import the routes."""
    _BODIES.update({model.__name__: model for model in models})
    schemas = [_reference("schemas", model.__name__) for model in models]
    return body_like(schemas[0] if len(schemas) == 1 else either(*schemas), required, also)


def body_like(schema: Schema, required: bool = True, also: Collection[str] = ()) -> dict[str, Any]:
    content: dict[str, Any] = {JSON: {"schema": schema}}
    content |= {kind: {"schema": {"type": "string", "format": "binary"}} for kind in also}
    return {"requestBody": {"required": required, "content": content}}


def form_of(model: type[BaseModel]) -> dict[str, Any]:
    """Describe a body that is a form."""
    _BODIES[model.__name__] = model
    schema = {"schema": _reference("schemas", model.__name__)}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": schema}}}


def model_of(schema: Schema) -> type[BaseModel] | None:
    """Return the model of a body that a schema refers to."""
    return _BODIES.get(schema.get("$ref", "").rpartition("/")[2])


@cache
def schema_of(model: type[BaseModel]) -> Schema:
    """Return the schema of a model as clients may send it: optional fields may also be null, and have
    aliases."""
    schema = _nullable(_plain(model.model_json_schema(ref_template=_PREFIX)))
    properties = schema["properties"]
    for other, name in aliases_of(model).items():
        properties[name] = {**properties[name], "x-aliases": [*properties[name].get("x-aliases", ()), other]}
    inner = {name: _nullable(other) for name, other in schema.get("$defs", {}).items()}
    return {**schema, "title": model.__name__, **({"$defs": inner} if inner else {})}


def query(name: str, about: str, required: bool = False, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": about, "required": required, "schema": schema}


def queries(*parameters: dict[str, Any], **extra: Any) -> dict[str, Any]:
    """Describe the query parameters of a route, with the rest of its `openapi_extra`."""
    return {"parameters": list(parameters), **extra}


def describe(table: RouteTable, has_keys: bool) -> dict[str, Any]:
    """Return the description of these routes."""
    known = {error.status for error in error_classes()} | OF_CONNECTIONS.keys()
    schemas: dict[str, Any] = {"Error": _error_schema()}
    responses = {_name(status): _error_response(status) for status in sorted(known)}
    paths: dict[str, Any] = {}
    for route in table.described():
        operation = route.describe()
        if route.body is not None and "requestBody" not in operation:
            operation |= body_of(route.body)
        is_public = route.policy.permission is Permission.PUBLIC
        common = [*_EVERYWHERE, *(() if is_public else (401,))]
        common += _OF_BODIES if "requestBody" in operation else ()
        finished = _finish(operation, known.intersection(common), schemas)
        if route.policy.errors is not LLAMA_ERRORS:
            _reshape_errors(finished, route.policy.errors, schemas, responses)
        if has_keys and not is_public:
            finished["security"] = [{name: []} for name in _KEYS]
        paths.setdefault(route.path_format, {})[route.method.lower()] = finished
    schemas["BatchRequest"]["properties"]["endpoint"]["enum"] = table.batched()
    components = {"schemas": schemas, "responses": responses}
    if has_keys:
        components["securitySchemes"] = _KEYS
    info = {"title": "Corral", "description": "llama-server's API on libllama", "version": __version__}
    return {
        "openapi": "3.1.0",
        "info": info,
        "paths": paths,
        "components": components,
        "tags": [{"name": group.name, "description": group.about} for group in GROUPS],
    }


def _finish(operation: dict[str, Any], common: Collection[int], schemas: dict[str, Any]) -> dict[str, Any]:
    """Return an operation with the common errors, and its models moved to the components."""
    finished = dict(operation)
    given = {int(status): response for status, response in operation["responses"].items()}
    statuses = sorted({*given, *common})
    finished["responses"] = {
        str(s): given[s] if s < 300 else _reference("responses", _name(s)) for s in statuses
    }
    if body := operation.get("requestBody"):
        finished["requestBody"] = {**body, "content": _hoist(body["content"], schemas)}
    return finished


def _reshape_errors(
    operation: dict[str, Any], shape: ErrorShape, schemas: dict[str, Any], responses: dict[str, Any]
) -> None:
    """Replace the errors of an operation by those of its API, with that API's statuses."""
    schemas[f"{shape.name}Error"] = dict(shape.schema)
    reshaped: dict[str, Any] = {}
    for status, response in operation["responses"].items():
        if status == "200":
            reshaped[status] = response
            continue
        name, own = f"{shape.name}{_name(int(status))}", _error_response(int(status))
        content = {JSON: {"schema": _reference("schemas", f"{shape.name}Error")}}
        responses[name] = {**own, "content": content}
        reshaped.setdefault(str(shape.statuses.get(int(status), int(status))), _reference("responses", name))
    operation["responses"] = dict(sorted(reshaped.items()))


def _hoist(value: Any, schemas: dict[str, Any]) -> Any:
    """Replace models by references, and add them to the schemas."""
    if isinstance(value, list):
        return [_hoist(item, schemas) for item in value]
    if not isinstance(value, dict):
        return value
    if model := model_of(value):
        return _hoist(schema_of(model), schemas)
    if "properties" not in value or "title" not in value:
        return {key: _hoist(item, schemas) for key, item in value.items()}
    schemas.update(value.get("$defs", {}))
    schemas[value["title"]] = {key: item for key, item in value.items() if key != "$defs"}
    return _reference("schemas", value["title"])


def _plain(schema: Any) -> Any:
    """Remove titles, which repeat names, and rename limits to JSON Schema's keywords, which pydantic does not
    know for numbers that we check ourselves."""
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
        values = {"enum": [*field["enum"], None]} if "enum" in field else {}
        return {**field, "type": [*kinds, "null"], **values}
    if "anyOf" in field:
        null = {"type": "null"}
        return field if null in field["anyOf"] else {**field, "anyOf": [*field["anyOf"], null]}
    if "$ref" in field:
        rest = {key: item for key, item in field.items() if key != "$ref"}
        return {**rest, "anyOf": [{"$ref": field["$ref"]}, {"type": "null"}]}
    return field


def _error_schema() -> Schema:
    types = sorted({error.type for error in error_classes()})
    fields = shape(code="integer|string", message="string", type={"enum": types}, param="string?")
    return {**shape(error=fields), "title": "Error"}


def _error_response(status: int) -> dict[str, Any]:
    response: dict[str, Any] = {
        "description": ERRORS[status],
        "content": {JSON: {"schema": _reference("schemas", "Error")}},
    }
    return {**response, "headers": {"Retry-After": _RETRY_AFTER}} if status in (429, 503) else response


@cache
def _name(status: int) -> str:
    """Name a response after the most general error with this status."""
    names = (error.__name__ for error in error_classes() if error.status == status)
    return OF_CONNECTIONS.get(status) or next(names)


def _reference(kind: str, name: str) -> dict[str, str]:
    return {"$ref": f"#/components/{kind}/{name}"}
