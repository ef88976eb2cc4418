"""`POST /v1/messages` and its neighbours, field by field."""

from __future__ import annotations

import asyncio
import base64
import json
from functools import reduce
from typing import Any

import pytest

from corral.core.media_item import MediaKind
from corral.generate.error_field import find_name
from corral.grammar.json_schema import MAX_DEPTH
from tests.contract.inline import Server
from tests.contract.messages_client import HELLO, both, refuse, send, stream_events, tasks
from tests.contract.scripted import ScriptedServer
from tests.tools.pdf import pdf_of
from tests.tools.pictures import data_uri, png, solid
from tests.unit.fake import FakeBackend
from tests.unit.fake_projector import FakeProjector

COUNT = "/v1/messages/count_tokens"
VERSION = {"anthropic-version": "2023-06-01"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "The weather of a city.", "input_schema": SCHEMA}
EMPTY: dict[str, Any] = {}
DEEP: Any = reduce(lambda inner, _: {"type": "array", "items": inner}, range(MAX_DEPTH + 1), EMPTY)
TIME = {"name": "get_time", "input_schema": {"type": "object", "properties": {}}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'


@pytest.fixture
def server():
    return ScriptedServer()


async def test_the_answer_has_this_apis_shape(server):
    server.say("Hi there")
    answer = await both(server, model="mine")
    assert answer["id"].startswith("msg_")
    assert (answer["type"], answer["role"], answer["model"]) == ("message", "assistant", "mine")
    assert answer["content"] == [{"type": "text", "text": "Hi there"}]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)
    assert answer["usage"]["output_tokens"] == len("Hi there") + 1
    assert "warnings" not in answer
    assert (await send(server))["model"] == "fake.gguf"


@pytest.mark.parametrize(
    ("body", "reason", "sequence"),
    [
        ({"max_tokens": 3}, "max_tokens", None),
        ({"stop_sequences": ["there", "zzz"]}, "stop_sequence", "there"),
        ({"stop": "the"}, "stop_sequence", "the"),
        ({}, "end_turn", None),
    ],
)
async def test_stop_reasons(server, body, reason, sequence):
    server.say("Hi there")
    answer = await both(server, **body)
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, sequence)


async def test_a_full_context_is_named_as_such():
    server = ScriptedServer(n_ctx=128)
    server.say("a" * 500)
    assert (await both(server, max_tokens=400))["stop_reason"] == "model_context_window_exceeded"
    error = await refuse(server, messages=[{"role": "user", "content": "x" * 200}])
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith("prompt is too long: ")


async def test_usage_counts_what_was_read_from_the_cache_and_written_to_it(server):
    server.say("ok")
    first = (await send(server))["usage"]
    assert first["input_tokens"] == (await send(server, path=COUNT))["input_tokens"]
    assert first["cache_read_input_tokens"] == first["cache_creation_input_tokens"] == 0
    again = (await send(server))["usage"]
    assert 0 < again["cache_read_input_tokens"] == first["input_tokens"] - again["input_tokens"]
    block = {"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}
    for body in (
        {"cache_control": {"type": "ephemeral"}},
        {"messages": [{"role": "user", "content": [block]}]},
        {"system": [{**block, "text": "s"}]},
        {"tools": [{**TIME, "cache_control": {"type": "ephemeral"}}]},
    ):
        usage = (await both(server, **body))["usage"]
        assert usage["input_tokens"] == 0
        assert usage["cache_creation_input_tokens"] > 0


@pytest.mark.parametrize(("ttl", "n_5m", "n_1h"), [({}, 1, 0), ({"ttl": "5m"}, 1, 0), ({"ttl": "1h"}, 0, 1)])
async def test_usage_tells_for_how_long_it_was_written(server, ttl, n_5m, n_1h):
    server.say("ok")
    system = [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    block = {"type": "text", "text": "hello", "cache_control": {"type": "ephemeral", **ttl}}
    tools = [{**TIME, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    messages = [{"role": "user", "content": [block]}]
    usage = (await both(server, system=system, messages=messages, tools=tools))["usage"]
    n = usage["cache_creation_input_tokens"]
    assert usage["cache_creation"] == {
        "ephemeral_5m_input_tokens": n * n_5m,
        "ephemeral_1h_input_tokens": n * n_1h,
    }
    assert usage["service_tier"] == "standard"


async def test_usage_counts_tokens_of_reasoning(server):
    server.say("<think>\nhm\n</think>\n\nHi")
    usage = (await both(server, thinking={"type": "adaptive"}))["usage"]
    assert 0 < usage["output_tokens_details"]["thinking_tokens"] < usage["output_tokens"]
    server.say("Hi")
    assert (await both(server))["usage"]["output_tokens_details"] == {"thinking_tokens": 0}


async def test_a_conversation_becomes_the_same_prompt_as_in_a_chat(server):
    call = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Rome"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "sunny"}]}
    await send(
        server,
        system=[{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}],
        tools=[WEATHER],
        messages=[
            {"role": "user", "content": "weather?"},
            {"role": "assistant", "content": [{"type": "text", "text": "I look."}, call]},
            {"role": "user", "content": [result, {"type": "text", "text": "and now?"}]},
        ],
    )
    prompt = server.prompt
    function = {k: v for k, v in WEATHER.items() if k != "input_schema"}
    arguments = {"name": "get_weather", "arguments": {"city": "Rome"}}
    chat = {
        "messages": [
            {"role": "system", "content": "Be brief.\nBe kind."},
            {"role": "user", "content": "weather?"},
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [{"id": "1", "type": "function", "function": arguments}],
            },
            {"role": "tool", "tool_call_id": "1", "content": "sunny"},
            {"role": "user", "content": "and now?"},
        ],
        "tools": [{"type": "function", "function": {**function, "parameters": SCHEMA}}],
        "max_tokens": 1,
    }
    response = await server.http.post("/v1/chat/completions", json=chat)
    assert response.status_code == 200, response.text
    assert server.prompt == prompt
    assert "sunny" in prompt


async def test_results_of_tools_say_that_they_are_errors(server):
    def result(**more):
        return [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", **more}]}]

    await send(server, messages=result(content="gone", is_error=True))
    assert "Error:\ngone" in server.prompt
    await send(server, messages=result(content="gone"))
    assert "Error" not in server.prompt
    await send(server, messages=result())


async def test_the_last_message_may_be_the_beginning_of_the_answer(server):
    server.say(" blue.")
    prefill = {"role": "assistant", "content": "The sky is"}
    answer = await both(server, messages=[*HELLO, prefill])
    assert server.prompt.endswith("The sky is")
    assert answer["content"] == [{"type": "text", "text": " blue."}]


async def test_a_call_of_a_tool(server):
    server.say("Let me look. " + CALL)
    answer = await both(server, tools=[WEATHER])
    text, call = answer["content"]
    assert text == {"type": "text", "text": "Let me look."}
    assert call["id"].startswith("toolu_")
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "get_weather", {"city": "Rome"})
    assert answer["stop_reason"] == "tool_use"


async def test_several_calls_have_blocks_of_their_own(server):
    server.say(f"{CALL}\n{CALL.replace('Rome', 'Oslo')}")
    answer = await both(server, tools=[WEATHER])
    assert [block["input"] for block in answer["content"]] == [{"city": "Rome"}, {"city": "Oslo"}]


def grammar_of(server: Server) -> str:
    constraint = tasks(server)[-1].params.constraint
    return constraint.text if constraint is not None else ""


async def test_every_form_of_tool_choice(server):
    server.say("ok")
    tools = [WEATHER, TIME]
    await send(server, tools=tools, tool_choice={"type": "auto"})
    constraint = tasks(server)[-1].params.constraint
    assert constraint.trigger
    await send(server, tools=tools, tool_choice={"type": "any"})
    assert not tasks(server)[-1].params.constraint.trigger
    assert "get_weather" in grammar_of(server)
    assert "get_time" in grammar_of(server)
    await send(server, tools=tools, tool_choice={"type": "tool", "name": "get_time"})
    assert "get_weather" not in grammar_of(server)
    assert "get_time" in grammar_of(server)
    await send(server, tools=tools, tool_choice={"type": "none"})
    assert grammar_of(server) == ""
    assert "get_time" not in server.prompt


async def test_parallel_calls_are_allowed_unless_they_are_not(server):
    grammars = []
    for is_off in (False, True):
        choice = {"type": "any", "disable_parallel_tool_use": is_off}
        await send(server, tools=[TIME], tool_choice=choice)
        grammars.append(grammar_of(server))
    assert len(grammars[0]) > len(grammars[1])


async def test_tools_that_only_others_can_run_are_left_out(server):
    hosted = {"type": "web_search_20250305", "name": "web_search"}
    answer = await both(server, tools=[hosted, WEATHER])
    (warning,) = answer["warnings"]
    assert "'tools[0]'" in warning
    assert "web_search" not in server.prompt
    choice = {"type": "tool", "name": "web_search"}
    assert (await refuse(server, tools=[hosted, WEATHER], tool_choice=choice))["param"] == "tool_choice"
    assert (await refuse(server, tools=[hosted], tool_choice={"type": "any"}))["param"] == "tool_choice"


async def test_reasoning_is_a_block_before_the_answer(server):
    server.say("<think>\nwell\n</think>\n\nYes.")
    answer = await both(server)
    thinking, text = answer["content"]
    assert (thinking["type"], thinking["thinking"]) == ("thinking", "well")
    assert thinking["signature"]
    assert text == {"type": "text", "text": "Yes."}
    omitted = await both(server, thinking={"type": "adaptive", "display": "omitted"})
    assert omitted["content"][0]["thinking"] == ""
    assert omitted["content"][1] == text


async def test_reasoning_can_be_turned_off(server):
    await send(server, thinking={"type": "disabled"})
    assert server.prompt.endswith("<think>\n\n</think>\n\n")
    await send(server, thinking={"type": "enabled", "budget_tokens": 2048})
    assert not server.prompt.endswith("</think>\n\n")


@pytest.mark.parametrize("n_forced", [0, 3])
async def test_reasoning_ends_with_its_budget(server, n_forced):
    server.say("<think>" + "hm " * 100, n_forced)
    thinking = {"type": "enabled", "budget_tokens": 12}
    answer = await both(server, thinking=thinking, max_tokens=60)
    block, text = answer["content"]
    assert 0 < len(block["thinking"]) <= 12 + n_forced
    assert "hm hm" in text["text"]
    server.say("<think>hm</think>done")
    assert (await both(server, thinking=thinking))["content"][1]["text"] == "done"


async def test_reasoning_of_earlier_answers_comes_back(server):
    thought = {"type": "thinking", "thinking": "because", "signature": "x"}
    call = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {}}
    hidden = {"type": "redacted_thinking", "data": "zzz"}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}
    answer = await both(
        server,
        tools=[WEATHER],
        messages=[
            *HELLO,
            {"role": "assistant", "content": [thought, hidden, call]},
            {"role": "user", "content": [result]},
        ],
    )
    assert "because" in server.prompt
    assert "messages[1].content[1]" in answer["warnings"][0]


async def test_answers_that_follow_a_schema(server):
    server.say('{"city": "Rome"}')
    format = {"type": "json_schema", "schema": SCHEMA}
    for body in ({"output_config": {"format": format, "effort": "max"}}, {"output_format": format}):
        answer = await both(server, thinking={"type": "disabled"}, **body)
        assert json.loads(answer["content"][0]["text"]) == {"city": "Rome"}
        assert "city" in grammar_of(server)
    wrong = {"type": "json_schema", "schema": DEEP}
    error = await refuse(server, output_config={"format": wrong})
    assert error["param"] == "output_config.format.schema"


async def test_documents_are_texts(server):
    text = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "A tale."}}
    blocks = {
        "type": "content",
        "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}],
    }
    titled = {"type": "document", "source": blocks, "title": 'A "title"', "context": "old"}
    found = {
        "type": "search_result",
        "source": "here",
        "title": "T",
        "content": [{"type": "text", "text": "F"}],
    }
    await send(server, messages=[{"role": "user", "content": [text, titled, found]}])
    assert "<document>\nA tale.\n</document>" in server.prompt
    assert "One.\nTwo." in server.prompt
    assert 'title=\'A "title"\' context="old"' in server.prompt
    assert '<search_result title="T" source="here">\nF\n</search_result>' in server.prompt
    cited = {**text, "citations": {"enabled": True}}
    answer = await both(server, messages=[{"role": "user", "content": [cited]}])
    assert "'messages[0].content[0].citations'" in answer["warnings"][0]


def pdf_block(data: bytes) -> dict:
    source = {"type": "base64", "media_type": "application/pdf", "data": base64.b64encode(data).decode()}
    return {"type": "document", "source": source}


async def test_pdf_files_are_texts(server):
    nested = {"type": "tool_result", "tool_use_id": "a", "content": [pdf_block(pdf_of("second words"))]}
    content = [pdf_block(pdf_of("first words")), nested]
    answer = await send(server, messages=[{"role": "user", "content": content}])
    assert "<document>\nfirst words\n</document>" in server.prompt
    assert "<document>\nsecond words\n</document>" in server.prompt
    assert "warnings" not in answer
    broken = [{"role": "user", "content": ["x", pdf_block(b"no PDF")][1:]}]
    assert (await refuse(server, messages=broken))["param"] == "messages[0].content[0].source"
    url = {"type": "document", "source": {"type": "url", "url": "http://127.0.0.1/x.pdf"}}
    error = await refuse(server, messages=[{"role": "user", "content": [url]}])
    assert "--allow-remote-media" in error["message"]


async def test_without_a_reader_pdf_files_are_refused(server, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    error = await refuse(server, messages=[{"role": "user", "content": [pdf_block(b"x")]}])
    assert "pip install '.[pdf]'" in error["message"]


async def test_images(server):
    source = {"type": "base64", "media_type": "image/png"}
    dot = base64.b64encode(png(solid(255, 0, 0, 8, 8))).decode()
    block = {"type": "image", "source": {**source, "data": dot}}
    content = [{"type": "text", "text": "look: "}, block]
    error = await refuse(server, messages=[{"role": "user", "content": content}])
    assert error["param"] == "messages[0].content[1].source"
    backend = FakeBackend(n_ctx=1024)
    backend.projector = FakeProjector()
    seeing = Server(backend)
    assert MediaKind.IMAGE in seeing.engine.info.media
    messages = [{"role": "user", "content": content}]
    body: dict[str, Any] = {"messages": messages, "system": "s", "max_tokens": 1}
    answer = await send(seeing, **body)
    n = (await send(seeing, path=COUNT, **body))["input_tokens"]
    assert answer["usage"]["input_tokens"] == n
    url = {"type": "image_url", "image_url": {"url": data_uri(solid(255, 0, 0, 8, 8))}}
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": [content[0], url]}]
    ours = tasks(seeing)[-1].prompt
    response = await seeing.http.post("/v1/chat/completions", json={"messages": chat, "max_tokens": 1})
    assert response.status_code == 200, response.text
    assert tasks(seeing)[-1].prompt == ours
    result = {"type": "tool_result", "tool_use_id": "a", "content": [block]}
    await send(seeing, messages=[{"role": "user", "content": [result]}], max_tokens=1)
    bad = {"type": "image", "source": {**source, "data": "AAAA"}}
    messages = [{"role": "user", "content": [{**result, "content": [content[0], bad]}]}]
    error = await refuse(seeing, system="s", messages=messages)
    assert error["param"] == "messages[0].content[0].content[1].source"


async def test_the_billing_header_does_not_break_the_cache(server):
    server.say("ok")

    def body(version, digest):
        header = f"x-anthropic-billing-header: cc_version={version}; cc_entrypoint=cli; cch={digest};"
        rules = [{"type": "text", "text": header}, {"type": "text", "text": "many rules. " * 20}]
        return {"system": rules, "cache_report": True}

    await send(server, **body("2.1.37.3a3", "a1b2c"))
    answer = await both(server, **body("2.1.37.f00", "00000"))
    report = answer["cache_report"]
    assert report["masked"] == ["x-anthropic-billing-header"]
    assert report["n_common"] == report["n_prompt"]
    assert "cch=fffff;" in server.prompt
    assert "cc_version=2.1.37;" in server.prompt
    await send(server, messages=[{"role": "user", "content": "x-anthropic-billing-header: cch=12345;"}])
    assert "cch=12345" in server.prompt


async def test_what_is_unknown_is_named(server):
    block = {"type": "text", "text": "x", "colour": 1}
    answer = await both(
        server,
        foo=1,
        n_probs=3,
        thinking={"type": "adaptive", "bar": 2},
        messages=[{"role": "user", "content": [block], "baz": 3}],
        tools=[{**TIME, "input_examples": []}],
    )
    named = " ".join(answer["warnings"])
    for name in (
        "'foo'",
        "'n_probs'",
        "'thinking.bar'",
        "'messages[0].content[0].colour'",
        "'messages[0].baz'",
        "'tools[0].input_examples'",
    ):
        assert name in named
    assert len(answer["warnings"]) == 6
    assert (await send(server, path=COUNT, foo=1))["warnings"] == [answer["warnings"][0]]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": "x"}, "messages"),
        ({"messages": [5]}, "messages[0]"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "film"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
         "messages[0].content[0].tool_use_id"),
        ({"messages": [{"role": "assistant", "content": [{"type": "image"}]}]},
         "messages[0].content[0].type"),
        ({"system": 5}, "system"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"tools": 5}, "tools"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "a", "input_schema": {"properties": {"x": DEEP}}}],
          "tool_choice": {"type": "any"}},
         "tools[0].input_schema"),
        ({"tool_choice": {"type": "perhaps"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TIME], "tool_choice": {"type": "tool", "name": "zzz"}}, "tool_choice"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking"),
        ({"n": 2}, "n"),
        ({"temperature": "hot"}, "temperature"),
        ({"stop_sequences": 5}, "stop_sequences"),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_named(server, body, param):
    error = await refuse(server, **body)
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


async def test_bad_json_and_other_methods(server):
    response = await server.http.post("/v1/messages", content=b"{")
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")
    response = await server.http.get("/v1/messages")
    assert (response.status_code, response.json()["type"]) == (405, "error")
    response = await server.http.post("/v1/messages/nowhere")
    assert (response.status_code, response.json()["error"]["type"]) == (404, "not_found_error")


async def test_keys_are_taken_from_either_header():
    server = ScriptedServer(api_keys=("secret",))
    body = {"max_tokens": 1, "messages": HELLO}
    for headers in ({"x-api-key": "secret"}, {"Authorization": "Bearer secret"}):
        assert (await server.http.post("/v1/messages", json=body, headers=headers)).status_code == 200
    for headers in ({}, {"x-api-key": "wrong"}):
        response = await server.http.post("/v1/messages", json=body, headers=headers)
        answer = response.json()
        assert (response.status_code, answer["type"]) == (401, "error")
        assert answer["error"]["type"] == "authentication_error"
        assert answer["request_id"] == response.headers["request-id"]


async def test_a_server_that_is_not_ready_is_overloaded():
    server = Server(FakeBackend(), is_open=False)
    server.engine.info = None
    response = await server.http.post("/v1/messages", json={"max_tokens": 1, "messages": HELLO})
    assert (response.status_code, response.json()["error"]["type"]) == (529, "overloaded_error")


async def test_a_full_queue_is_overloaded():
    server = ScriptedServer(queue_size=0)
    server.engine.is_paused = True
    body = {"max_tokens": 1, "messages": HELLO}
    running = [asyncio.create_task(server.http.post("/v1/messages", json=body)) for _ in range(4)]
    while server.engine.n_tasks < 4:
        await asyncio.sleep(0.001)
    response = await server.http.post("/v1/messages", json=body)
    assert (response.status_code, response.json()["error"]["type"]) == (529, "overloaded_error")
    assert int(response.headers["retry-after"]) >= 1
    server.engine.is_paused = False
    assert {r.status_code for r in await asyncio.gather(*running)} == {200}


async def test_a_body_that_is_too_large():
    server = ScriptedServer(max_body_mib=1)
    body = {"max_tokens": 1, "messages": [{"role": "user", "content": "x" * (2 << 20)}]}
    response = await server.http.post("/v1/messages", json=body)
    assert (response.status_code, response.json()["error"]["type"]) == (413, "request_too_large")


async def test_models_in_this_apis_shape(server):
    listed = (await server.http.get("/v1/models", headers=VERSION)).json()
    (model,) = listed["data"]
    assert (model["type"], model["id"], model["lifecycle"]) == ("model", "fake.gguf", "active")
    assert model["max_input_tokens"] == model["max_tokens"] == 8192
    assert (listed["first_id"], listed["last_id"], listed["has_more"]) == ("fake.gguf", "fake.gguf", False)
    assert (await server.http.get("/v1/models/fake.gguf", headers=VERSION)).json() == model
    missing = await server.http.get("/v1/models/other", headers=VERSION)
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
    past = (await server.http.get("/v1/models?after_id=fake.gguf", headers=VERSION)).json()
    assert past["data"] == []
    assert (await server.http.get("/v1/models")).json()["object"] == "list"
    assert "code" in (await server.http.get("/v1/models/other")).json()["error"]
    assert (await server.http.head("/v1/models", headers=VERSION)).status_code == 200


async def test_an_error_inside_of_a_stream_is_an_event(server, monkeypatch):
    server.say("a" * 50)
    n_steps = [0]
    sample = type(server.backend.open_sampler(None, [])).sample

    def fail_later(self, logits, index):
        n_steps[0] += 1
        if n_steps[0] > 5:
            raise RuntimeError("broken")
        return sample(self, logits, index)

    monkeypatch.setattr("tests.contract.scripted.ScriptedSampler.sample", fail_later)
    events = await stream_events(server)
    assert events[0]["type"] == "message_start"
    assert (events[-1]["type"], events[-1]["error"]["type"]) == ("error", "api_error")


def test_the_longest_known_part_of_a_field_counts():
    names = {"a[1]": "b[0]", "a[1].c": "b[0].d", "x": "y"}
    assert find_name("a[1].c.e", names) == "b[0].d.e"
    assert find_name("a[1].f", names) == "b[0].f"
    assert find_name("a[10]", names) is None
    assert find_name("xy", names) is None
