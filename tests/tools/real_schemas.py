"""Schemas as real programs send them: pydantic classes, tools of MCP servers, tools made from OpenAPI."""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, TypeAdapter, conint, constr
from pydantic.networks import AnyUrl

_ZOD = "http://json-schema.org/draft-07/schema#"


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=0, le=9)] = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    barks: bool
    color: Color = Color.RED


class Owner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    other: Cat | Dog | None = None
    names: dict[str, int] = {}
    by_color: dict[Color, bool] = {}
    by_name: dict[Annotated[str, Field(pattern="^[a-z]{1,3}$")], int] = {}


class Person(BaseModel):
    id: uuid.UUID
    version: uuid.UUID | None = Field(default=None, json_schema_extra={"format": "uuid4"})
    name: constr(min_length=1, max_length=9)  # type: ignore[valid-type]
    age: conint(gt=0, lt=150)  # type: ignore[valid-type]
    nick: str | None = Field(default=None, max_length=3)
    born: dt.date
    seen: dt.datetime | None = None
    spent: dt.timedelta | None = None
    url: AnyUrl | None = None
    secret: SecretStr | None = None
    price: Decimal | None = None
    pair: tuple[int, bool] = (1, True)
    flags: set[bool] = set()
    colors: frozenset[Color] = frozenset()
    level: Literal[1, 2, "max"] = 1


class Node(BaseModel):
    value: Annotated[float, Field(multiple_of=0.5, ge=-2, le=2)]
    children: Annotated[list[Node], Field(max_length=2)] = []


class Tagged(BaseModel):
    tags: set[Annotated[str, Field(max_length=3)]] | None
    scores: frozenset[Annotated[int, Field(ge=0, le=20)]] = frozenset()


class Chosen(BaseModel):
    items: Annotated[
        list[Cat | Annotated[set[Annotated[str, Field(max_length=2)]], Field(max_length=2)] | None],
        Field(max_length=2),
    ]


class Step(BaseModel):
    explanation: str
    output: str


class Reasoning(BaseModel):
    steps: Annotated[list[Step], Field(min_length=1, max_length=3)]
    final_answer: str


def _object(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), **more}


def _zod(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return _object(properties, *required, additionalProperties=False, **{"$schema": _ZOD})


_TEXT: dict[str, Any] = {"type": "string", "maxLength": 8}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 99}

PYDANTIC: dict[str, Any] = {
    "pydantic discriminated union": Owner.model_json_schema(),
    "pydantic constrained types": Person.model_json_schema(),
    "pydantic recursive": Node.model_json_schema(),
    "pydantic steps": Reasoning.model_json_schema(),
    "pydantic union": TypeAdapter(
        int | Annotated[str, Field(max_length=4)] | None | list[bool]
    ).json_schema(),
    "pydantic discriminated list": TypeAdapter(
        Annotated[list[Annotated[Cat | Dog, Field(discriminator="kind")]], Field(max_length=2)]
    ).json_schema(),
}
MCP: dict[str, Any] = {
    "filesystem edit_file": _zod(
        {
            "path": _TEXT,
            "edits": {
                "type": "array",
                "maxItems": 2,
                "items": _object(
                    {"oldText": {**_TEXT, "description": "Text to search for"}, "newText": _TEXT},
                    *("oldText", "newText"),
                    additionalProperties=False,
                ),
            },
            "dryRun": {"type": "boolean", "default": False},
        },
        *("path", "edits"),
    ),
    "filesystem read_text_file": _object(
        {"path": _TEXT, "head": _COUNT, "tail": _COUNT}, "path", **{"not": {"required": ["head", "tail"]}}
    ),
    "github create_issue": _zod(
        {
            "owner": _TEXT,
            "title": _TEXT,
            "labels": {"type": "array", "items": _TEXT, "maxItems": 2},
            "milestone": {"type": "number"},
            "state": {"anyOf": [{"type": "string", "enum": ["open", "closed"]}, {"type": "null"}]},
        },
        *("owner", "title"),
    ),
    "github search": _object(
        {
            "q": _TEXT,
            "sort": {"type": "string", "enum": ["stars", "forks"]},
            "order": {"enum": ["asc", "desc"]},
        },
        "q",
        dependentRequired={"order": ["sort"]},
    ),
    "fetch": _object(
        {
            "url": {"type": "string", "format": "uri", "minLength": 1, "maxLength": 20, "title": "Url"},
            "max_length": {
                "default": 5000,
                "exclusiveMaximum": 1000000,
                "exclusiveMinimum": 0,
                "type": "integer",
            },
            "raw": {"default": False, "type": "boolean"},
        },
        "url",
        title="Fetch",
    ),
    "memory add_relations": _zod(
        {
            "relations": {
                "type": "array",
                "maxItems": 2,
                "items": _object(
                    {"from": _TEXT, "to": _TEXT, "relationType": _TEXT}, "from", "to", "relationType"
                ),
            }
        },
        "relations",
    ),
    "slack post": _object(
        {
            "channel": {"type": "string", "pattern": "^C[0-9]{3}$"},
            "text": _TEXT,
            "blocks": {"type": "array", "maxItems": 1},
        },
        "channel",
        anyOf=[{"required": ["text"]}, {"required": ["blocks"]}],
    ),
    "time convert": _object(
        {"source": _TEXT, "time": {"type": "string", "format": "time", "maxLength": 16}}, "source", "time"
    ),
    "database query": _object(
        {"sql": _TEXT, "table": _TEXT, "limit": _COUNT},
        oneOf=[{"required": ["sql"]}, {"required": ["table"]}],
    ),
    "labelled options": _object(
        {
            "size": {
                "oneOf": [
                    {"const": "s", "title": "Small"},
                    {"const": "l", "title": "Large"},
                ]
            },
            "tags": {"type": "array", "uniqueItems": True, "items": {"enum": ["a", "b", "c"]}},
        },
        "size",
    ),
    "zod union and record": _zod(
        {
            "target": {"anyOf": [_object({"id": _COUNT}, "id", additionalProperties=False), _TEXT]},
            "env": {
                "type": "object",
                "additionalProperties": _TEXT,
                "propertyNames": {"pattern": "^[A-Z]{1,3}$"},
            },
        },
        "target",
    ),
    "zod reference into properties": _zod(
        {
            "from": {**_object({"x": _COUNT}, "x"), "additionalProperties": False},
            "to": {"$ref": "#/properties/from"},
        },
        *("from", "to"),
    ),
}
_PAYMENT = {
    "Card": _object(
        {"type": {"const": "card"}, "number": {"type": "string", "pattern": "^[0-9]{4}$"}}, "type", "number"
    ),
    "Bank": _object({"type": {"const": "bank"}, "iban": _TEXT}, "type", "iban"),
}
OPENAPI: dict[str, Any] = {
    "openapi oneOf with discriminator": {
        "oneOf": [{"$ref": "#/$defs/Card"}, {"$ref": "#/$defs/Bank"}],
        "discriminator": {"propertyName": "type", "mapping": {"card": "#/$defs/Card"}},
        "$defs": _PAYMENT,
    },
    "openapi allOf with a base": {
        "allOf": [
            {"$ref": "#/$defs/Base"},
            _object(
                {"name": _TEXT, "href": {"type": "string", "format": "uri-reference", "maxLength": 9}}, "name"
            ),
        ],
        "unevaluatedProperties": False,
        "$defs": {"Base": _object({"id": {"type": "integer", "format": "int64", "minimum": 0}}, "id")},
    },
    "openapi if then else": _object(
        {"country": {"enum": ["US", "DE"]}, "zip": {"type": "string"}},
        *("country", "zip"),
        allOf=[
            {
                "if": {"properties": {"country": {"const": "US"}}},
                "then": {"properties": {"zip": {"pattern": "^[0-9]{5}$"}}},
                "else": {"properties": {"zip": {"pattern": "^[A-Z0-9]{4}$"}}},
            }
        ],
    ),
    "openapi dependencies of draft 7": {
        "$schema": _ZOD,
        **_object({"card": _TEXT, "address": _TEXT, "phone": _TEXT}),
        "dependencies": {"card": ["address"], "phone": {"required": ["address"]}},
    },
    "openapi definitions": {
        "$schema": _ZOD,
        "$ref": "#/definitions/Order",
        "definitions": {
            "Order": _object(
                {
                    "items": {"type": "array", "maxItems": 2, "items": {"$ref": "#/definitions/Item"}},
                    "note": _TEXT,
                },
                "items",
                additionalProperties=False,
            ),
            "Item": _object({"sku": _TEXT, "count": _COUNT}, "sku", additionalProperties=False),
        },
    },
    "openapi not null and contains": _object(
        {
            "roles": {
                "type": "array",
                "items": {"enum": ["admin", "user", "guest"]},
                "contains": {"const": "admin"},
                "maxItems": 3,
            },
            "note": {"not": {"type": ["null", "object", "array"]}, "maxLength": 4},
            "status": {"type": "string", "not": {"enum": ["deleted", "draft"]}, "maxLength": 7},
        },
        "roles",
    ),
    "tuple of draft 2019": {
        "$schema": "https://json-schema.org/draft/2019-09/schema",
        "type": "array",
        "items": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "boolean"}],
        "additionalItems": False,
        "minItems": 2,
    },
}
# What no grammar can say: these are checked while they are written.
_ID: dict[str, Any] = {"type": "string", "pattern": "^[a-z]{1,3}$"}
_LABEL: dict[str, Any] = {"pattern": "^[a-z]{1,3}$", "not": {"enum": ["a", "b"]}}
CHECKED: dict[str, Any] = {
    "pydantic set of strings": TypeAdapter(
        Annotated[set[Annotated[str, Field(max_length=3)]], Field(max_length=4)]
    ).json_schema(),
    "pydantic optional set": Tagged.model_json_schema(),
    "pydantic union in one": Chosen.model_json_schema(),
    "unique tags": _object(
        {"tags": {"type": "array", "items": _TEXT, "uniqueItems": True, "maxItems": 4}}, "tags"
    ),
    "unique pairs": _object(
        {
            "pairs": {
                "type": "array",
                "uniqueItems": True,
                "minItems": 2,
                "maxItems": 3,
                "items": _object({"x": _COUNT, "y": {"type": "boolean"}}, "x", additionalProperties=False),
            }
        },
        "pairs",
    ),
    "a default among any number": _object(
        {"addresses": {"type": "array", "items": _ID, "contains": {"pattern": "^[a-m]"}}}, "addresses"
    ),
    "a name that is not reserved": _object(
        {"name": {**_ID, "not": {"pattern": "^(a|root)"}}, "count": _COUNT}, "name"
    ),
    "labels with other names": _object(
        {"labels": {"type": "object", "additionalProperties": _COUNT, "propertyNames": _LABEL}}, "labels"
    ),
    "one of two forms of text": _object(
        {
            "ref": {
                "oneOf": [
                    {"type": "string", "pattern": "^[a-z0-9]{2,6}$"},
                    {"type": "string", "maxLength": 4},
                ]
            }
        },
        "ref",
    ),
    "a condition on a pattern": _object(
        {"kind": _ID, "size": _COUNT},
        "kind",
        **{"if": {"properties": {"kind": {"pattern": "^[a-k]"}}}, "then": {"required": ["size"]}},
    ),
    "unique numbers of draft 7": {
        "$schema": _ZOD,
        **_object({"ports": {"type": "array", "uniqueItems": True, "items": _COUNT, "minItems": 2}}, "ports"),
    },
}
REAL: dict[str, Any] = {**PYDANTIC, **MCP, **OPENAPI, **CHECKED}
