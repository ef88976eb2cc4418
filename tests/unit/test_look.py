"""Patterns beyond a grammar: what is left of them allows more, never less, and only where that is right."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.errors import InvalidRequest
from corral.grammar.json_schema import plan_schema
from corral.grammar.rewrite.look import is_irregular, widen_pattern

LOOK = {"type": "string", "pattern": "^(?!a)[ab]+$"}


@pytest.mark.parametrize(
    ("pattern", "wider"),
    [
        ("^(?!foo)[a-z]+$", "^[a-z]+$"),
        (r"^(?=.*\d)(?=.*([A-Z]))\w{8,}$", r"^\w{8,}$"),
        (r"\bx\b", "x"),
        ("(?<!a(b))c", "c"),
        (r"(a)\1", ""),
        ("(?=a)*b", ""),
    ],
)
def test_what_is_left(pattern, wider):
    assert is_irregular(pattern)
    assert widen_pattern(pattern) == wider
    assert not is_irregular(wider)


@pytest.mark.parametrize("pattern", ["[(?=]a", r"\(?=a", r"\\b", "(?:a)(?<name>b)", "a{2}"])
def test_patterns_that_only_look_like_it(pattern):
    assert not is_irregular(pattern)


_PIECE = st.sampled_from(
    ["a", "b", ".", "[ab]", "(?=a)", "(?!b)", "(?<=a)", "(?<!b)", r"\b", "(?:a|b)", "^", "$"]
)


@given(st.lists(_PIECE, max_size=6), st.text("ab ", max_size=6))
def test_it_allows_what_the_whole_pattern_allows(pieces, text):
    pattern = "".join(pieces)
    if re.search(pattern, text):
        assert re.search(widen_pattern(pattern), text)


def test_the_whole_pattern_is_checked():
    plan = plan_schema({"type": "array", "items": LOOK}, "json_schema", "compact")
    assert plan.grammar["items"]["pattern"] == "^[ab]+$"
    assert plan.check is not None


@pytest.mark.parametrize(
    "schema", [{"oneOf": [LOOK, {"type": "string", "pattern": "^(?!b)"}]}, {**LOOK, "pattern": "(?!"}]
)
def test_where_less_would_be_allowed_it_is_refused(schema):
    with pytest.raises(InvalidRequest, match="pattern"):
        plan_schema(schema, "json_schema", "compact")
