"""Chat requests: checked, and rendered by templates of several families, with the grammar of their tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

import corral.chat
from corral.chat.chat_format import ChatFormat
from corral.chat.jinja_template import ChatTemplate
from corral.core.errors import CorralError
from corral.generate.model import ChatSettings
from corral.generate.prepare_chat import render_chat
from corral.media.collect import PlainCollector, mark_messages
from corral.schema.chat import ChatRequest
from corral.schema.parse import parse_request
from tests.fuzz.target import Limit, Target
from tests.fuzz.value_mutation import mutated_values

_FOLDER = Path(corral.chat.__file__).parent / "templates"
_FAMILIES = ("chatml", "llama3", "mistral-v3", "deepseek3", "gpt-oss", "kimi-k2")


def _settings(name: str) -> ChatSettings:
    form = ChatFormat(ChatTemplate((_FOLDER / f"{name}.jinja").read_text(), "<s>", "</s>"))
    return ChatSettings(form, form, {})


_SETTINGS = [_settings(name) for name in _FAMILIES]


def parse(data: bytes) -> None:
    body = parse_request(ChatRequest, orjson.loads(data))
    marked = body.model_copy(update={"messages": mark_messages(body.messages, PlainCollector())})
    for settings in _SETTINGS:
        chat_format, chat, prompt = render_chat(marked, settings)
        chat_format.bind(chat, prompt, lambda _: None)


_PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_TOOL = {"type": "function", "function": {"name": "weather", "description": "", "parameters": _PARAMETERS}}
_CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "x"}'}}
_USER = {"role": "user", "content": "hello"}
_PLAIN: dict[str, Any] = {"messages": [{"role": "system", "content": "be brief"}, _USER]}
_TOOLS = {
    "messages": [
        _USER,
        {"role": "assistant", "content": None, "reasoning_content": "so", "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "sunny"}]},
    ],
    "tools": [_TOOL],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
}
_FORMED = {
    **_PLAIN,
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": _PARAMETERS}},
    "chat_template_kwargs": {"enable_thinking": False},
    "add_generation_prompt": True,
}
_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
_SEEN = {"messages": [{"role": "user", "content": [{"type": "text", "text": "what is it?"}, _IMAGE]}]}
VALUES = [_PLAIN, _TOOLS, _FORMED, _SEEN]
NAMES = [
    "role",
    "content",
    "messages",
    "tools",
    "tool_calls",
    "function",
    "arguments",
    "name",
    "type",
    "text",
]
NAMES += ["tool_choice", "functions", "function_call", "image_url", "parameters", "$ref", "refusal", "system"]
SEEDS = [orjson.dumps(value) for value in VALUES]
TARGET = Target(
    "messages", parse, SEEDS, mutated_values(VALUES, NAMES), (CorralError,), Limit(cpu_s=5.0, mib=128.0)
)
