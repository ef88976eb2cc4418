"""What chatting costs over completing: the same tokens by both routes, and a long chat to its prompt."""

from __future__ import annotations

import json
import time
from contextlib import closing
from functools import partial
from typing import Any

from bench.client import Answer, complete, get, post
from bench.section import Section, repeat
from bench.setup import Setup
from bench.speed import OFF
from corral.chat.chat_format import ChatFormat
from corral.chat.jinja_template import ChatTemplate
from corral.generate.model import ChatSettings
from corral.generate.prepare_chat import render_chat
from corral.schema.chat import ChatRequest
from corral.schema.parse import parse_request

N_MESSAGES = 200
N_TOOLS = 20
N_DECODE = 128
_MESSAGES = [{"role": "user", "content": "Tell me a long story about the sea."}]
_OPTIONS: dict[str, Any] = {
    "n_predict": N_DECODE,
    "ignore_eos": True,
    "seed": 1,
    "cache_prompt": False,
    **OFF,
}


async def measure_chat(setup: Setup, section: Section) -> None:
    with closing(setup.corral()) as corral:
        url = corral.url
        completed, chatted = await repeat(
            setup.rounds, partial(completed_stream, url), partial(chat_stream, url)
        )
        details = {"completion tok/s": completed, "chat tok/s": chatted}
        section.at_least("chat stream over /completion stream", chatted / completed, 0.97, "x", details)
        section.at_most("200 messages and 20 tools to a prompt", await chat_preparation_ms(url), 20, "ms")


async def completed_stream(url: str) -> float:
    """Tokens per second of `/completion` on the prompt of a chat."""
    prompt = (await post(url, "/apply-template", {"messages": _MESSAGES}))["prompt"]
    answer = await complete(url, prompt=prompt, **_OPTIONS)
    return _speed(answer)


async def chat_stream(url: str) -> float:
    """Tokens per second of the same generation through `/v1/chat/completions`."""
    answer = await complete(url, "/v1/chat/completions", messages=_MESSAGES, **_OPTIONS)
    return _speed(answer)


async def chat_preparation_ms(url: str) -> float:
    """Validating and rendering a long chat with many tools through the model's template, without a server's
    thread switches: the best of a few, since any disturbance only adds."""
    source = json.loads((await get(url, "/props"))[1])["chat_template"]
    chat_format = ChatFormat(ChatTemplate(source))
    settings = ChatSettings(chat_format, chat_format, options={})
    body = json.dumps(long_chat())
    times = []
    for _ in range(7):
        started = time.perf_counter()
        request = parse_request(ChatRequest, json.loads(body))
        _, chat, prompt = render_chat(request, settings)
        chat_format.bind(chat, prompt, lambda _: None)
        times.append(time.perf_counter() - started)
    return 1e3 * min(times)


def long_chat() -> dict[str, Any]:
    turns = N_MESSAGES // 4
    messages: list[dict[str, Any]] = []
    for i in range(turns):
        call = {"name": "tool_1", "arguments": json.dumps({"text": "word " * 10, "n": i})}
        messages += [
            {"role": "user", "content": "question " * 20},
            {"role": "assistant", "content": None, "tool_calls": [{"id": f"call_{i}", "function": call}]},
            {"role": "tool", "tool_call_id": f"call_{i}", "content": "result " * 20},
            {"role": "assistant" if i < turns - 1 else "user", "content": "answer " * 30},
        ]
    return {"messages": messages, "tools": [_tool(i) for i in range(N_TOOLS)]}


def _tool(i: int) -> dict[str, Any]:
    properties = {
        "text": {"type": "string", "description": "What to look for, in plain words"},
        "n": {"type": "integer", "minimum": 0},
        "where": {"type": "object", "properties": {"city": {"type": "string"}, "street": {"type": "string"}}},
    }
    parameters = {"type": "object", "properties": properties, "required": ["text"]}
    function = {"name": f"tool_{i}", "description": "Looks something up somewhere", "parameters": parameters}
    return {"type": "function", "function": function}


def _speed(answer: Answer) -> float:
    """From the first token to the end, which comes with the last one."""
    return (N_DECODE - 1) / (answer.times[-1] - answer.times[0])
