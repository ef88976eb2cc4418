"""Durable streams: all processes are killed, and what clients get is what an undisturbed server sends."""

from __future__ import annotations

import random
from typing import Any

import openai
import pytest

from tests.system.durable import (
    CHAT,
    MESSAGES,
    TOOL,
    Asked,
    Behind,
    Kill,
    Reborn,
    by_choice,
    check_bytes,
    run,
)
from tests.tools.cut_proxy import CutProxy

ASKED: Asked = [
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


async def test_streams_continue_after_everything_is_killed(options):
    with Reborn(*options) as reborn:
        undisturbed = await run(reborn, ASKED, 500, [])
        disturbed = await run(reborn, ASKED, 500, [(10, reborn.kill), (50, reborn.kill)])
        assert max(reader.n_posts for reader in disturbed) >= 3
        for first, second in zip(undisturbed, disturbed, strict=True):
            assert by_choice(first.events) == by_choice(second.events)
        await check_bytes(reborn, disturbed)


@pytest.mark.parametrize("has_journal", [True, False])
async def test_streams_continue_after_the_network_was_lost(options, has_journal):
    place = options.index("--journal")
    with Reborn(*(options if has_journal else options[:place] + options[place + 2 :])) as reborn:
        undisturbed = await run(reborn, ASKED, 500, [])
        with CutProxy(int(reborn.url.rpartition(":")[2])) as proxy:
            behind = Behind(proxy)
            disturbed = await run(behind, ASKED, 500, [(10, behind.cut), (50, behind.cut)])
            assert proxy.n_cut >= 2  # the other streams may have ended
        for first, second in zip(undisturbed, disturbed, strict=True):
            assert by_choice(first.events) == by_choice(second.events)
        await check_bytes(reborn, disturbed)


async def test_the_openai_client_continues(options):
    """Its own door: a response in the background; and a chat, with the id that its headers have."""
    ask: Any = {"model": "any", "extra_body": {"seed": 1, "ignore_eos": True, "cache_prompt": False}}
    response: Any = {**ask, "input": "hello", "max_output_tokens": 200, "background": True}
    chat: Any = {**ask, "messages": MESSAGES, "max_tokens": 200}
    chat["extra_body"] = {**chat["extra_body"], "durable": True}
    with Reborn(*options) as reborn:
        async with connect(reborn) as client:
            stream = await client.responses.create(**response, stream=True)
            seen = [await anext(stream) for _ in range(20)]
            chunks = await client.chat.completions.create(**chat, stream=True)
            first = await anext(chunks)
            await reborn.kill()
        async with connect(reborn) as client:
            last = {"Last-Event-ID": f"{chunks.response.headers['x-conversation-id']}.0"}
            again = await client.chat.completions.create(**chat, stream=True, extra_headers=last)
            parts = [chunk async for chunk in again]
            assert parts[0] == first
            text = "".join(part.choices[0].delta.content or "" for part in parts)
            whole = await client.chat.completions.create(**chat)
            assert text == whole.choices[0].message.content
            id, number = seen[0].response.id, seen[-1].sequence_number
            rest = await client.responses.retrieve(id, stream=True, starting_after=number)
            seen += [event async for event in rest]
            assert [event.sequence_number for event in seen] == list(range(len(seen)))
            undisturbed = await client.responses.create(**{**response, "background": False})
            assert seen[-1].response.output_text == undisturbed.output_text


def connect(reborn: Reborn) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{reborn.server.url}/v1", api_key="none", max_retries=20)


@pytest.mark.slow
async def test_twenty_streams_and_ten_kills(options):
    asked = [(path, {**body, "seed": i}) for i in range(20) for path, body in [ASKED[i % len(ASKED)]]]
    chance = random.Random(1)
    with Reborn(*options) as reborn:
        ways: list[Kill] = [reborn.kill, reborn.kill_front, reborn.kill_engine] * 4
        chance.shuffle(ways)
        kills = list(zip(sorted(chance.sample(range(5, 380), 10)), ways, strict=False))
        undisturbed = await run(reborn, asked, 400, [])
        disturbed = await run(reborn, asked, 400, kills)
        for first, second in zip(undisturbed, disturbed, strict=True):
            assert by_choice(first.events) == by_choice(second.events)
        await check_bytes(reborn, disturbed)
