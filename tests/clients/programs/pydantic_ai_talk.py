"""Calls a tool and streams the answer with pydantic-ai: `pydantic_ai_talk.py URL`."""

from __future__ import annotations

import asyncio
import sys

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

model = OpenAIChatModel("any", provider=OpenAIProvider(base_url=f"{sys.argv[1]}/v1", api_key="none"))
agent = Agent(model, instructions="Be brief.")


@agent.tool_plain
def get_weather(city: str) -> str:
    """Tells the weather in a city."""
    return f"Rain in {city}."


async def talk() -> None:
    async with agent.run_stream("Do I need an umbrella in Paris?") as answer:
        async for piece in answer.stream_text(delta=True):
            sys.stdout.write(piece)


asyncio.run(talk())
