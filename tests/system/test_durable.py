"""Durable streams: all processes are killed, and what clients get is what an undisturbed server sends."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx
import pytest

from tests.system.durable import Reader, Reborn, by_choice

CHAT = "/v1/chat/completions"
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"words": {"type": "array", "items": {"type": "string"}, "minItems": 40}},
            "required": ["words"],
        },
    },
}
MESSAGES = [{"role": "user", "content": "hello world"}]
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/completion", {"prompt": "hello", "seed": 1}),
    ("/completion", {"prompt": "the", "seed": 2, "grammar": 'root ::= ("the cat sat on " [a-z]+ " and ")+'}),
    ("/completion", {"prompt": "you", "seed": 3, "n": 2, "n_probs": 2, "timings_per_token": True}),
    (CHAT, {"messages": MESSAGES, "seed": 4, "tools": [TOOL], "tool_choice": "required"}),
    (CHAT, {"messages": MESSAGES, "seed": 5, "n": 2, "stream_options": {"include_usage": True}}),
    ("/v1/completions", {"prompt": "that", "temperature": 0, "logprobs": 1}),
]


@pytest.fixture(scope="module")
def options(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("journal")
    return ("-m", tiny, "-c", 4096, "-np", 4, "--journal", folder, "--no-warmup")


def start(reborn: Reborn, asked: list[tuple[str, dict[str, Any]]], n_predict: int) -> list[Reader]:
    limits = {"n_predict": n_predict, "ignore_eos": True}
    return [Reader(reborn, path, {**body, **limits}) for path, body in asked]


async def run(
    reborn: Reborn, asked: list[tuple[str, dict[str, Any]]], n_predict: int, kills: list[int]
) -> list[Reader]:
    """Ask everything; kill the server each time some streams have so many events."""
    readers = start(reborn, asked, n_predict)
    for n in kills:
        await asyncio.gather(*(reader.reach(n) for reader in readers[:3]))
        await reborn.kill()
    await asyncio.gather(*(reader.task for reader in readers))
    return readers


async def check_bytes(reborn: Reborn, readers: list[Reader]) -> None:
    """What the last server has is what its clients got from all servers, to the byte."""
    async with httpx.AsyncClient(base_url=reborn.server.url) as http:
        for reader in readers:
            whole = await http.get("/v1/stream", params={"conv_id": reader.id})
            lines = [line for line in whole.text.splitlines() if not line.startswith("id: ")]
            assert "\n".join(lines).strip() == reader.data.decode().strip()


async def test_streams_continue_after_everything_is_killed(options):
    with Reborn(*options) as reborn:
        undisturbed = await run(reborn, ASKED, 120, [])
        disturbed = await run(reborn, ASKED, 120, [10, 50])
        assert max(reader.n_posts for reader in disturbed) >= 3
        for first, second in zip(undisturbed, disturbed, strict=True):
            assert by_choice(first.events) == by_choice(second.events)
        await check_bytes(reborn, disturbed)


@pytest.mark.slow
async def test_twenty_streams_and_ten_kills(options):
    asked = [(path, {**body, "seed": i}) for i in range(20) for path, body in [ASKED[i % len(ASKED)]]]
    order = random.Random(1)
    kills = sorted(order.sample(range(5, 380), 10))
    with Reborn(*options) as reborn:
        undisturbed = await run(reborn, asked, 400, [])
        disturbed = await run(reborn, asked, 400, kills)
        for first, second in zip(undisturbed, disturbed, strict=True):
            assert by_choice(first.events) == by_choice(second.events)
        await check_bytes(reborn, disturbed)
