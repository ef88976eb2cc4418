"""Calls a tool and streams the answer with LangChain: `langchain_talk.py URL`."""

from __future__ import annotations

import sys

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def get_weather(city: str) -> str:
    """Tells the weather in a city."""
    return f"Rain in {city}."


llm = ChatOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", model="any", stream_usage=True).bind_tools(
    [get_weather]
)
messages = [HumanMessage("Do I need an umbrella in Paris?")]
asked = llm.invoke(messages)
messages += [asked, *(get_weather.invoke(call) for call in asked.tool_calls)]
for chunk in llm.stream(messages):
    sys.stdout.write(chunk.text)
