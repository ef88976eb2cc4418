"""Arguments of functions whose schema has alternatives for all of them together."""

from __future__ import annotations

import pytest

from corral.chat.parameter import forms_of, properties_of, required_of, rule_of_whole
from corral.chat.tool import Tool
from corral.grammar.json_schema import flatten_root, prepare_schema

SHIP = {
    "type": "object",
    "properties": {
        "mode": {"enum": ["air", "sea"]},
        "port": {"type": "string"},
        "days": {"$ref": "#/$defs/days"},
    },
    "required": ["mode"],
    "if": {"properties": {"mode": {"const": "sea"}}},
    "then": {"required": ["port"]},
    "else": {"properties": {"port": False}},
    "$defs": {"days": {"type": "integer", "minimum": 1}},
}


def tool(schema: dict) -> Tool:
    return Tool("ship", prepare_schema(schema, "tools", "compact"), {})


def test_a_function_has_one_form_for_each_alternative():
    sea, air = forms_of(tool(SHIP))
    assert required_of(sea) == ["mode", "port"]
    assert required_of(air) == ["mode"]
    assert set(properties_of(sea)) == {"mode", "port", "days"}
    assert set(properties_of(air)) == {"mode", "days"}
    assert properties_of(air)["mode"]["enum"] == ["air"]


def test_the_arguments_of_all_forms_are_known():
    properties = properties_of(tool(SHIP))
    assert [part["enum"] for part in properties["mode"]["anyOf"]] == [["sea"], ["air"]]
    assert properties["days"]["minimum"] == 1
    assert set(properties) == {"mode", "port", "days"}


def test_one_form_is_the_function_itself():
    plain = tool({"type": "object", "properties": {"a": {}, "b": False}, "required": ["a"]})
    (form,) = forms_of(plain)
    assert form.parameters["required"] == required_of(plain) == ["a"]
    assert set(properties_of(plain)) == {"a"}


PAIR = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("rules", "forms"),
    [
        ({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, [("ab", "a"), ("ab", "b")]),
        ({"minProperties": 1}, [("ab", "a"), ("ab", "b")]),
        ({"maxProperties": 1}, [("a", ""), ("b", "")]),
        ({"minProperties": 1, "maxProperties": 1}, [("a", "a"), ("b", "b")]),
        ({"required": ["a"], "maxProperties": 1}, [("a", "a")]),
        ({"required": ["a"], "minProperties": 1}, [("ab", "a")]),
        ({"required": ["a"], "allOf": [{"properties": {"a": {"minimum": 5}}}]}, [("ab", "a")]),
    ],
)
def test_rules_about_several_arguments_become_forms(rules, forms):
    flat = Tool("f", flatten_root(tool({**PAIR, **rules}).parameters), {})
    assert rule_of_whole(flat) == ""
    found = forms_of(flat)
    assert [("".join(properties_of(f)), "".join(f.parameters.get("required", ()))) for f in found] == forms


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        (
            {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1},
            "minProperties",
        ),
        ({**PAIR, "required": ["z"]}, "required"),
        ({"type": "object"}, ""),
        (PAIR, ""),
    ],
)
def test_a_rule_that_no_form_expresses_is_named(schema, keyword):
    assert rule_of_whole(tool(schema)) == keyword


KEYWORDS = (
    "minProperties",
    "maxProperties",
    "required",
    "properties",
    "anyOf",
    "allOf",
    "oneOf",
    "$ref",
    "type",
)


@pytest.mark.parametrize("keyword", KEYWORDS)
@pytest.mark.parametrize("value", [None, "x", 1.5, [], {}, [1], {"a": 1}, [None], [[]], 10**30], ids=repr)
def test_what_is_malformed_is_left_to_the_engine(keyword, value):
    schema = {"type": "object", "properties": {"a": {}, "b": {}}, keyword: value}
    function = Tool("f", flatten_root(schema), {})
    rule_of_whole(function)
    assert forms_of(function)[0].parameters.get(keyword) == value
