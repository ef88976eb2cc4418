"""The shapes of llama-server's answers: which fields they have, and of which types.

Recorded from a llama-server with `python -m tests.tools.llama_server_shapes URL`, which runs the model
llama-fim with `-c 1024 -np 2 --slots --metrics --jinja --alias tiny`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import httpx

FILE = Path(__file__).with_name("llama_server_shapes.json")

_CHAT, _TEXT, _NATIVE = "/v1/chat/completions", "/v1/completions", "/completion"
_HELLO = [{"role": "user", "content": "hello there"}]
_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "", "parameters": _SCHEMA}}]
_LONG = "a " * 3000

REQUESTS: list[tuple[str, Any]] = [
    *((path, None) for path in ("/health", "/props", "/v1/models", "/lora-adapters", "/nothing")),
    (_NATIVE, {"prompt": "hello", "n_predict": 4}),
    (_NATIVE, {"prompt": "hello", "n_predict": 4, "n_probs": 3}),
    (_NATIVE, {"prompt": "hello", "n_predict": 4, "n_probs": 3, "post_sampling_probs": True}),
    (_NATIVE, {"prompt": "hello", "n_predict": 4, "stream": True, "timings_per_token": True}),
    (_NATIVE, {"prompt": "hello", "n_predict": 2, "stream": True, "return_progress": True}),
    (_NATIVE, {"prompt": ["a", "b"], "n_predict": 2}),
    (
        _NATIVE,
        {"prompt": "a", "n_predict": 2, "response_fields": ["content", "generation_settings/n_predict"]},
    ),
    (_NATIVE, {"prompt": _LONG}),
    (_NATIVE, {"prompt": 5}),
    (_NATIVE, {"prompt": "a", "temperature": "hot"}),
    (_NATIVE, {"prompt": "a", "grammar": "root ::= ("}),
    ("/slots", None),
    ("/infill", {"input_prefix": "a", "input_suffix": "b", "n_predict": 3}),
    (_TEXT, {"prompt": "a", "max_tokens": 3, "logprobs": 2}),
    (_TEXT, {"prompt": "a", "max_tokens": 3, "stream": True}),
    (_CHAT, {"messages": _HELLO, "max_tokens": 4, "logprobs": True, "top_logprobs": 2}),
    (_CHAT, {"messages": _HELLO, "max_tokens": 4, "stream": True, "timings_per_token": True}),
    (_CHAT, {"messages": _HELLO, "max_tokens": 4, "stream": True, "stream_options": {"include_usage": True}}),
    (_CHAT, {"messages": _HELLO, "max_tokens": 4, "stream": True, "logprobs": True, "top_logprobs": 2}),
    (_CHAT, {"messages": _HELLO, "max_tokens": 4, "tools": _TOOLS}),
    (_CHAT, {"messages": _HELLO, "max_tokens": 4, "verbose": True}),
    (_CHAT, {"messages": _HELLO, "max_tokens": 4, "n": 2}),
    (_CHAT, {"messages": "hello"}),
    (_CHAT, {"max_tokens": 4}),
    (_CHAT, {"messages": _HELLO, "tools": _TOOLS, "tool_choice": "bogus"}),
    (f"{_CHAT}/input_tokens", {"messages": _HELLO}),
    ("/apply-template", {"messages": _HELLO}),
    ("/tokenize", {"content": "hello"}),
    ("/tokenize", {"content": "hello", "with_pieces": True}),
    ("/detokenize", {"tokens": [5, 6]}),
    ("/detokenize", {}),
    ("/rerank", {"query": "a", "documents": ["b"]}),
    ("/slots/0?action=erase", {}),
    ("/props", {}),
    ("/tools", None),
    ("/cors-proxy", None),
    ("/v1/messages", {"model": "m", "max_tokens": 4, "messages": _HELLO}),
    ("/v1/messages/count_tokens", {"model": "m", "messages": _HELLO}),
    ("/v1/responses", {"model": "m", "input": "hi", "max_output_tokens": 4}),
    ("/v1/responses/input_tokens", {"model": "m", "input": "hi"}),
]


def answer_of(client: httpx.Client, path: str, body: Any) -> tuple[int, Any]:
    """The status and the JSON, or the first and the last event of a stream."""
    response = client.get(path) if body is None else client.post(path, json=body)
    if response.headers["content-type"].startswith("text/event-stream"):
        lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
        events = [json.loads(line) for line in lines if line != "[DONE]"]
        return response.status_code, {"first": events[0], "last": events[-1]}
    return response.status_code, response.json()


def shape_of(value: Any) -> Any:
    """The fields of objects, the shape of the first item of lists, the names of other types."""
    if isinstance(value, dict):
        return {name: shape_of(each) for name, each in sorted(value.items())}
    if isinstance(value, list):
        return [shape_of(value[0])] if value else []
    return "number" if type(value) in (int, float) else type(value).__name__


def record(url: str) -> list[dict[str, Any]]:
    with httpx.Client(base_url=url, timeout=60) as client:
        answers = [(path, *answer_of(client, path, body)) for path, body in REQUESTS]
    return [{"path": path, "status": status, "shape": shape_of(answer)} for path, status, answer in answers]


if __name__ == "__main__":
    rows = ",\n".join(json.dumps(row) for row in record(sys.argv[1]))
    FILE.write_text(f"[\n{rows}\n]\n")
