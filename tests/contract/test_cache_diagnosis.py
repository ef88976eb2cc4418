"""Why a prompt was not reused, in OpenAI's shape and in Anthropic's."""

from __future__ import annotations

import json
from typing import Any

import anthropic.types
import numpy as np
import openai.types.responses.response as responses
import pytest
from pydantic import TypeAdapter

from corral.api.cache_diagnosis import Change, Fingerprint, PromptHistory
from corral.api.render.cache_diagnostics import render_prompt_cache_diagnostics
from tests.contract.inline import post
from tests.contract.messages_client import accumulate, send, stream_events
from tests.contract.scripted import ScriptedServer

CHAT = "/v1/chat/completions"
SYSTEM = {"role": "system", "content": "You are careful. " * 5}
ASK = {"role": "user", "content": "What is this? " * 5}
MORE = [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "Go on."}]
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
_openai_shape: TypeAdapter[Any] = TypeAdapter(responses.PromptCacheDiagnostics)
_anthropic_shape: TypeAdapter[Any] = TypeAdapter(anthropic.types.Diagnostics)


@pytest.fixture
def server():
    server = ScriptedServer()
    server.say("yes")
    return server


async def chat(server: ScriptedServer, previous: str | None = None, **body: Any) -> dict:
    body = {"messages": [SYSTEM, ASK], **body}
    options = {"comparison_response_id": previous}
    return await post(server, CHAT, json={**body, "prompt_cache_options": options})


async def diagnose(server: ScriptedServer, previous: str, **body: Any) -> dict:
    """What a chat is told, which the client's own model accepts."""
    answer = await chat(server, previous, **body)
    found = answer["prompt_cache_diagnostics"]
    _openai_shape.validate_python(found)
    return found


async def test_a_chat_that_goes_on_is_a_hit(server):
    first = await chat(server)
    assert "prompt_cache_diagnostics" not in first
    server.say("yes")
    assert await diagnose(server, first["id"], messages=[SYSTEM, ASK, *MORE]) == {"type": "cache_hit"}
    assert await diagnose(server, first["id"]) == {"type": "cache_hit"}


async def test_a_response_is_compared_too(server):
    options: dict[str, Any] = {"comparison_response_id": None}
    body = {"input": "a question " * 20, "prompt_cache_options": options}
    first = await post(server, "/v1/responses", json=body)
    assert "prompt_cache_diagnostics" not in first
    options["comparison_response_id"] = first["id"]
    for input, type in ((body["input"], "cache_hit"), ("something else " * 20, "cache_miss")):
        server.say("yes")
        answer = await post(server, "/v1/responses", json={**body, "input": input})
        _openai_shape.validate_python(answer["prompt_cache_diagnostics"])
        assert answer["prompt_cache_diagnostics"]["type"] == type


async def test_what_has_changed_is_named(server):
    first = await chat(server)
    other = {"role": "system", "content": "Be brief. " * 5}
    for body, reason in (
        ({"messages": [other, ASK]}, "input_changed"),
        ({"messages": [SYSTEM, {**ASK, "content": "another question " * 5}]}, "input_changed"),
        ({"tools": [TOOL], "messages": [other, ASK]}, "tools_changed"),
        ({"prompt_cache_key": "new", "messages": [other, ASK]}, "input_changed"),
        ({"reasoning_effort": "none", "messages": [other]}, "reasoning_effort_changed"),
    ):
        fresh = ScriptedServer()
        fresh.state.prompt_history = server.state.prompt_history
        found = await diagnose(fresh, first["id"], **body)
        assert (found["type"], found["reason"]) == ("cache_miss", reason)
        assert found["cache_missed_tokens"] > 0
        assert found["comparison_reusable_tokens"] < first["usage"]["prompt_tokens"]


async def test_nothing_has_changed_and_yet_it_is_gone(server):
    first = await chat(server)
    fresh = ScriptedServer()
    fresh.state.prompt_history = server.state.prompt_history
    assert await diagnose(fresh, first["id"]) == {"type": "unavailable"}
    fresh = ScriptedServer()
    fresh.state.prompt_history = server.state.prompt_history
    other = {"reasoning_effort": "high", "response_format": {"type": "json_object"}, "prompt_cache_key": "a"}
    assert await diagnose(fresh, first["id"], **other) == {"type": "unavailable"}


async def test_other_adapters_are_another_model(server):
    """The same prompt, which no state of other adapters serves."""
    first = await chat(server)
    known = server.state.prompt_history.open(b"", "x", first["id"], fingerprint(0))
    assert known is not None
    assert known.previous is not None
    changed = Fingerprint(
        {**known.previous.parts, Change.MODEL: b"other"}, known.previous.messages, known.previous.prompt
    )
    diagnosis = server.state.prompt_history.open(b"", "y", first["id"], changed)
    assert diagnosis is not None
    found = render_prompt_cache_diagnostics(diagnosis, n_cached=0)
    assert (found["type"], found["reason"]) == ("cache_miss", "model_changed")


async def test_an_answer_that_is_not_known(server):
    assert await diagnose(server, "chatcmpl-other") == {"type": "comparison_response_not_found"}
    plain = await post(server, CHAT, json={"messages": [ASK]})
    assert await diagnose(server, plain["id"]) == {"type": "comparison_response_not_found"}


async def test_the_end_of_a_stream_tells_it(server):
    first = await chat(server)
    options = {"comparison_response_id": first["id"]}
    body = {"messages": [SYSTEM, ASK], "prompt_cache_options": options, "stream": True}
    response = await server.http.post(CHAT, json=body)
    *lines, _done, _end = response.text.split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert events[-1]["prompt_cache_diagnostics"] == {"type": "cache_hit"}
    again = await diagnose(server, events[0]["id"])
    assert again == {"type": "cache_hit"}


async def message(server: ScriptedServer, previous: str | None, **body: Any) -> dict:
    diagnostics = {"previous_message_id": previous}
    body = {"system": SYSTEM["content"], "messages": [ASK], **body, "diagnostics": diagnostics}
    answer = await send(server, **body)
    if answer["diagnostics"] is not None:
        _anthropic_shape.validate_python(answer["diagnostics"])
    return answer


async def test_messages_that_go_on_have_no_reason(server):
    assert "diagnostics" not in await send(server)
    first = await message(server, None)
    assert first["diagnostics"] is None
    server.say("yes")
    assert (await message(server, first["id"], messages=[ASK, *MORE]))["diagnostics"] is None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"system": "Be brief."}, "system_changed"),
        ({"system": "Be brief.", "tools": [{"name": "look", "input_schema": {}}]}, "system_changed"),
        ({"tools": [{"name": "look", "input_schema": {}}]}, "tools_changed"),
        ({"messages": [{"role": "user", "content": "another question " * 5}]}, "messages_changed"),
        ({}, "unavailable"),
        ({"thinking": {"type": "disabled"}}, "unavailable"),
    ],
)
async def test_a_reason_of_messages(server, body, reason):
    first = await message(server, None)
    fresh = ScriptedServer()
    fresh.state.prompt_history = server.state.prompt_history
    found = (await message(fresh, first["id"], **body))["diagnostics"]["cache_miss_reason"]
    assert found["type"] == reason
    assert (found.get("cache_missed_input_tokens", 0) > 0) is (reason != "unavailable")


async def test_a_stream_of_messages_begins_with_it(server):
    first = await message(server, None)
    body = {"system": "Be brief.", "messages": [ASK], "diagnostics": {"previous_message_id": first["id"]}}
    streamed = accumulate(await stream_events(server, **body))
    assert streamed["diagnostics"]["cache_miss_reason"]["type"] == "system_changed"
    unknown = (await message(server, "msg_unknown"))["diagnostics"]
    assert unknown == {"cache_miss_reason": {"type": "previous_message_not_found"}}


def fingerprint(n: int, **parts: bytes) -> Fingerprint:
    known: dict[Change, bytes] = {change: parts.get(change.name, b"") for change in Change}
    del known[Change.MESSAGES]
    return Fingerprint(known, (), np.arange(n, dtype=np.int32))


def test_no_tenant_learns_of_anothers_requests():
    history = PromptHistory()
    history.open(b"a", "id", None, fingerprint(50))
    own, other = (history.open(tenant, "next", "id", fingerprint(50)) for tenant in (b"a", b"b"))
    assert own is not None
    assert own.previous is not None
    assert other is not None
    assert other.previous is None


def test_memory_is_bounded():
    history = PromptHistory(max_bytes=20_000)
    for i in range(100):
        history.open(b"", str(i), None, fingerprint(500))
    known = [history.open(b"", "x", str(i), fingerprint(0)) for i in range(100)]
    assert 0 < sum(each is not None and each.previous is not None for each in known) < 10
    history.open(b"", "huge", None, fingerprint(100_000))
    found = history.open(b"", "x", "huge", fingerprint(0))
    assert found is not None
    assert found.previous is None
