"""Calls a tool and streams the answer with LiteLLM: `litellm_talk.py URL`."""

from __future__ import annotations

import json
import sys
from typing import Any

import litellm

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def ask(**options: Any) -> Any:
    url = f"{sys.argv[1]}/v1"
    return litellm.completion(
        model="openai/any", api_base=url, api_key="none", messages=messages, tools=[WEATHER], **options
    )


messages: list[Any] = [{"role": "user", "content": "Do I need an umbrella in Paris?"}]
asked = ask().choices[0].message
messages.append(asked)
for call in asked.tool_calls:
    city = json.loads(call.function.arguments)["city"]
    messages.append({"role": "tool", "tool_call_id": call.id, "content": f"Rain in {city}."})
for chunk in ask(stream=True, stream_options={"include_usage": True}):
    sys.stdout.write((chunk.choices[0].delta.content or "") if chunk.choices else "")
