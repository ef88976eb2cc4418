"""A client of `POST /v1/messages`, as strict about the order of events as the real one."""

from __future__ import annotations

import json
from typing import Any

from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter
from pydantic_core import from_json

from tests.contract.inline import Server

HELLO = [{"role": "user", "content": "hello"}]
_STARTS: dict[str, dict] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
}
_PROMPT_TOKENS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
_LAST = ("warnings", "cache_report", "schema_violation", "truncated_grammar")
_DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


def tasks(server: Server) -> list[Any]:
    """What the engine was asked for."""
    return list(server.engine.submitted)


async def send(server: Server, status: int = 200, path: str = "/v1/messages", **body: Any) -> dict:
    body = {"max_tokens": 256, "messages": HELLO, **body}
    response = await server.http.post(path, json=body)
    assert response.status_code == status, response.text
    assert response.headers["request-id"] == response.headers["x-request-id"]
    answer: dict = response.json()
    if status == 200 and path == "/v1/messages":
        Message.model_validate(answer)
    return answer


async def refuse(server: Server, status: int = 400, **body: Any) -> dict:
    answer = await send(server, status, **body)
    assert answer["type"] == "error"
    assert answer["request_id"]
    return answer["error"]


async def stream_events(server: Server, **body: Any) -> list[dict]:
    body = {"max_tokens": 256, "messages": HELLO, "stream": True, **body}
    response = await server.http.post("/v1/messages", json=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
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
        if events[-1]["type"] not in ("ping", "error"):
            _EVENT.validate_python(events[-1])
        assert name == f"event: {events[-1]['type']}"
    return events


def accumulate(events: list[dict]) -> dict:
    """The message that a stream makes; fails where the order is wrong, or a piece of JSON cannot be right."""
    start, *events = events
    assert start["type"] == "message_start"
    message, is_open, partial = start["message"], False, ""
    assert message["content"] == []
    assert message["stop_reason"] is None
    assert events[-1] == {"type": "message_stop"}
    assert events[0] == {"type": "ping"}
    for event in events[:-1]:
        kind, blocks = event["type"], message["content"]
        if kind == "content_block_start":
            assert (is_open, event["index"]) == (False, len(blocks))
            block = event["content_block"]
            assert block == {**block, **_STARTS[block["type"]]}
            blocks.append(dict(block))
            is_open, partial = True, ""
        elif kind == "content_block_delta":
            assert (is_open, event["index"]) == (True, len(blocks) - 1)
            delta = event["delta"]
            if delta["type"] == "input_json_delta":
                partial += delta["partial_json"]
                blocks[-1]["input"] = from_json(partial, allow_partial=True)
            else:
                blocks[-1][_DELTAS[delta["type"]]] += delta[_DELTAS[delta["type"]]]
        elif kind == "content_block_stop":
            assert (is_open, event["index"]) == (True, len(blocks) - 1)
            is_open = False
        elif kind == "message_delta":
            assert not is_open
            message |= {**event["delta"], "usage": {**message.get("usage", {}), **event["usage"]}}
            message |= {k: v for k, v in event.items() if k in _LAST}
        else:
            assert kind == "ping"
    return message


def without_id(message: dict) -> dict:
    """What does not differ between two answers that say the same: ids are random, the cache is warmer, and
    tokens that come at once count as reasoning together."""
    blocks = [{k: v for k, v in block.items() if k != "id"} for block in message["content"]]
    usage = message["usage"]
    n_prompt = sum(usage[k] for k in _PROMPT_TOKENS)
    assert sum(usage["cache_creation"].values()) == usage["cache_creation_input_tokens"]
    rest = {k: v for k, v in message.items() if k not in ("id", "usage", "cache_report")}
    assert 0 <= usage["output_tokens_details"]["thinking_tokens"] <= usage["output_tokens"]
    return {
        **rest,
        "content": blocks,
        "n_prompt": n_prompt,
        "n_output": usage["output_tokens"],
    }


async def both(server: Server, **body: Any) -> dict:
    """The answer, which must be the same whole and streamed."""
    whole = await send(server, **body)
    streamed = accumulate(await stream_events(server, **body))
    assert without_id(streamed) == without_id(whole)
    return whole
