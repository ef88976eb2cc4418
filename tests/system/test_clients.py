"""Real clients on a real socket: cancels, the openai package, many at once."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest

from tests.system.process import START_S, Stream


async def idle(corral) -> None:
    while corral.get("/health").json()["slots_processing"]:
        await asyncio.sleep(0.01)


async def test_a_client_that_leaves_a_stream_frees_the_slot(corral):
    stream = Stream(corral.url, prompt="Tell me a story", n_predict=-1, ignore_eos=True)
    await stream.reach(3)
    stream.task.cancel()
    await idle(corral)


def test_a_client_that_leaves_before_its_answer_frees_the_slot(corral):
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            corral.url + "/completion",
            json={"prompt": "Tell me a story", "n_predict": -1, "ignore_eos": True},
            timeout=httpx.Timeout(START_S, read=0.5),
        )
    asyncio.run(idle(corral))


async def test_a_client_that_leaves_during_a_long_prompt_frees_the_slot(corral):
    prompt = [1000 + i % 3000 for i in range(1000)]
    body = {"prompt": prompt, "cache_prompt": False, "id_slot": 0}
    async with httpx.AsyncClient(timeout=START_S) as http:
        request = asyncio.create_task(http.post(corral.url + "/completion", json=body))
        while not corral.get("/health").json()["slots_processing"]:
            await asyncio.sleep(0.01)
        request.cancel()
        await idle(corral)
    slot = corral.get("/slots").json()[0]
    assert slot["n_prompt_tokens_processed"] < 1000, "the prompt was evaluated to its end all the same"


def test_the_answer_does_not_depend_on_what_runs_beside_it(corral):
    body = {"prompt": "The capital of France is", "n_predict": 24, "seed": 5, "ignore_eos": True}
    alone = corral.complete(**body)["content"]

    async def crowd() -> str:
        others = [
            Stream(corral.url, prompt=f"Question {i}: why", n_predict=40, ignore_eos=True) for i in range(3)
        ]
        for other in others:
            await other.reach(2)
        stream = Stream(corral.url, **body)
        await asyncio.gather(stream.task, *(other.task for other in others))
        return stream.text

    assert asyncio.run(crowd()) == alone


def test_more_requests_than_slots_are_all_answered(corral):
    async def ask() -> list[str]:
        streams = [Stream(corral.url, prompt=f"{i} plus {i} is", n_predict=6) for i in range(12)]
        await asyncio.gather(*(stream.task for stream in streams))
        return [stream.events[-1]["stop_type"] for stream in streams]

    assert len(asyncio.run(ask())) == 12


@pytest.fixture
def client(corral):
    with openai.OpenAI(base_url=f"{corral.url}/v1", api_key="none") as client:
        yield client


def test_the_openai_package_completes(client):
    prompt = "I believe the meaning of life is"
    options: dict[str, Any] = {"model": "any", "prompt": prompt, "max_tokens": 8, "temperature": 0, "seed": 1}
    whole = client.completions.create(**options)
    assert whole.choices[0].text
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 8
    assert whole.model == "any"
    assert whole.system_fingerprint.startswith("b")
    chunks = list(client.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert all(c.usage is None for c in chunks[:-1])
    two = client.completions.create(**{**options, "prompt": ["One", "Two"]})
    assert [c.index for c in two.choices] == [0, 1]


def test_the_openai_package_understands_our_errors(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="any", prompt="x", max_tokens=-7)
    assert caught.value.param == "max_tokens"
