"""Nothing a client sends stops the engine: extremes of every field, many at once, some of them leaving."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx
import pytest

from corral.api.schema.completion import CompletionRequest, SamplingFields
from corral.core.params import SAMPLER_NAMES
from tests.system.process import START_S, CorralProcess
from tests.tools.tiny_models import llama_bpe

N_REQUESTS = 400
NUMBERS = [name for name, field in CompletionRequest.model_fields.items() if field.annotation in (int, float)]
VALUES = [
    -(2**63),
    -1,
    0,
    1,
    2,
    7,
    2**31 - 1,
    2**31,
    2**53 + 1,
    1e-38,
    1e-3,
    0.5,
    0.999,
    1.5,
    1e3,
    1e4,
    1e308,
]
PROMPTS = ["", "a", "hello world " * 5, [5], [5] * 700, ["a", "b", [1, 2]], "\x00\u2028é🤗", "<|im_end|>" * 3]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    model = llama_bpe(tmp_path_factory.mktemp("models"))
    with CorralProcess("-m", model, "-c", 4096, "-np", 4, "--context-shift") as server:
        yield server


def body(rng: random.Random) -> dict:
    fields = rng.sample(NUMBERS, rng.randint(1, 6))
    request: dict[str, Any] = {name: rng.choice(VALUES) for name in fields}
    if rng.random() < 0.3:
        request["samplers"] = rng.choices(SAMPLER_NAMES, k=rng.randint(0, 6))
    if rng.random() < 0.2:
        request["logit_bias"] = [[t, rng.choice([False, 1e9, -1e9, 0])] for t in range(rng.choice([3, 327]))]
    if rng.random() < 0.2:
        request["dry_sequence_breakers"] = ["", "\x00", "a" * 1000, "é"]
        request["dry_multiplier"] = 1
    for name in ("ignore_eos", "cache_prompt", "post_sampling_probs", "penalize_nl", "return_tokens"):
        if rng.random() < 0.2:
            request[name] = rng.random() < 0.5
    if "n_predict" in request:
        request["n_predict"] = min(request["n_predict"], 300)
    return {"n_predict": rng.randint(0, 20), **request, "prompt": rng.choice(PROMPTS)}


async def test_extremes_of_every_field(server):
    engine = server.engine
    rng = random.Random(1)
    limit = asyncio.Semaphore(8)
    statuses = []

    async def send(http: httpx.AsyncClient, request: dict, leaves: bool) -> None:
        leaves = leaves or request["n_predict"] < 0  # without end: only leaving ends it
        async with limit:
            try:
                response = await http.post(
                    server.url + "/completion", json=request, timeout=0.2 if leaves else START_S
                )
                statuses.append(response.status_code)
                # Who will not wait is refused while others have the slots.
                refusal = {503} if request.get("max_queue_ms", -1) >= 0 else set()
                assert response.status_code in {200, 400, 501} | refusal, (request, response.text)
            except httpx.TimeoutException:
                assert leaves

    async with httpx.AsyncClient() as http:
        await asyncio.gather(*(send(http, body(rng), rng.random() < 0.1) for _ in range(N_REQUESTS)))
    assert server.engine.pid == engine.pid, "".join(server.lines)
    assert statuses.count(200) > N_REQUESTS / 10
    assert server.complete(prompt="hello", n_predict=3)["tokens_predicted"] == 3


def test_the_numeric_fields_are_really_swept():
    assert len(NUMBERS) >= 30
    assert set(SamplingFields.model_fields) & set(NUMBERS)
