"""The types that a schema means where it names none."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from corral.core.errors import InvalidRequest
from corral.grammar.json_schema import MAX_NODES, complete_schema, prepare_schema
from corral.grammar.rewrite import bare
from corral.grammar.schema import all_parts

A = {"properties": {"a": {}}}
TAGGED = [{"properties": {"k": {"const": c}}, "required": ["k"]} for c in "ab"]
OBJECT_OR_NULL = {"type": ["object", "null"]}


def types_of(schema: Any) -> dict[str, Any]:
    """What has a type, by its pointer, before anything is said in other words."""
    ready = complete_schema({} if schema is True else schema)
    return {pointer: part["type"] for pointer, part in all_parts(ready) if "type" in part}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"items": {"type": "string"}, "minItems": 10, "maxItems": 100}, {"#": "array", "#/items": "string"}),
        ({"properties": {"n": {"minLength": 1}}}, {"#": "object", "#/properties/n": "string"}),
        ({"prefixItems": [{"pattern": "^a$"}, {}]}, {"#": "array", "#/prefixItems/0": "string"}),
        (
            {"additionalProperties": {"multipleOf": 2}},
            {"#": "object", "#/additionalProperties": "number"},
        ),
        ({"patternProperties": {"^x": A}}, {"#": "object", "#/patternProperties/^x": "object"}),
        ({"required": ["a"]}, {"#": "object"}),
        ({"format": "uuid"}, {"#": "string"}),
        ({"minLength": 1, "maximum": 2}, {"#": ["number", "string"]}),
        # Nothing is meant.
        ({}, {}),
        (True, {}),
        ({"description": "minLength", "format": "int32"}, {}),
        ({"enum": [1, "a"], "minLength": 1}, {}),
        ({"const": None, "required": ["a"]}, {}),
        # A list of types says all that there is to say.
        ({"type": ["string", "null"], "minLength": 2}, {"#": ["string", "null"]}),
        (
            {"type": ["string", "null"], "allOf": [{"minLength": 2}, {"maxLength": 3}]},
            {"#": ["string", "null"]},
        ),
        ({"type": "object", "allOf": [{"required": ["a"]}, {"minProperties": 1}]}, {"#": "object"}),
        ({"type": ["object", "null"], "anyOf": [{"required": ["a"]}, {}]}, {"#": ["object", "null"]}),
        # Parts that apply together.
        ({"allOf": [A, {"required": ["a"]}]}, {"#": "object"}),
        ({"allOf": [{"minLength": 1}, {"maximum": 2}]}, {"#": ["number", "string"]}),
        ({"allOf": [{"minLength": 1}, {"type": ["string", "null"]}]}, {"#/allOf/1": ["string", "null"]}),
        # Alternatives.
        ({"anyOf": [A, {"type": "null"}]}, {"#/anyOf/0": "object", "#/anyOf/1": "null"}),
        ({"anyOf": [{"minLength": 2}, {"maximum": 5}, {}]}, {"#/anyOf/0": "string", "#/anyOf/1": "number"}),
        ({**A, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"#": "object"}),
        (
            {**A, "anyOf": [{"required": ["a"]}, {"type": "null"}]},
            {"#/anyOf/0": "object", "#/anyOf/1": "null"},
        ),
        (
            {"minLength": 2, "anyOf": [{"type": "string"}, {"type": "null"}]},
            {"#/anyOf/0": "string", "#/anyOf/1": "null"},
        ),
        ({"oneOf": TAGGED}, {"#/anyOf/0": "object", "#/anyOf/1": "object"}),
        ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"#": "object"}),
        ({**A, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"#": "object"}),
        # `null` follows both: a type in the first branch would allow it.
        ({"oneOf": [A, {"type": "null"}]}, {"#/oneOf/1": "null"}),
    ],
)
def test_types_are_added_where_they_are_meant(schema, types):
    before = copy.deepcopy(schema)
    assert types_of(schema) == types
    assert schema == before, "what the client sent stays as it is"


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"$ref": "#/$defs/x"}, {"#/$defs/x": "object"}),
        ({"items": {"$ref": "#/$defs/x", "title": "t"}}, {"#": "array", "#/$defs/x": "object"}),
        ({"anyOf": [{"$ref": "#/$defs/x"}, {"type": "null"}]}, {"#/$defs/x": "object", "#/anyOf/1": "null"}),
        ({**OBJECT_OR_NULL, "$ref": "#/$defs/x"}, {"#": ["object", "null"]}),
        ({**OBJECT_OR_NULL, "anyOf": [{"$ref": "#/$defs/x"}]}, {"#": ["object", "null"]}),
        ({"allOf": [{"$ref": "#/$defs/x"}, OBJECT_OR_NULL]}, {"#/allOf/1": ["object", "null"]}),
        ({"allOf": [{"$ref": "#/$defs/x"}, {"required": ["a"]}]}, {"#": "object"}),
        ({"oneOf": [{"$ref": "#/$defs/x"}, {"type": "null"}]}, {"#/oneOf/1": "null"}),
        (
            {"prefixItems": [{"$ref": "#/$defs/x"}, {**OBJECT_OR_NULL, "$ref": "#/$defs/x"}]},
            {"#": "array", "#/prefixItems/0": "object", "#/prefixItems/1": ["object", "null"]},
        ),
    ],
)
def test_references_get_a_type_only_where_they_describe_the_value(schema, types):
    assert types_of({**schema, "$defs": {"x": {"properties": {"n": {}}}}}) == types


def test_references_by_other_names_and_in_circles():
    assert types_of({"$ref": "#here", "$defs": {"x": {"$anchor": "here", **A}}}) == {"#/$defs/here": "object"}
    assert types_of({"items": {"$ref": "#"}}) == {"#": "array"}
    circle = {"x": {"$ref": "#/$defs/y", "minLength": 1}, "y": {"$ref": "#/$defs/x"}}
    assert types_of({"$ref": "#/$defs/x", "$defs": circle})["#"] == "string"


@pytest.mark.parametrize("keyword", ["not", "if", "then", "else"])
def test_conditions_stay_as_they_are(keyword):
    inner = {"minLength": 2, "properties": {"a": {"minLength": 1}}}
    schema = {"type": ["string", "null"], "if": {}, keyword: inner}
    assert bare(complete_schema(schema))[keyword] == inner


def test_a_tangle_of_references_is_refused():
    """Instead of following each of many references through all the others."""
    n = MAX_NODES // 8
    defs = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}", "minLength": 1} for i in range(n)}
    prefix = [{"$ref": "#/$defs/d0", "minLength": 1}] * n
    with pytest.raises(InvalidRequest) as caught:
        prepare_schema({"prefixItems": prefix, "$defs": defs}, "f", "compact")
    assert caught.value.details["param"] == "f"
