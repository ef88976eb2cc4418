"""Laws of the Responses API: the model is asked the same as by a chat, and a stream joined is the answer."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from corral.api.responses.output import Output
from corral.api.responses.tool import ToolTable, parse_tools
from corral.api.shared.warnings import Warnings
from corral.chat.event import CallArguments, CallBroken, CallStarted, Content, Diagnosis, Reasoning
from tests.contract.inline import Server
from tests.contract.messages_client import tasks
from tests.contract.responses_client import both, plain, send, text_of
from tests.contract.scripted import ScriptedServer
from tests.contract.wire import json_values
from tests.unit.fake import FakeBackend

FUNCTION: dict[str, Any] = {
    "name": "go",
    "description": "Go.",
    "parameters": {"type": "object", "properties": {}},
}
TOOL: dict[str, Any] = {"type": "function", **FUNCTION}
CUSTOM: dict[str, Any] = {"type": "custom", "name": "write", "description": "Write."}

texts = st.text("ab \n<>é", min_size=1, max_size=12).filter(str.strip)
inputs = st.dictionaries(st.text("xyz", min_size=1, max_size=3), json_values, max_size=3)


def said(role: str, text: str) -> st.SearchStrategy[dict]:
    """A message in one of the ways to write it."""
    kind = "output_text" if role == "assistant" else "input_text"
    typed = {"role": role, "content": [{"type": kind, "text": text}]}
    return st.sampled_from([{"role": role, "content": text}, typed, {"type": "message", **typed}])


@st.composite
def conversations(draw):
    """The same conversation for both APIs: items, and messages."""
    items: list[dict] = []
    chat: list[dict] = []
    for turn in range(draw(st.integers(1, 3))):
        question = draw(texts)
        items.append(draw(said("user", question)))
        chat.append({"role": "user", "content": question})
        if draw(st.booleans()):
            id, arguments, result = f"c{turn}", json.dumps(draw(inputs), ensure_ascii=False), draw(texts)
            answer = draw(texts)
            items += [
                draw(said("assistant", answer)),
                {"type": "function_call", "call_id": id, "name": "go", "arguments": arguments},
                {"type": "function_call_output", "call_id": id, "output": result},
            ]
            function = {"name": "go", "arguments": arguments}
            calls = [{"id": id, "type": "function", "function": function}]
            chat += [
                {"role": "assistant", "content": answer, "tool_calls": calls},
                {"role": "tool", "tool_call_id": id, "content": result},
            ]
        if draw(st.booleans()):
            answer = draw(texts)
            items += [draw(said("assistant", answer)), {"role": "user", "content": "more"}]
            chat += [{"role": "assistant", "content": answer}, {"role": "user", "content": "more"}]
    return draw(st.none() | texts), items, chat


@given(conversation=conversations(), seed=st.integers(0, 1000), has_tools=st.booleans())
async def test_the_same_conversation_gets_the_same_answer_from_both_apis(conversation, seed, has_tools):
    instructions, items, chat = conversation
    server = Server(FakeBackend(n_ctx=4096))
    options = {"seed": seed, "temperature": 0.5}
    tools = {"tools": [TOOL], "tool_choice": "none"} if has_tools else {}
    functions = {**tools, "tools": [{"type": "function", "function": FUNCTION}]} if has_tools else {}
    answer = await both(
        server, input=items, instructions=instructions, max_output_tokens=16, **tools, **options
    )
    system = [{"role": "system", "content": instructions}] if instructions else []
    body = {"messages": [*system, *chat], "max_tokens": 16, **functions, **options}
    response = await server.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    first, _, second = tasks(server)
    assert first.prompt == second.prompt
    assert text_of(answer) == (response.json()["choices"][0]["message"]["content"] or "")
    usage = response.json()["usage"]
    assert answer["usage"]["input_tokens"] == usage["prompt_tokens"] == len(first.prompt)
    assert answer["usage"]["output_tokens"] == usage["completion_tokens"]


@given(conversation=conversations(), seed=st.integers(0, 1000))
async def test_what_the_server_keeps_need_not_be_sent_again(conversation, seed):
    """Continuing a stored response is the same as sending everything, and so is a conversation."""
    instructions, items, _ = conversation
    server = Server(FakeBackend(n_ctx=4096))
    options = {"seed": seed, "max_output_tokens": 8, "instructions": instructions}
    first = await send(server, input=items, **options)
    await send(server, input="more", previous_response_id=first["id"], **options)
    await send(server, input=[*items, *first["output"], {"role": "user", "content": "more"}], **options)
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    await send(server, input=[*items, *references, {"role": "user", "content": "more"}], **options)
    created = await server.http.post("/v1/conversations", json={"items": items})
    known = {"conversation": created.json()["id"]}
    await send(server, input=[], **options, **known)
    await send(server, input="more", **options, **known)
    prompts = [task.prompt for task in tasks(server)]
    assert prompts[0] == prompts[4]
    assert prompts[1] == prompts[2] == prompts[3] == prompts[5]


BEGIN, END = "<tool_call>", "</tool_call>"


def call(name: str, arguments: Any) -> str:
    return f"{BEGIN}\n{json.dumps({'name': name, 'arguments': arguments})}\n{END}"


pieces = st.one_of(
    st.text("ab <{", max_size=6),
    st.sampled_from([BEGIN, END, '{"name": "go", "arguments": ', "<think>", "</think>", "}", "\n"]),
    inputs.map(lambda value: call("go", value)),
    st.text('a"\\\né😀', max_size=6).map(lambda text: call("write", {"input": text})),
    inputs.map(lambda value: call("go", value)[: -len(END) - 3]),
)


@given(parts=st.lists(pieces, max_size=5), n_forced=st.integers(0, 6), n=st.integers(1, 200))
async def test_a_stream_joined_is_the_whole_answer(parts, n_forced, n):
    """Also if calls are cut off, or are none; and what was kept of it gives the same stream again."""
    server = ScriptedServer()
    server.say("".join(parts), n_forced)
    body = {"tools": [TOOL, CUSTOM], "max_output_tokens": n, "seed": 1}
    answer = await both(server, **body)
    server.say("".join(parts))
    again = await send(server, **body)
    assert plain(again) | {"usage": {}} == plain(answer) | {"usage": {}}, (
        "what is a call does not depend on how the text was cut"
    )


class _Events:
    """A parser that has read already."""

    def __init__(self, events) -> None:
        self._events = events

    def feed(self, _) -> list:
        return self._events

    def finish(self) -> list:
        return []


def test_items_are_closed_in_order_whatever_comes():
    parser: Any = _Events(
        [
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
            CallStarted(3, "4", "go"),
            CallArguments(3, '{"x'),
            CallBroken(3),
            Content("whole text of the call"),
            Reasoning("late"),
        ]
    )
    output = Output(parser, "resp_0", ToolTable(), seals=False)
    events = [*output.feed(""), *output.finish(is_whole=True)]
    kinds = [(item["type"], item["status"]) for item in output.writer.items]
    assert kinds == [
        ("reasoning", "completed"),
        ("message", "completed"),
        ("function_call", "completed"),
        ("function_call", "completed"),
        ("message", "completed"),
        ("function_call", "incomplete"),
        ("reasoning", "incomplete"),
    ]
    assert [item.get("arguments") for item in output.writer.items[2:4]] == ["{}", "{}"]
    assert output.writer.items[4]["content"][0]["text"] == "bc"
    assert output.writer.items[5]["arguments"] == '{"x'
    assert (output.is_cut, len(output.warnings)) == (True, 1)
    n_open = 0
    for event in events:
        n_open += {"response.output_item.added": 1, "response.output_item.done": -1}.get(event["type"], 0)
        assert n_open in (0, 1)


@given(text=st.text(max_size=20), data=st.data())
def test_all_of_a_custom_tools_input_is_passed_on_however_it_was_cut(text, data):
    whole = json.dumps({"input": text}, ensure_ascii=data.draw(st.booleans()))
    events: list[Any] = [CallStarted(0, "1", "write")]
    while whole:
        n = data.draw(st.integers(1, len(whole)))
        events.append(CallArguments(0, whole[:n]))
        whole = whole[n:]
    parser: Any = _Events(events)
    output = Output(parser, "resp_0", parse_tools([CUSTOM], Warnings()), seals=False)
    output.feed("")
    output.finish(is_whole=True)
    (item,) = output.writer.items
    assert (item["type"], item["input"]) == ("custom_tool_call", text)
