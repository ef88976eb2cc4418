"""What becomes of JSON Schema keywords and formats, tried on real llguidance."""

from __future__ import annotations

import contextlib
import json
import re
from itertools import combinations
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

from corral.core.errors import InvalidRequest
from corral.generate.constraint import grammar_or_schema
from corral.grammar.check import Checker
from corral.grammar.json_schema import WHITESPACE
from corral.llama.constraint import Compiler
from corral.llama.model import Model
from tests.tools.schema_keywords import ANNOTATION, CHECKED, EXACT, FORMATS, KEYWORDS, LIMITED, REFUSED

LAYOUTS: dict[str, Any] = {
    "compact": {"separators": (",", ":")},
    "spaced": {"separators": (", ", ": ")},
    "flexible": {"indent": 2},
}
BIG = 2**53 + 1
TAGGED: dict[str, Any] = {
    "properties": {"a": {"type": "integer"}},
    "additionalProperties": {"type": "string"},
}
IN_X: dict[str, Any] = {
    "patternProperties": {"^x": {"type": "integer"}},
    "additionalProperties": {"type": "string"},
}

# Values that do not follow their schema, which llguidance by itself would let pass.
TRAPS: dict[str, Any] = {
    "a name with an escape": (TAGGED, r'{"\u0061":"x"}'),
    "a name with an escape, of a pattern": (IN_X, r'{"\u0078":"x"}'),
    "a free name twice": ({"additionalProperties": {"type": "integer"}, "minProperties": 2}, '{"b":1,"b":1}'),
    "an exclusive bound": ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, "0"),
    "an exclusive upper bound": ({"type": "number", "minimum": -0.5, "exclusiveMaximum": 0}, "-0"),
    "minimum above 2^53": ({"type": "integer", "minimum": BIG}, str(BIG - 1)),
    "maximum below -2^53": ({"type": "integer", "maximum": -BIG}, str(1 - BIG)),
    "const above 2^53": ({"const": BIG}, str(BIG - 1)),
    "29 February": ({"type": "string", "format": "date"}, '"2023-02-29"'),
    "29 February with a time": ({"type": "string", "format": "date-time"}, '"2023-02-29T00:00:00Z"'),
    "a class with &&": ({"type": "string", "pattern": "^[^a&&b]$"}, '"a"'),
    "prefixItems beside additionalItems": (
        {"type": "array", "prefixItems": [{"type": "string"}], "items": {}, "additionalItems": {}},
        "[1]",
    ),
    "additionalItems behind anyOf": (
        {"type": "array", "items": [{}], "anyOf": [{"minItems": 1}], "additionalItems": False},
        "[1,2]",
    ),
    "null follows both branches": (
        {
            "type": ["object", "null"],
            "oneOf": [{"properties": {"k": {"const": c}}, "required": ["k"]} for c in "ab"],
        },
        "null",
    ),
    "exclusiveMinimum of draft 4 behind anyOf": (
        {"type": "integer", "minimum": 5, "anyOf": [{"maximum": 9}], "exclusiveMinimum": True},
        "5",
    ),
}


@pytest.fixture(scope="module")
def compiler(models):
    model = Model.open(str(models / "llama-bpe.gguf"), vocab_only=True)
    yield Compiler(model.vocab)
    model.close()


def of(*verdicts: str) -> pytest.MarkDecorator:
    rows = [row for row in KEYWORDS + FORMATS if row.verdict in verdicts]
    return pytest.mark.parametrize("row", rows, ids=lambda row: row.name)


def accepts(compiler: Compiler, schema: object, text: str, layout: Any = "compact") -> bool:
    """Whether the text can be generated under the schema, to its end."""
    vocab = compiler._vocab
    constraint = grammar_or_schema("", schema, layout)
    matcher = compiler.compile(constraint)
    if constraint.checks:
        checker = Checker(constraint.checks)
        if checker.feed(text.encode()) or checker.finish():
            return False
    for token in vocab.tokenize(text, False, False):
        if matcher.is_finished or not matcher.allowed()[token]:
            return False
        matcher.accept(token)
    return matcher.is_finished or any(matcher.allowed()[token] for token in vocab.eog_tokens)


def dump(value: object, layout: str) -> str:
    return json.dumps(value, ensure_ascii=False, **LAYOUTS[layout])


def test_all_layouts_are_tried():
    assert LAYOUTS.keys() == WHITESPACE.keys()


@of(EXACT, CHECKED, LIMITED)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_keyword_tells_values_apart(compiler, row, layout):
    assert accepts(compiler, row.schema, dump(row.good, layout), layout)
    assert not accepts(compiler, row.schema, dump(row.bad, layout), layout)


@of(REFUSED)
def test_a_refused_keyword_is_a_400_that_names_it(compiler, row):
    with pytest.raises(InvalidRequest, match=row.name.replace("$", r"\$")) as caught:
        accepts(compiler, row.schema, "")
    assert caught.value.status == 400


@of(LIMITED)
def test_a_limited_keyword_is_a_400_that_says_where_and_what_would_work(compiler, row):
    if row.refused is not None:  # formats allow less than they could
        with pytest.raises(InvalidRequest, match=rf"keyword '{re.escape(row.name)}' at #") as caught:
            accepts(compiler, row.refused, "")
        assert caught.value.status == 400


@of(CHECKED)
def test_a_checked_keyword_is_checked_where_no_grammar_can_say_it(compiler, row):
    constraint = grammar_or_schema("", row.refused, "compact")
    assert constraint.checks
    compiler.compile(constraint)


@of(ANNOTATION)
def test_an_annotation_allows_everything_else_that_the_schema_allows(compiler, row):
    assert accepts(compiler, row.schema, dump(row.good, "compact"))


@pytest.mark.parametrize(("schema", "text"), TRAPS.values(), ids=TRAPS)
def test_what_llguidance_would_let_pass_is_followed_or_refused(compiler, schema, text):
    with contextlib.suppress(InvalidRequest):
        assert not accepts(compiler, schema, text)


UNION: dict[str, Any] = {
    "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
    "$defs": {
        "cat": {
            "type": "object",
            "properties": {"kind": {"const": 1}, "lives": {"type": "integer"}},
            "required": ["kind"],
        },
        "dog": {"type": "object", "properties": {"kind": {"const": 2}}, "required": ["kind"]},
    },
}
BASE: dict[str, Any] = {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}
NAMED: dict[str, Any] = {"properties": {"n": {"minLength": 1}}, "required": ["n"]}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (UNION, {"kind": 1, "lives": 9}, {"kind": 2, "lives": 9}),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, 1, None),
        (
            {"properties": {"a": {"type": "integer"}}, "required": ["a"], "anyOf": [BASE]},
            {"a": 1, "b": 2},
            {"a": 1},
        ),
        (
            {"$ref": "#/$defs/x", "properties": {"a": {}}, "required": ["a"], "$defs": {"x": BASE}},
            {"a": 1, "b": 2},
            {"b": 2},
        ),
        ({"type": "array", "uniqueItems": False, "items": {"type": "integer"}}, [1, 1], ["a"]),
        ({"type": "string", "maxLength": 2.0}, "ab", "abc"),
        ({"type": "string", "format": "date"}, "2024-02-29", "2100-02-29"),
        ({"type": "string", "format": "date-time"}, "2000-02-29T23:59:59Z", "1900-02-29T23:59:59Z"),
        (True, {"any": [1]}, ...),
        ({"properties": {"c": {}}, "allOf": [{"maxProperties": 1}, {"required": ["a"]}]}, {"a": 1}, {"c": 1}),
        ({**BASE, "dependentRequired": {"b": ["c"]}}, {"b": 1, "c": 2}, {"b": 1}),
        (
            {"properties": {"a": {}, "b": {}}, "allOf": [{"properties": {"a": {"minimum": 2}}}]},
            *({"a": 2, "b": 1}, {"a": 1, "b": 1}),
        ),
        (
            {
                "properties": {"a": {}, "b": {}},
                "dependentSchemas": {"b": {"properties": {"a": {"const": 2}}}},
            },
            *({"a": 2, "b": 1}, {"a": 1, "b": 1}),
        ),
    ],
)
def test_schemas_that_llguidance_alone_would_refuse_or_mistake(compiler, schema, good, bad):
    assert accepts(compiler, schema, dump(good, "compact"))
    assert bad is ... or not accepts(compiler, schema, dump(bad, "compact"))


@pytest.mark.parametrize("required", [[], ["b"], ["a", "c"]])
@pytest.mark.parametrize(("least", "most"), [(0, 2), (0, 3), (1, 2), (2, 2), (2, 3), (1, 4), (3, 9)])
def test_known_properties_are_counted_whatever_may_be_left_out(compiler, required, least, most):
    names = {name: {"type": "boolean"} for name in "abcd"}
    counts = {"required": required, "minProperties": least, "maxProperties": most}
    schema = {"type": "object", "properties": names, "additionalProperties": False, **counts}
    validator = Draft202012Validator(schema)
    for n in range(len(names) + 1):
        for some in combinations(names, n):
            value = dict.fromkeys(some, True)
            assert accepts(compiler, schema, dump(value, "compact")) == validator.is_valid(value), value


@pytest.mark.parametrize("others", [True, False, {"type": "integer"}])
def test_an_object_without_any_properties(compiler, others):
    schema = {"properties": {"a": {}}, "additionalProperties": others, "maxProperties": 0}
    assert accepts(compiler, schema, "{}")
    assert not accepts(compiler, schema, '{"a":1}')


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"items": {"type": "string"}, "minItems": 2}, ["a", "b"], {"a": 1}),
        (NAMED, {"n": "a"}, "a"),
        (NAMED, {"n": "a"}, {"n": 1}),
        ({"$ref": "#/$defs/x", "$defs": {"x": NAMED}}, {"n": "a"}, 5),
        ({"type": ["object", "null"], "$ref": "#/$defs/x", "$defs": {"x": NAMED}}, None, 5),
        ({"items": [{"minLength": 1}], "$schema": "http://json-schema.org/draft-07/schema#"}, ["a"], [1]),
        ({"allOf": [NAMED, {"maxProperties": 3}]}, {"n": "a"}, 5),
        ({"type": ["string", "null"], "allOf": [{"minLength": 2}, {"maxLength": 3}]}, None, "a"),
        ({"anyOf": [NAMED, {"type": "null"}]}, None, 5),
        ({**NAMED, "anyOf": [{"required": ["n"]}, {"type": "null"}]}, None, 5),
        ({**NAMED, "anyOf": [{"required": ["n"]}, {"required": ["m"]}]}, {"n": "a"}, 5),
        ({"minimum": 3, "maxLength": 2}, "ab", True),
        ({"minimum": 3, "maxLength": 2}, 3, 2),
        ({"oneOf": [{"properties": {"k": {"const": c}}, "required": ["k"]} for c in "ab"]}, {"k": "b"}, 5),
        ({"type": ["array", "string"], "minItems": 1}, "", []),
    ],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_schema_without_a_type_means_the_one_of_its_keywords(compiler, schema, good, bad, layout):
    validator_for(schema, Draft202012Validator)(schema).validate(good)
    assert accepts(compiler, schema, dump(good, layout), layout)
    assert not accepts(compiler, schema, dump(bad, layout), layout)
