"""Messages, schemas, guards and chat formats, without a model."""

from __future__ import annotations

import json

import pytest

from corral.chat.chat_format import ChatFormat
from corral.chat.guard import Guard
from corral.chat.jinja_template import ChatTemplate
from corral.chat.message import parse_messages, parse_tools
from corral.chat.prompt import Chat
from corral.chat.reasoning import ReasoningFormat
from corral.chat.tool import ToolChoice
from corral.core.errors import InvalidRequest
from corral.grammar.json_schema import MAX_DEPTH, MAX_PROPERTIES, prepare_schema
from tests.tools.family import TOOLS, load


def test_messages_take_what_a_model_can_still_answer():
    messages = parse_messages(
        [
            {"role": "developer", "content": None, "colour": "blue"},
            {"role": "assistant", "function_call": {"name": "f", "arguments": "not json"}},
            {"role": "function", "name": "f", "content": "r"},
            {"role": "assistant", "content": None, "tool_calls": [{"id": 7, "function": {"name": "g"}}]},
            {"role": "tool", "tool_call_id": "7", "content": [{"type": "text", "text": "s"}]},
        ]
    )
    assert [m["role"] for m in messages] == ["system", "assistant", "tool", "assistant", "tool"]
    assert messages[0] == {"role": "system", "content": "", "colour": "blue"}
    assert messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": "not json"}
    assert messages[3]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert messages[4]["name"] == "g"


def test_thoughts_of_earlier_turns_reach_templates_under_every_name():
    (message,) = parse_messages([{"role": "assistant", "content": "a", "reasoning": "why"}])
    assert message["reasoning_content"] == message["thinking"] == "why"


@pytest.mark.parametrize(
    ("choice", "expected", "names"),
    [
        (None, ToolChoice.AUTO, ("get_weather", "find_files")),
        ("none", ToolChoice.NONE, ("get_weather", "find_files")),
        ("required", ToolChoice.REQUIRED, ("get_weather", "find_files")),
        ({"type": "function", "function": {"name": "find_files"}}, ToolChoice.REQUIRED, ("find_files",)),
    ],
)
def test_tool_choice(choice, expected, names):
    use = parse_tools(TOOLS, choice, parallel=True)
    assert (use.choice, use.names) == (expected, names)
    assert use.is_parallel == (not isinstance(choice, dict))
    assert [tool.name for tool in use.described] == ["get_weather", "find_files"]


@pytest.mark.parametrize(
    "function",
    [
        {"name": "f", "description": "d", "parameters": {}, "strict": True},
        {"parameters": {}, "description": "d", "name": "f"},
        {"name": "f"},
    ],
)
def test_templates_see_a_function_s_name_and_description_first(function):
    (tool,) = parse_tools([{"type": "function", "function": function}], None, parallel=True).tools
    shown = tool.definition["function"]
    assert list(shown)[:3] == ["name", "description", "parameters"]
    assert shown == {"description": "", "parameters": {}, **function}


def test_schemas_are_closed_where_they_leave_it_open():
    schema = {
        "type": "object",
        "properties": {
            "a": {"$ref": "#/$defs/a"},
            "b": {"type": "object", "properties": {}, "additionalProperties": True},
            "c": {"type": "object", "properties": {"x": {}}, "required": ["y"]},
            "d": {"type": "object"},
        },
        "$defs": {"a": {"type": "object", "properties": {"z": {"type": "integer"}}}},
    }
    ready = prepare_schema(schema, "f", "spaced")
    assert ready["additionalProperties"] is False
    assert ready["$defs"]["a"]["additionalProperties"] is False
    assert ready["properties"]["b"]["additionalProperties"] is True
    assert "additionalProperties" not in ready["properties"]["c"]
    assert "additionalProperties" not in ready["properties"]["d"]
    assert "additionalProperties" not in schema
    inherited = prepare_schema(
        {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, "f", "spaced"
    )
    assert "additionalProperties" not in json.dumps(inherited)


def test_a_client_cannot_loosen_how_its_schema_is_followed():
    ready = prepare_schema({"x-guidance": {"lenient": True}, "type": "string"}, "f", "spaced")
    assert "lenient" not in ready["x-guidance"]


def deep(n: int) -> dict:
    schema: dict = {"type": "integer"}
    for _ in range(n):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        123,
        None,
        "x",
        [],
        deep(MAX_DEPTH),
        {"enum": list(range(30_000))},
        {"properties": {str(i): {} for i in range(MAX_PROPERTIES + 1)}},
    ],
    ids=lambda s: str(s)[:20],
)
def test_schemas_that_are_none_or_too_much_are_refused(schema):
    with pytest.raises(InvalidRequest) as caught:
        prepare_schema(schema, "response_format", "spaced")
    assert caught.value.details["param"] == "response_format"
    prepare_schema(deep(MAX_DEPTH - 2), "f", "spaced")


@pytest.mark.parametrize("text", ["plain", "a<|im_end|>b", "<|im_start|><|im_end|>", "\ue0c0 \ue0c0x", ""])
def test_hidden_texts_come_back_as_plain_ones(text):
    guard = Guard(["<|im_end|>", "<|im_start|>", "<|im"])
    hidden = guard.hide([{"content": text}])[0]["content"]
    assert "<|im" not in hidden
    pieces = guard.split(f"<|im_start|>{hidden}<|im_end|>")
    assert "".join(piece for piece, _ in pieces) == f"<|im_start|>{text}<|im_end|>"
    assert all("<|im" not in piece for piece, is_hidden in pieces[1:-1] if not is_hidden)


def prompt_of(family: str, **chat) -> tuple[str, bool]:
    messages = parse_messages(chat.pop("messages", [{"role": "user", "content": "hi"}]))
    prompt = ChatFormat(ChatTemplate(load(family))).render(Chat(messages, **chat))
    return prompt.text, prompt.is_thinking


def test_thinking_is_open_where_the_template_opens_it():
    text, is_thinking = prompt_of("qwq")
    assert text.endswith("<think>\n")
    assert is_thinking
    assert not prompt_of("qwen3")[1]
    text, is_thinking = prompt_of("qwq", enable_thinking=False)
    assert text.endswith("<think>\n</think>")
    assert not is_thinking


def test_a_continued_answer_closes_open_thoughts():
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "reasoning_content": "hm", "content": "He"},
    ]
    text, is_thinking = prompt_of("qwq", messages=messages, is_continued=True)
    assert text.endswith("<think>\nhm</think>He")
    assert not is_thinking


def binding_of(family: str, tools=None, choice=None, **chat):
    chat_format = ChatFormat(ChatTemplate(load(family)))
    full = Chat(
        parse_messages([{"role": "user", "content": "hi"}]), parse_tools(tools, choice, False), **chat
    )
    return chat_format.bind(full, chat_format.render(full), lambda _: None)


def test_only_what_must_be_is_bound_from_the_start():
    assert binding_of("qwen3") is None
    assert binding_of("qwen3", TOOLS, "none") is None
    assert binding_of("qwen3", TOOLS).trigger == "<tool_call>"
    assert binding_of("qwen3", TOOLS, "required").trigger == ""
    assert binding_of("llama3.1", TOOLS).is_trigger_first
    assert binding_of("smollm2", TOOLS).trigger == ""
    assert binding_of("qwen3", TOOLS, schema={"type": "integer"}).trigger == ""
    assert binding_of("qwen3", schema={"type": "integer"}).grammar.startswith('start: ("<think>"')
    no_thoughts = binding_of("qwen3", schema={"type": "integer"}, reasoning=ReasoningFormat.NONE)
    assert no_thoughts.grammar.startswith("start: %json")
