"""Arguments between tags become JSON of the type that the function asks for."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.chat.event import CallArguments
from corral.chat.formats import qwen3_coder
from corral.chat.tool import Tool, ToolChoice, ToolUse
from tests.tools.answer import Message, events_of, read
from tests.tools.examples import examples

PARAMETERS = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "ruled": {"type": "string", "minLength": 2},
        "choice": {"type": "string", "enum": ["a", "1"]},
        "listed": {"enum": ["a", "1"]},
        "either": {"type": ["string", "null"]},
        "optional": {"anyOf": [{"$ref": "#/$defs/Name"}, {"type": "null"}]},
        "referred": {"$ref": "#/$defs/Name"},
        "whole": {"type": "integer"},
        "yes": {"type": "boolean"},
        "object": {"type": "object"},
        "any": {},
        "endless": {"$ref": "#/$defs/Loop"},
        "odd": {"type": {"no": "type"}, "anyOf": 5},
    },
    "$defs": {"Name": {"type": "string"}, "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}]}},
}
USE = ToolUse((Tool("f", PARAMETERS, {}),), ToolChoice.AUTO)


def argument(key: str, value: str, format=qwen3_coder.FORMAT, gap: str = "\n") -> Message:
    begin, end = format.markers
    return read(
        format,
        list(f"{begin}<function=f><parameter={key}>{gap}{value}{gap}</parameter></function>{end}"),
        USE,
    )


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("text", "Paris", "Paris"),
        ("text", "", ""),
        ("text", "42", "42"),
        ("text", "true", "true"),
        ("text", '"quoted"', '"quoted"'),
        ("text", '{"a": 1}', '{"a": 1}'),
        ("text", '  two\n\tlines \\n é🤗 "x"  ', '  two\n\tlines \\n é🤗 "x"  '),
        ("text", "\n<b>5 < 6</b>\n", "\n<b>5 < 6</b>\n"),
        ("ruled", '"quoted"', "quoted"),
        ("ruled", "42", "42"),
        ("ruled", "plain", "plain"),
        ("choice", "1", "1"),
        ("listed", "1", "1"),
        ("either", "null", None),
        ("either", "42", "42"),
        ("either", '"42"', "42"),
        ("either", "plain text", "plain text"),
        ("optional", "42", "42"),
        ("optional", "null", None),
        ("referred", "42", "42"),
        ("whole", "42", 42),
        ("whole", " 42 ", 42),
        ("whole", "many", "many"),
        ("whole", "NaN", "NaN"),
        ("yes", "true", True),
        ("yes", "True", True),
        ("yes", "None", "None"),
        ("object", '{"a": [1, "</p>"]}', {"a": [1, "</p>"]}),
        ("object", '{"a": "</parameter></function>"}', {"a": "</parameter></function>"}),
        ("object", "{a: 1}", "{a: 1}"),
        ("ruled", '"</parameter>"', "</parameter>"),
        ("any", "[a](b)", "[a](b)"),
        ("unknown", "{open", "{open"),
        ("any", "42", 42),
        ("any", "True", "True"),
        ("endless", "42", 42),
        ("odd", "42", 42),
        ("unknown", "[1]", [1]),
    ],
)
def test_a_value_is_of_the_type_that_is_asked_for(key, written, value):
    assert argument(key, written) == Message(calls=[("f", {key: value})])
    assert argument(key, written, qwen3_coder.SEED_OSS, "") == Message(calls=[("f", {key: value})])


def test_an_object_without_end_is_no_call():
    message = argument("object", '{"a": ')
    assert (message.calls, message.n_diagnoses) == ([], 1)


@examples(60)
@given(st.text())
def test_any_text_is_passed_on_as_it_is(text):
    if "</parameter>" not in f"{text}</parameter>"[:-1]:
        assert argument("text", text).calls == [("f", {"text": text})]


def test_text_is_passed_on_while_it_comes():
    events = events_of(
        qwen3_coder.FORMAT, ['<function=f><parameter=text>say "', "hi", "\t</para", "meter"], USE
    )
    written = "".join(event.text for event in events if isinstance(event, CallArguments))
    assert written == '{"text": "say \\"hi\\t</parameter"'


def test_a_name_may_be_any_text():
    assert argument('"a\\', "1").calls == [("f", {'"a\\': 1})]


def test_arguments_are_written_in_the_order_they_come():
    pairs = {"text": "x", "whole": 1, "any": None}
    text = "".join(f"<parameter={k}>{v if v == 'x' else json.dumps(v)}</parameter>" for k, v in pairs.items())
    (call,) = read(qwen3_coder.FORMAT, [f"<function=f>{text}</function>"], USE).calls
    assert list(call[1].items()) == list(pairs.items())
