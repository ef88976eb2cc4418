"""The `openai` package as the judge of `/v1/responses` and `/v1/conversations`, on answers written down."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import openai
import pydantic
import pytest

from corral.server.record_middleware import RecordMiddleware
from tests.contract.scripted import ScriptedServer

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Kraków"}}\n</tool_call>'
QUESTION = "How is the weather?"


class Person(pydantic.BaseModel):
    name: str
    age: int


@pytest.fixture
def server():
    server = ScriptedServer()
    server.say("<think>\nwell\n</think>\n\nIt rains.")
    return server


@pytest.fixture
async def client(server):
    app = RecordMiddleware(server.app, server.app.observers)
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://corral")
    async with openai.AsyncOpenAI(
        base_url="http://corral/v1", api_key="none", max_retries=0, http_client=http
    ) as client:
        yield client


async def test_create_and_retrieve(client):
    response = await client.responses.create(model="any", input=QUESTION, metadata={"a": "b"})
    assert (response.status, response.output_text) == ("completed", "It rains.")
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert await client.responses.retrieve(response.id) == response
    again = await client.responses.create(model="any", input=QUESTION)
    assert again.usage.input_tokens_details.cached_tokens > 0


async def test_stream(client):
    events = []
    async with client.responses.stream(model="any", input=QUESTION) as stream:
        async for event in stream:
            events.append(event)
        final = await stream.get_final_response()
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(texts) == final.output_text == "It rains."
    snapshots = [event.snapshot for event in events if event.type == "response.output_text.delta"]
    assert snapshots[-1] == "It rains."
    thinking = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert "".join(thinking) == "well"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    replayed = [event async for event in await client.responses.retrieve(final.id, stream=True)]
    assert [event.type for event in replayed] == [event.type for event in events]
    rest = await client.responses.retrieve(final.id, stream=True, starting_after=7)
    assert [event.sequence_number async for event in rest] == list(range(8, len(events)))


async def test_parse(client, server):
    server.say('{"name": "Ada", "age": 36}')
    response = await client.responses.parse(model="any", input="Who?", text_format=Person)
    assert response.output_parsed == Person(name="Ada", age=36)
    async with client.responses.stream(model="any", input="Who?", text_format=Person) as stream:
        final = await stream.get_final_response()
    assert final.output_parsed == Person(name="Ada", age=36)


async def test_a_call_and_its_output(client, server):
    server.say(CALL)
    async with client.responses.stream(model="any", input=QUESTION, tools=[WEATHER]) as stream:
        deltas = [e async for e in stream if e.type == "response.function_call_arguments.delta"]
        first = await stream.get_final_response()
    (call,) = first.output
    assert deltas[-1].snapshot == call.arguments
    assert (call.name, call.parsed_arguments) == ("get_weather", {"city": "Kraków"})
    server.say("It rains.")
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    kept = await client.responses.create(
        model="any", input=[output], previous_response_id=first.id, tools=[WEATHER]
    )
    kept_prompt = server.prompt
    history: Any = [{"role": "user", "content": QUESTION}, *first.output, output]
    sent = await client.responses.create(model="any", input=history, tools=[WEATHER], store=False)
    assert kept.output_text == sent.output_text == "It rains."
    assert server.prompt == kept_prompt


async def test_custom_tools(client, server):
    server.say(json_call("apply_patch", {"input": "*** Begin Patch"}))
    tool: Any = {"type": "custom", "name": "apply_patch"}
    async with client.responses.stream(model="any", input="Fix it.", tools=[tool]) as stream:
        deltas = [e.delta async for e in stream if e.type == "response.custom_tool_call_input.delta"]
        response = await stream.get_final_response()
    (call,) = response.output
    assert (call.type, call.input, "".join(deltas)) == ("custom_tool_call", "*** Begin Patch", call.input)


def json_call(name: str, arguments: dict) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


async def test_input_items_and_delete(client):
    items: Any = [{"role": "user", "content": str(i)} for i in range(45)]
    response = await client.responses.create(model="any", input=items)
    listed = [item async for item in client.responses.input_items.list(response.id, order="asc")]
    assert [item.content[0].text for item in listed] == [str(i) for i in range(45)]
    count = await client.responses.input_tokens.count(model="any", input=items)
    assert count.input_tokens == response.usage.input_tokens
    await client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(response.id)


async def test_background_and_cancel(client, server):
    server.engine.is_paused = True
    response = await client.responses.create(model="any", input=QUESTION, background=True)
    assert response.status == "queued"
    assert (await client.responses.retrieve(response.id)).status == "queued"
    assert (await client.responses.cancel(response.id)).status == "cancelled"
    server.engine.is_paused = False
    response = await client.responses.create(model="any", input=QUESTION, background=True)
    events = [event async for event in await client.responses.retrieve(response.id, stream=True)]
    assert (events[-1].type, events[-1].response.output_text) == ("response.completed", "It rains.")
    async with client.responses.stream(model="any", input=QUESTION, background=True) as stream:
        assert (await stream.get_final_response()).output_text == "It rains."


async def test_conversations(client):
    conversation = await client.conversations.create(items=[{"role": "user", "content": "Hello."}])
    updated = await client.conversations.update(conversation.id, metadata={"a": "b"})
    assert await client.conversations.retrieve(conversation.id) == updated
    await client.responses.create(model="any", input=QUESTION, conversation=conversation.id)
    items = [item async for item in client.conversations.items.list(conversation.id, order="asc", limit=1)]
    assert [item.type for item in items] == ["message", "message", "reasoning", "message"]
    added = await client.conversations.items.create(
        conversation.id, items=[{"role": "user", "content": "And now?"}]
    )
    found = await client.conversations.items.retrieve(added.data[0].id, conversation_id=conversation.id)
    assert found.content[0].text == "And now?"
    await client.conversations.items.delete(found.id, conversation_id=conversation.id)
    assert (await client.conversations.delete(conversation.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await client.conversations.items.list(conversation.id)


async def test_errors(client):
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(model="any", input="x" * 40_000)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(
            model="any", input=QUESTION, tool_choice="required", tools=[{"type": "web_search"}]
        )
    assert caught.value.param == "tool_choice"
    response = await client.responses.create(model="any", input=QUESTION, max_output_tokens=2)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
