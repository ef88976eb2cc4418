"""Schemas said in other words allow exactly what they allowed, in the judgement of two validators."""

from __future__ import annotations

import contextlib
import json
import random
import re
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for

from corral.core.errors import InvalidRequest
from corral.grammar.json_schema import prepare_schema
from corral.grammar.rewrite import NotExact, bare, read_draft, rewrite_schema
from corral.grammar.rewrite.other_text import one_of, other_texts
from tests.tools.hard_schema import DRAFTS, TEXTS, draw_hard_schema, draw_value

N_VALUES = 40
_NOT_FOLLOWED = {
    *('"not":', '"if":', '"then":', '"oneOf":', '"propertyNames":', '"dependentRequired":', '"contains":'),
    *('"dependentSchemas":', '"unevaluatedProperties":', '"unevaluatedItems":', '"uniqueItems":'),
}


def said(schema: Any) -> dict[str, Any]:
    return bare(rewrite_schema(read_draft(schema)))


def judge(schema: Any, value: Any) -> tuple[bool, bool]:
    """What two validators say, each by the rules of the schema's draft."""
    validator = validator_for(schema, Draft202012Validator)(schema)
    return validator.is_valid(value), jsonschema_rs.is_valid(schema, value)


@given(st.integers(0, 10**9), st.sampled_from(sorted(DRAFTS)))
def test_other_words_mean_the_same(seed, draft):
    schema = draw_hard_schema(seed, draft)
    try:
        validator_for(schema).check_schema(schema)
        other = said(schema)
    except (SchemaError, NotExact):
        return
    assert not any(word in json.dumps(other).replace('"not": {}', "") for word in _NOT_FOLLOWED)
    rng = random.Random(seed)
    for value in [draw_value(rng) for _ in range(N_VALUES)]:
        before, after = judge(schema, value), judge(other, value)
        assert before == after, (value, schema, other)


def refusal(schema: Any) -> NotExact | None:
    try:
        said(schema)
    except NotExact as error:
        return error
    return None


def test_most_random_schemas_can_be_said_and_refusals_name_a_keyword():
    schemas = [draw_hard_schema(seed) for seed in range(150)]
    refusals = {i: error for i, schema in enumerate(schemas) if (error := refusal(schema)) is not None}
    assert len(refusals) < 30
    for i, error in refusals.items():
        assert error.pointer.startswith("#")
        assert error.keyword in json.dumps(schemas[i]), error.message
        assert error.reason


@given(st.lists(st.text(max_size=4), min_size=1, max_size=4), st.text(max_size=5))
def test_texts_that_are_excluded_and_no_others(excluded, text):
    for candidate in (text, *excluded, *TEXTS, excluded[0] + text):
        is_excluded = candidate in excluded
        for pattern, is_valid in ((other_texts(excluded), not is_excluded), (one_of(excluded), is_excluded)):
            assert jsonschema_rs.is_valid({"pattern": pattern}, candidate) is is_valid
            # In Python `$` also matches before a line break.
            assert bool(re.search(pattern[:-1] + r"\Z", candidate)) is is_valid


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        # In draft 7 what is next to `$ref` does not count, and its `$id` changes no base.
        (
            {
                "$schema": DRAFTS[7],
                "$id": "http://x/root.json",
                "definitions": {
                    "a": {"$id": "http://x/other.json", "type": "string"},
                    "root": {"$ref": "#/definitions/n", "$id": "http://x/deep/", "maximum": 3},
                    "n": {"type": "integer"},
                },
                "$ref": "#/definitions/root",
            },
            *(5, "a"),
        ),
        (
            {
                "$schema": DRAFTS[2020],
                "$id": "http://x/root",
                "$ref": "item#here",
                "$defs": {"n": {"$id": "item", "$defs": {"m": {"$anchor": "here", "type": "integer"}}}},
            },
            *(5, "a"),
        ),
        ({"properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}}}, {"b": 1}, {"b": "a"}),
        (
            {
                "$schema": DRAFTS[2020],
                "$id": "http://x/strict",
                "$dynamicAnchor": "node",
                "$ref": "tree",
                "unevaluatedProperties": False,
                "$defs": {
                    "tree": {
                        "$id": "tree",
                        "$dynamicAnchor": "node",
                        "type": "object",
                        "properties": {"c": {"type": "array", "items": {"$dynamicRef": "#node"}}},
                    }
                },
            },
            *({"c": [{"c": []}]}, {"c": [{"d": 1}]}),
        ),
        (
            {"$schema": DRAFTS[4], "type": "integer", "minimum": 3, "exclusiveMinimum": True},
            *(4, 3),
        ),
    ],
)
def test_references_by_the_rules_of_their_draft(schema, good, bad):
    other = said(schema)
    assert "$id" not in json.dumps(other)
    for known in (schema, other):
        assert judge(known, good) == (True, True)
        assert judge(known, bad) == (False, False)


def test_metaschemas_are_known():
    schema = {"$ref": "https://json-schema.org/draft/2020-12/schema"}
    other = bare(read_draft(schema))
    for value, is_valid in (
        ({"properties": {"a": {"minLength": 1}}}, True),
        ({"not": {"minLength": -1}}, False),
    ):
        assert judge(schema, value) == judge(other, value) == (is_valid, is_valid)


@pytest.mark.parametrize(
    ("schema", "keyword", "pointer"),
    [
        ({"$ref": "https://example.com/s"}, "$ref", "#"),
        ({"properties": {"a/b": {"$ref": "#/$defs/none"}}}, "$ref", "#/properties/a~1b"),
        ({"items": {"type": "array", "uniqueItems": True}}, "uniqueItems", "#/items"),
        ({"anyOf": [{"type": "string", "not": {"pattern": "^a"}}, {}]}, "not", "#/anyOf/0"),
        (
            {"$defs": {"n": {"type": "array", "contains": {"const": 1}}}, "items": {"$ref": "#/$defs/n"}},
            *("contains", "#/$defs/n"),
        ),
        (
            {"properties": {"a": {"type": "string", "if": {"pattern": "^a"}, "then": {}}}},
            "if",
            "#/properties/a",
        ),
    ],
)
def test_a_refusal_names_keyword_and_place_as_the_client_sent_them(schema, keyword, pointer):
    with pytest.raises(InvalidRequest) as caught:
        prepare_schema(schema, "f", "compact")
    assert f"keyword '{keyword}' at {pointer} cannot be enforced: " in caught.value.message
    assert caught.value.details["param"] == "f"


def test_what_cannot_be_said_is_left_out_only_where_that_is_allowed():
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "uniqueItems": True}, "b": {}, "c": {}},
        "dependentRequired": {"b": ["c"]},
    }
    ready = prepare_schema(schema, "f", "compact", is_lenient=True)
    assert ready["x-guidance"]["lenient"] is True
    assert "dependentRequired" not in json.dumps(ready)


def test_schemas_without_such_keywords_stay_as_they_are():
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/x"}},
        "$defs": {"x": {"type": "null"}},
    }
    assert said(schema) == schema
    both = {"allOf": [{"$ref": "#/$defs/x"}, {"required": ["a"]}], "$defs": {"x": schema["properties"]["a"]}}
    assert said({**both, "$defs": {"x": {}}}) == {**both, "$defs": {"x": {}}}


def test_recursive_schemas_that_are_merged_come_to_an_end():
    def tree(name: str) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"child": {"$ref": f"#/$defs/{name}"}, name: {"type": "integer"}},
        }

    schema = {
        "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
        "not": {"required": ["x"]},
        "$defs": {"a": tree("a"), "b": tree("b")},
    }
    other = said(schema)
    for value, is_valid in (({"child": {"a": 1}}, True), ({"child": {"child": {"b": "x"}}}, False)):
        assert judge(schema, value) == judge(other, value) == (is_valid, is_valid)


def test_combinations_are_bounded():
    parts = [{"oneOf": [{"required": [f"{c}{i}"]} for c in "abc"]} for i in range(30)]
    with pytest.raises(NotExact, match="combinations"):
        said({"type": "object", "allOf": parts})


@pytest.mark.parametrize("wrong", [5, "a", None, [5], {"a": 5}, {"a": [{"b": None}]}, True])
@pytest.mark.parametrize(
    "keyword",
    [
        *("$ref", "$id", "$anchor", "$defs", "$schema", "$dynamicRef", "allOf", "oneOf", "not", "if", "type"),
        *("properties", "required", "dependencies", "dependentRequired", "propertyNames", "contains", "enum"),
        *("uniqueItems", "minItems", "patternProperties", "unevaluatedProperties", "minProperties"),
    ],
)
def test_malformed_schemas_are_refused_or_passed_on(keyword, wrong):
    inner = {keyword: wrong, "not": {"required": ["a"]}, "uniqueItems": True, "maxItems": 1}
    for schema in (inner, {"type": "object", "properties": {"p": inner}}, {"allOf": [inner, {"$ref": "#x"}]}):
        for is_lenient in (False, True):
            with contextlib.suppress(InvalidRequest):
                prepare_schema(schema, "f", "compact", is_lenient)
