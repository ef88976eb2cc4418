"""Arguments of functions whose schema has alternatives for all of them together."""

from __future__ import annotations

from corral.chat.parameter import forms_of, properties_of, required_of
from corral.chat.tool import Tool
from corral.grammar.json_schema import prepare_schema

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
