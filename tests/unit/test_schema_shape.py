"""Keywords that take text, with something else: a 400 that says where, not a failure."""

from __future__ import annotations

import pytest

from corral.core.errors import InvalidRequest
from corral.grammar.json_schema import prepare_schema


@pytest.mark.parametrize(
    ("schema", "keyword", "pointer"),
    [
        ({"properties": {"a": {}}, "required": [{}]}, "required", "#"),
        ({"anyOf": [{"type": "null"}, {"type": [["string"]]}]}, "type", "#/anyOf/1"),
        ({"properties": {"required": {"format": {}}}}, "format", "#/properties/required"),
        ({"not": {"pattern": ["a"]}}, "pattern", "#/not"),
        ({"type": "object", "dependentRequired": {"a": [1]}}, "dependentRequired", "#"),
        ({"$defs": {"const": {"$ref": ["#"]}}}, "$ref", "#/$defs/const"),
    ],
)
def test_other_values_are_refused_with_their_place(schema, keyword, pointer):
    with pytest.raises(InvalidRequest) as caught:
        prepare_schema(schema, "json_schema", "compact")
    assert f"'{keyword}' at {pointer} " in caught.value.message


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [{"required": [1], "format": {}}]},
        {"const": {"type": [[1]]}},
        {"type": "object", "properties": {"type": {"type": "string"}, "enum": {}}, "required": ["type"]},
        {"type": "integer", "default": {"required": [{}]}},
    ],
)
def test_values_and_names_are_not_keywords(schema):
    prepare_schema(schema, "json_schema", "compact")


def test_a_count_beyond_all_integers_is_refused_or_kept():
    prepared = prepare_schema({"type": "string", "maxLength": 1e308}, "json_schema", "compact")
    assert prepared["maxLength"] == 1e308
    assert isinstance(prepared["maxLength"], float)
