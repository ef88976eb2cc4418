"""The engine dies or hangs in the middle of eight streams: no token is lost, doubled or changed."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from tests.system.process import CorralProcess, Stream
from tests.tools.wait import wait_until_async

N_STREAMS = 8
N_PREDICT = 32
PROMPTS = [
    "Once upon a time",
    "The three most important things in life are",
    "def fibonacci(n):",
    "In the year 2050, the city of London",
    "My favourite recipe begins with",
    "Dear Sir or Madam,",
    "A short history of the steam engine:",
    "The cat sat on",
]
KINDS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"seed": 2, "grammar": 'root ::= ("the cat sat on " [a-z]+ " and ")+'},
    {"seed": 3, "repeat_penalty": 1.3},
    {"seed": 4, "mirostat": 2},
    {"seed": 5, "xtc_probability": 0.5},
    {"seed": 6, "mirostat": 1},
    {"seed": 7, "dry_multiplier": 0.8},
    {"temperature": 0, "n_probs": 2},
]


@pytest.fixture(scope="module")
def server():
    with CorralProcess(
        "-c", 512 * N_STREAMS, "-np", N_STREAMS, "--engine-timeout", 2, "--batch-exact"
    ) as server:
        yield server


def start(server: CorralProcess) -> list[Stream]:
    return [
        Stream(server.url, prompt=prompt, n_predict=N_PREDICT, ignore_eos=True, **kind)
        for prompt, kind in zip(PROMPTS, KINDS, strict=True)
    ]


def is_healthy(server: CorralProcess) -> bool:
    health = server.get("/health")
    assert health.status_code == 200 or health.json()["error"]["type"] == "unavailable_error"
    return health.status_code == 200


async def finish(streams: list[Stream]) -> list[tuple[str, list[int]]]:
    await asyncio.gather(*(stream.task for stream in streams))
    for stream in streams:
        assert [e["stop"] for e in stream.events] == [False] * (len(stream.events) - 1) + [True]
        assert stream.events[-1]["tokens_predicted"] == len(stream.tokens) == N_PREDICT
    return [(stream.text, stream.tokens) for stream in streams]


@pytest.fixture(scope="module")
def undisturbed(server):
    async def ask() -> list[tuple[str, list[int]]]:
        return await finish(start(server))

    return asyncio.run(ask())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_streams_go_on_token_exact(server, undisturbed, number):
    streams = start(server)
    for stream in streams:
        await stream.reach(10)
    lost = server.engine
    lost.send_signal(number)
    await wait_until_async(lambda: not is_healthy(server) or server.engine.pid != lost.pid, 0.02)
    assert await finish(streams) == undisturbed
    server.next_engine(lost)
    await wait_until_async(lambda: is_healthy(server), 0.02)


async def test_a_checked_answer_goes_on_although_choices_were_taken_back(server):
    """The last letters take most of the redraws, so an engine is killed in the middle of one."""
    items = {"type": "string", "pattern": "^[a-h]$"}
    schema = {"type": "array", "items": items, "minItems": 8, "maxItems": 8, "uniqueItems": True}
    ask: Any = {"prompt": "Letters:", "json_schema": schema, "seed": 1, "temperature": 2.0}
    undisturbed = Stream(server.url, **ask)
    await undisturbed.task
    assert undisturbed.events[-1]["stop_type"] == "eos"
    assert undisturbed.events[-1]["timings"]["redrawn_n"]
    stream = Stream(server.url, **ask)
    for n in (len(undisturbed.events) // 2, len(undisturbed.events) * 3 // 4):
        await stream.reach(n)
        lost = server.engine
        lost.send_signal(signal.SIGKILL)
        await stream.reach(n + 2)
        server.next_engine(lost)
    await stream.task
    assert (stream.text, stream.tokens) == (undisturbed.text, undisturbed.tokens)


async def test_a_request_that_arrives_while_the_engine_is_away_is_answered(server):
    expected = server.complete(prompt=PROMPTS[0], n_predict=5, temperature=0)["content"]
    server.engine.send_signal(signal.SIGKILL)
    assert server.complete(prompt=PROMPTS[0], n_predict=5, temperature=0)["content"] == expected
