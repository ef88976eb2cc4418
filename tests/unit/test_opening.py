"""Where the arguments of calls begin in the text of every family, as its grammar says."""

from __future__ import annotations

from typing import Any

import pytest

from corral.chat.grammar import Grammar, json_value, seq
from corral.chat.opening import find_openings
from corral.chat.tool import Tool, ToolChoice, ToolUse
from corral.core.params import SchemaCheck
from corral.grammar.check import Checker
from corral.grammar.json_schema import plan_schema
from tests.tools.answer import BY_NAME, FAMILIES

TAGS: dict[str, Any] = {
    "type": "object",
    "properties": {"tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}},
    "required": ["tags"],
}
ANY: dict[str, Any] = {"type": "object", "properties": {"tags": {"type": "array"}}}
TAGGED = ("glm", "lfm2", "minimax", "qwen3-coder", "seed-oss")  # their arguments are no JSON objects


def checks_of(name: str, is_control: bool) -> tuple[SchemaCheck, ...]:
    """The checks of a tool `tag`, next to one that needs none."""
    plan = plan_schema(TAGS, "tools", "spaced")
    assert plan.check is not None
    format, texts = BY_NAME[name], {3 + i: marker for i, marker in enumerate(BY_NAME[name].markers)}
    tokens = {text: token for token, text in texts.items()}
    g = Grammar(tokens.get if is_control else lambda _: None)
    other = Tool("retag", plan_schema(ANY, "tools", "spaced").grammar, {})
    use = ToolUse((Tool("tag", plan.grammar, {}), other), ToolChoice.REQUIRED, is_parallel=True)
    lark = g.build(seq(format.lead(g), g.mark(*format.trigger), format.calls(g, use)))
    openings = find_openings(lark, plan.grammar, texts.__getitem__)
    made = plan.check
    return (
        SchemaCheck(
            field="tools", schema=made.schema, client=made.client, refusal=made.refusal, openings=openings
        ),
    )


@pytest.mark.parametrize("is_control", [True, False])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_arguments_of_calls_are_found(name, is_control):
    checks = checks_of(name, is_control)
    if BY_NAME[name].name in TAGGED:
        assert not checks[0].openings
        return
    assert checks[0].openings
    for tool, tags, is_valid in (
        ("tag", ["a", "b"], True),
        ("tag", ["a", "a"], False),
        ("retag", ["a", "a"], True),
    ):
        checker = Checker(checks)
        text = FAMILIES[name].calls([(tool, {"tags": tags})])
        assert (checker.feed(text.encode()) is None) == is_valid, text


def test_a_value_that_is_the_whole_answer_has_no_opening():
    lark = f"start: {json_value({'type': 'null'})}"
    assert find_openings(lark, {"type": "null"}, str) == ("",)
    assert find_openings(f'start: "a" | ("b" /[0-9]/)? {lark[7:]}', {"type": "null"}, str) == ("",)
    assert find_openings(f'start: r0 "x." <[7]> {lark[7:]}', {"type": "null"}, str) == (r"(?<![\w-])x\.7",)
    assert find_openings(lark, {"type": "string"}, str) == ()


def test_reasoning_is_not_checked():
    plan = plan_schema({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "f", "compact")
    made = plan.check
    assert made is not None
    parts = {"field": "f", "schema": made.schema, "client": made.client, "refusal": ""}
    for before, first in (("", ""), ("<think>", "<think>"), ("[T]", "[T]")):
        checker = Checker((SchemaCheck(**parts, before=before, after="</think>"),))
        assert checker.feed(f'{first}["a","a"]</think>\n\n["a",'.encode()) is None
        assert checker.feed(b'"a"]') is not None
    checker = Checker((SchemaCheck(**parts, before="<think>", after="</think>"),))
    assert checker.feed(b'["a","a"]') is not None
