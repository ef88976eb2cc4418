"""`logprobs` of `POST /v1/completions`, in the shape that OpenAI's clients read."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from corral.api.openai.logprobs import TextLogprobs
from corral.core.result import TokenProb, TokenProbs
from corral.core.top_probs import TopProbs
from tests.contract.inline import Server, post

PATH = "/v1/completions"
ASKED = {"prompt": "hello", "max_tokens": 6, "seed": 1, "ignore_eos": True}
LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


@pytest.fixture
def server():
    return Server()


async def chunks(server: Server, **body) -> list[dict]:
    response = await server.http.post(PATH, json={**ASKED, **body, "stream": True})
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line)["choices"][0] for line in lines]


@pytest.mark.parametrize("n", [0, 1, 3])
async def test_lists_of_tokens(server, n):
    (choice,) = (await post(server, PATH, json={**ASKED, "logprobs": n}))["choices"]
    logprobs = choice["logprobs"]
    assert {len(logprobs[name]) for name in (*LISTS, "content")} == {6}
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert logprobs["token_logprobs"] == [entry["logprob"] for entry in logprobs["content"]]
    for i, token in enumerate(logprobs["tokens"]):
        assert choice["text"][logprobs["text_offset"][i] :].startswith(token)
        assert logprobs["top_logprobs"][i][token] == logprobs["token_logprobs"][i] <= 0
        rivals = [entry["token"] for entry in logprobs["content"][i]["top_logprobs"]]
        assert list(logprobs["top_logprobs"][i]) == list(dict.fromkeys([*rivals, token]))
        assert len(rivals) == n


async def test_a_stream_goes_on_where_it_was(server):
    (choice,) = (await post(server, PATH, json={**ASKED, "logprobs": 2, "n": 1}))["choices"]
    streamed = [chunk["logprobs"] for chunk in await chunks(server, logprobs=2) if chunk["logprobs"]]
    assert len(streamed) == 6
    for name in (*LISTS, "content"):
        assert [item for part in streamed for item in part[name]] == choice["logprobs"][name]


async def test_every_answer_counts_for_itself(server):
    answer = await post(server, PATH, json={**ASKED, "prompt": ["a", "b"], "logprobs": 1})
    assert [choice["logprobs"]["text_offset"][0] for choice in answer["choices"]] == [0, 0]


async def test_no_logprobs_unless_they_are_asked_for(server):
    assert (await post(server, PATH, json=ASKED))["choices"][0]["logprobs"] is None
    assert (await post(server, PATH, json={**ASKED, "logprobs": None}))["choices"][0]["logprobs"] is None
    (choice,) = (await post(server, PATH, json={**ASKED, "n_probs": 2}))["choices"]
    assert [len(entry["top_logprobs"]) for entry in choice["logprobs"]["content"]] == [2] * 6
    assert len(choice["logprobs"]["tokens"]) == 6


@pytest.mark.parametrize("value", [-1, "1", True, 1.5, 2**31, 2**30])
async def test_a_number_that_makes_no_sense(server, value):
    error = await post(server, PATH, 400, json={**ASKED, "logprobs": value})
    assert error["param"] == "logprobs"


def test_tokens_that_are_parts_of_characters():
    class WordVocab:
        def piece(self, token: int, special: bool = False) -> bytes:
            return [b"a", "\u00e9".encode()[:1], "\u00e9".encode()[1:], b"z", b"<end>" if special else b""][
                token
            ]

    chosen = [TokenProbs(TokenProb(i, 0.5), TopProbs.of([TokenProb(3, 0.0)])) for i in range(5)]
    vocab: Any = WordVocab()
    lists = TextLogprobs(vocab)
    parts = [lists.render(chosen[:2]), lists.render(chosen[2:])]
    tokens = [token for part in parts for token in part["tokens"]]
    assert tokens == ["a", "bytes:\\xc3", "bytes:\\xa9", "z", "<end>"]
    assert [offset for part in parts for offset in part["text_offset"]] == [0, 1, 1, 2, 3]
    assert parts[0]["token_logprobs"] == [math.log(0.5)] * 2
    assert all(math.isfinite(value) for value in parts[0]["top_logprobs"][0].values())
