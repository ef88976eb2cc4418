"""A client of `POST /v1/responses`: the `openai` package's own types and accumulator judge every event."""

from __future__ import annotations

import json
from typing import Any

from openai._types import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.contract.inline import Server

_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
_ENDS = ("response.completed", "response.incomplete", "response.failed")
_TEXTS = {"output_text": "text", "reasoning_text": "text", "function_call_arguments": "arguments"}
_TEXTS["custom_tool_call_input"] = "input"


async def send(server: Server, status: int = 200, path: str = "/v1/responses", **body: Any) -> dict:
    response = await server.http.post(path, json={"input": "hello", **body})
    assert response.status_code == status, response.text
    answer: dict = response.json()
    if status == 200 and answer["object"] == "response":
        Response.model_validate(answer)
    return answer


async def refuse(server: Server, status: int = 400, **body: Any) -> dict:
    error: dict = (await send(server, status, **body))["error"]
    assert error.keys() >= {"message", "type", "param", "code"}
    return error


async def stream_events(server: Server, **body: Any) -> list[dict]:
    response = await server.http.post("/v1/responses", json={"input": "hello", "stream": True, **body})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return parse_events(response.text)


async def replay_events(server: Server, id: str, **query: Any) -> list[dict]:
    response = await server.http.get(f"/v1/responses/{id}", params={"stream": "true", **query})
    assert response.status_code == 200, response.text
    return parse_events(response.text)


def parse_events(text: str) -> list[dict]:
    *parts, end = text.split("\n\n")
    assert end == ""
    events = []
    for part in parts:
        if part.startswith(":"):
            continue
        name, data = part.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def accumulate(events: list[dict]) -> dict:
    """The response that a stream makes; fails where the client would, and where a `done` has no delta."""
    state: ResponseStreamState[None] = ResponseStreamState(input_tools=omit, text_format=omit)
    joined: dict[str, str] = {}
    for number, event in enumerate(events):
        assert event["sequence_number"] == number
        state.handle_event(_EVENT.validate_python(event))
        _, _, kind = event["type"].partition("response.")
        name, _, what = kind.partition(".")
        if name in _TEXTS and what == "delta":
            joined[event["item_id"]] = joined.get(event["item_id"], "") + event["delta"]
        elif name in _TEXTS:
            assert event[_TEXTS[name]] == joined.get(event["item_id"], "")
    assert [event["type"] in _ENDS for event in events] == [False] * (len(events) - 1) + [True]
    assert events[0]["type"] == "response.created"
    response: dict = events[-1]["response"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert done == response["output"]
    assert [item["id"] for item in added] == [item["id"] for item in done]
    return response


def plain(response: dict) -> dict:
    """What does not differ between two answers that say the same: ids are random, the cache is warmer."""
    items = [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in response["output"]]
    usage = {k: v for k, v in (response["usage"] or {}).items() if k != "input_tokens_details"}
    left_out = ("id", "created_at", "completed_at", "cache_report")
    rest = {k: v for k, v in response.items() if k not in left_out}
    return {**rest, "output": items, "usage": usage}


async def both(server: Server, **body: Any) -> dict:
    """The answer, which must be the same whole, streamed, and replayed."""
    whole = await send(server, **body)
    events = await stream_events(server, **body)
    streamed = accumulate(events)
    assert plain(streamed) == plain(whole)
    assert await replay_events(server, streamed["id"]) == events
    return whole


def text_of(response: dict) -> str:
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts)
