"""Laws of the Messages API: the model is asked the same as by a chat, and a stream joined is the answer."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json

from corral.api.anthropic.content import AnswerContent
from corral.api.anthropic.tool_input import ToolInput
from corral.chat.event import CallArguments, CallBroken, CallStarted, Content, Diagnosis, Reasoning
from tests.contract.inline import Server
from tests.contract.messages_client import accumulate, both, send, stream_events, tasks, without_id
from tests.contract.scripted import ScriptedServer
from tests.contract.wire import json_values
from tests.unit.fake import FakeBackend

TOOL = {"name": "go", "description": "Go.", "input_schema": {"type": "object", "properties": {}}}
FUNCTION = {"name": "go", "description": "Go.", "parameters": TOOL["input_schema"]}

texts = st.text("ab \n<>é", min_size=1, max_size=12).filter(str.strip)
inputs = st.dictionaries(st.text("xyz", min_size=1, max_size=3), json_values, max_size=3)


@st.composite
def conversations(draw):
    """The same conversation for both APIs."""
    messages: list[dict] = []
    chat: list[dict] = []
    if system := draw(st.lists(texts, max_size=2)):
        chat.append({"role": "system", "content": "\n".join(system)})
    for turn in range(draw(st.integers(1, 3))):
        question = draw(texts)
        messages.append({"role": "user", "content": draw(st.sampled_from([question, [text(question)]]))})
        chat.append({"role": "user", "content": question})
        if draw(st.booleans()):
            id, arguments, result, said = f"c{turn}", draw(inputs), draw(texts), draw(texts)
            call = {"type": "tool_use", "id": f"toolu_{id}", "name": "go", "input": arguments}
            messages += [
                {"role": "assistant", "content": [text(said), call]},
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": f"toolu_{id}", "content": result}],
                },
            ]
            function = {"name": "go", "arguments": json.dumps(arguments, ensure_ascii=False)}
            calls = [{"id": id, "type": "function", "function": function}]
            chat += [
                {"role": "assistant", "content": said, "tool_calls": calls},
                {"role": "tool", "tool_call_id": id, "content": result},
            ]
        if draw(st.booleans()):
            answer = draw(texts)
            messages.append({"role": "assistant", "content": [text(answer)]})
            chat.append({"role": "assistant", "content": answer})
            messages.append({"role": "user", "content": "more"})
            chat.append({"role": "user", "content": "more"})
    return [text(part) for part in system], messages, chat


def text(said: str) -> dict:
    return {"type": "text", "text": said}


@given(conversation=conversations(), seed=st.integers(0, 1000), has_tools=st.booleans())
async def test_the_same_conversation_gets_the_same_answer_from_both_apis(conversation, seed, has_tools):
    system, messages, chat = conversation
    server = Server(FakeBackend(n_ctx=4096))
    options = {"seed": seed, "max_tokens": 16, "temperature": 0.5}
    tools = {"tools": [TOOL], "tool_choice": {"type": "none"}} if has_tools else {}
    functions = (
        {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "none"} if has_tools else {}
    )
    answer = await both(server, system=system, messages=messages, **tools, **options)
    response = await server.http.post("/v1/chat/completions", json={"messages": chat, **functions, **options})
    assert response.status_code == 200, response.text
    first, _, second = tasks(server)
    assert first.prompt == second.prompt
    said = response.json()["choices"][0]["message"]["content"] or ""
    assert "".join(block["text"] for block in answer["content"]) == said
    usage = answer["usage"]
    n_prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert n_prompt == response.json()["usage"]["prompt_tokens"] == len(first.prompt)


BEGIN, END = "<tool_call>", "</tool_call>"
pieces = st.one_of(
    st.text("ab <{", max_size=6),
    st.sampled_from([BEGIN, END, '{"name": "go", "arguments": ', "<think>", "</think>", "}", "\n"]),
    inputs.map(lambda value: f'{BEGIN}\n{{"name": "go", "arguments": {json.dumps(value)}}}\n{END}'),
    inputs.map(lambda value: f"{BEGIN}{json.dumps({'name': 'go', 'arguments': value})[:-3]}"),
)


@given(parts=st.lists(pieces, max_size=5), n_forced=st.integers(0, 6), n=st.integers(1, 200))
async def test_a_stream_joined_is_the_whole_answer(parts, n_forced, n):
    """Also if calls are cut off, or are none."""
    server = ScriptedServer()
    server.say("".join(parts), n_forced)
    body = {"tools": [TOOL], "max_tokens": n, "seed": 1}
    answer = await both(server, **body)
    server.say("".join(parts))
    again = await send(server, **body)
    assert without_id(again) == without_id(answer), "what is a call does not depend on how the text was cut"


async def test_a_call_that_is_cut_off_stays_one_and_says_so():
    server = ScriptedServer()
    server.say('<tool_call>{"name": "go", "arguments": {"x": "long text"}}</tool_call>')
    answer = await both(server, tools=[TOOL], max_tokens=50)
    (block,) = answer["content"]
    assert (block["type"], block["name"]) == ("tool_use", "go")
    assert answer["stop_reason"] == "max_tokens"
    assert answer["warnings"]


async def test_what_never_was_a_call_is_text():
    server = ScriptedServer()
    server.say("<tool_call>[1, 2]</tool_call> so")
    answer = await both(server, tools=[TOOL])
    assert [block["type"] for block in answer["content"]] == ["text"]
    assert answer["content"][0]["text"] == "<tool_call>[1, 2]</tool_call> so"
    assert answer["stop_reason"] == "end_turn"


@given(value=inputs, data=st.data(), indent=st.sampled_from([None, 1]))
def test_all_of_an_input_is_passed_on_however_it_was_cut(value, data, indent):
    whole, tool_input, sent = json.dumps(value, indent=indent), ToolInput(), ""
    while whole[len(sent) :]:
        n = data.draw(st.integers(1, len(whole) - len(sent)))
        sent += tool_input.feed(whole[len(sent) : len(sent) + n])
    assert sent == whole
    assert tool_input.value() == value


@given(junk=st.text('{}[]",:\\ab1 ', max_size=30), cuts=st.lists(st.integers(0, 30)))
def test_only_the_beginning_of_json_is_passed_on(junk, cuts):
    edges = sorted({0, *(min(cut, len(junk)) for cut in cuts), len(junk)})
    tool_input = ToolInput()
    sent = "".join(tool_input.feed(junk[a:b]) for a, b in itertools.pairwise(edges))
    if sent.strip():
        assert isinstance(from_json(sent, allow_partial=True), dict)
    assert ToolInput().feed(junk) == sent, "it does not depend on the cuts"


class _Events:
    """A parser that has read already."""

    def __init__(self, events) -> None:
        self._events = events

    def feed(self, _) -> list:
        return self._events

    def finish(self) -> list:
        return []


def test_blocks_are_closed_in_order_whatever_comes():
    events = [
        Reasoning("r"),
        Content("a"),
        CallStarted(0, "1", "go"),
        CallStarted(1, "2", "go"),
        CallArguments(1, "{"),
        CallArguments(1, "}"),
        Content("b"),
        CallStarted(2, "3", "go"),
        CallBroken(2),
        Diagnosis("x"),
        Content("c"),
        Reasoning("late"),
    ]
    parser: Any = _Events(events)
    content = AnswerContent(parser)
    made = [*content.feed(""), *content.finish()]
    message = {"type": "message_start", "message": {"content": [], "stop_reason": None}}
    ends: list[dict] = [{"type": "message_delta", "delta": {}, "usage": {}}, {"type": "message_stop"}]
    joined = accumulate([message, {"type": "ping"}, *made, *ends])
    assert joined["content"] == content.blocks
    kinds = [block["type"] for block in content.blocks]
    assert kinds == ["thinking", "text", "tool_use", "tool_use", "text", "thinking"]
    assert content.blocks[4]["text"] == "bc"


@pytest.mark.parametrize("n_steps", [1, 40])
async def test_a_long_prompt_is_accompanied_by_pings(monkeypatch, n_steps):
    monkeypatch.setattr("corral.api.anthropic.render.PING_S", 0.0)
    server = ScriptedServer()
    server.say("ok")
    question = [{"role": "user", "content": "x" * 32 * n_steps}]
    events = await stream_events(server, messages=question)
    pings = [event for event in events if event["type"] == "ping"]
    assert len(pings) >= n_steps
    accumulate(events)
