"""What is done to JSON Schemas before the engine sees them, without llguidance."""

from __future__ import annotations

import re
from datetime import date, timedelta
from typing import Any

import pytest

from corral.core.errors import InvalidRequest
from corral.grammar.json_schema import plan_schema, prepare_schema
from corral.grammar.schema import all_parts, parts_of, resolve
from corral.grammar.schema_rule import are_apart, repair


def tagged(*values: object, **more: object) -> dict:
    return {"type": "object", "properties": {"t": {"enum": list(values)}}, "required": ["t"], **more}


@pytest.mark.parametrize(
    ("branches", "expected"),
    [
        ([{"type": "integer"}, {"type": "string"}], True),
        ([{"type": "integer"}, {"type": "number"}], False),
        ([{"type": ["string", "null"]}, {"type": "null"}], False),
        ([tagged("a"), tagged("b", "c")], True),
        ([tagged("a", "b"), tagged("b", "c")], False),
        ([tagged(1), tagged(True)], True),
        ([tagged(1), tagged(1.0)], False),
        ([tagged([1]), tagged([2])], False),
        ([tagged("a"), tagged("b", required=[])], False),
        ([{"$ref": "#/$defs/x"}, tagged("b")], True),
        ([{"$ref": "#/$defs/nowhere"}, tagged("b")], False),
        ([{}, {"type": "string"}], False),
        ([{"type": "string"}], False),
        ("text", False),
    ],
)
def test_when_branches_are_apart(branches, expected):
    assert are_apart(branches, {"$defs": {"x": tagged("a")}}) is expected


def test_dates_are_those_of_the_calendar():
    pattern = re.compile(repair({"type": "string", "format": "date"}, {})["pattern"])
    day = date(1, 1, 1)
    while day < date(2500, 1, 1):
        assert pattern.match(day.isoformat()), day
        day += timedelta(days=1 if day.month == 2 else 5)
    for year in (1, 4, 100, 400, 1900, 2000, 2023, 2024, 9996, 9999):
        is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        assert bool(pattern.match(f"{year:04}-02-29")) is is_leap
        for wrong in ("02-30", "04-31", "13-01", "00-10", "10-00", "10-32"):
            assert not pattern.match(f"{year:04}-{wrong}")
    assert not pattern.match("0000-01-01")


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"minimum": 2**53 + 1}, "minimum"),
        ({"enum": [1, {"a": [-(2**60)]}]}, "enum"),
        ({"pattern": "[a-z&&[^b]]"}, "pattern"),
        ({"format": "date", "pattern": "x"}, "format"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, "exclusiveMinimum"),
        (
            {"minProperties": 3, "required": ["a"], "properties": {"a": {}}, "additionalProperties": {}},
            "minProperties",
        ),
        ({"properties": {"a": {"const": "\x01"}}, "additionalProperties": True}, "const"),
    ],
)
def test_what_would_not_be_followed_is_refused_with_its_place(schema, keyword):
    for value, pointer in ((schema, "#"), ({"items": schema}, "#/items")):
        with pytest.raises(InvalidRequest) as caught:
            prepare_schema(value, "f", "spaced")
        assert f"keyword '{keyword}' at {pointer}" in caught.value.message
        prepare_schema(value, "f", "spaced", is_lenient=True)


@pytest.mark.parametrize(
    "schema",
    [
        {"maximum": 2**53},
        {"pattern": "^a--b$"},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        {"type": "integer", "exclusiveMinimum": 0, "maximum": 0.5},
        {"properties": {"a": {"const": "\x01"}}, "required": ["a"]},
        {"minProperties": 2, "properties": {"a": {}, "b": {}}, "additionalProperties": False},
    ],
)
def test_what_is_followed_is_not_refused(schema):
    prepare_schema(schema, "f", "spaced")


def test_properties_with_too_many_combinations_are_counted_by_a_check():
    names = {name: {"type": "boolean"} for name in "abcdefghijkl"}
    schema = {"type": "object", "properties": names, "minProperties": 4, "maxProperties": 6}
    plan = plan_schema(schema, "f", "spaced")
    assert plan.check is not None
    assert not {"minProperties", "maxProperties"} & plan.grammar.keys()


def test_objects_that_are_put_together_from_parts_stay_open():
    base = {"properties": {"b": {}}, "required": ["b"]}
    for schema in (
        {"properties": {"a": {}}, "anyOf": [base]},
        {"$ref": "#/$defs/x", "properties": {"a": {}}, "$defs": {"x": base}},
        {"allOf": [base, {"properties": {"a": {}}}]},
    ):
        ready = prepare_schema(schema, "f", "spaced")
        assert all("additionalProperties" not in part for _, part in all_parts(ready))


def test_all_of_one_is_that_one():
    part = {"allOf": [{"$ref": "#/$defs/x"}], "description": "d"}
    assert repair(part, {}) == {"description": "d", "$ref": "#/$defs/x"}
    schema = {"properties": {"a": part}, "$defs": {"x": {"properties": {"b": {}}}}}
    assert prepare_schema(schema, "f", "spaced")["$defs"]["x"]["additionalProperties"] is False
    both = {"allOf": [{"minimum": 1}], "minimum": 2}
    assert repair(both, {}) == {"minimum": 2, "allOf": [{"minimum": 1}]}


def test_pointers_and_references():
    schema: dict[str, Any] = {
        "$defs": {"a/b~c": {"type": "null"}},
        "items": [{}, {"$ref": "#/$defs/a~1b~0c"}],
    }
    assert [step for step, _ in parts_of(schema)] == ["$defs/a~1b~0c", "items/0", "items/1"]
    assert resolve(schema["items"][1], schema) == {"type": "null"}
    assert resolve({"$ref": "#/nowhere"}, schema) == {}
    assert resolve({"$ref": "#/$defs/x"}, {"$defs": {"x": {"$ref": "#/$defs/x"}}}) == {"$ref": "#/$defs/x"}
