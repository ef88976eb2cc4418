"""`echo` of `POST /v1/completions`: the prompt and its probabilities before the answer."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.api.openai.echo import echo_prompt
from corral.api.render.native import logprob_of
from corral.core.client import ANONYMOUS
from corral.core.params import GenerationParams
from corral.core.result import Admitted, PromptProbs
from corral.core.task import Task
from corral.generate.choice import Choice
from corral.generate.key_limits import Place
from corral.link.stream import TaskStream
from corral.server.record_middleware import RecordMiddleware
from tests.contract.inline import Server, post
from tests.unit.fake import N_VOCAB, FakeBackend, FakeVocab
from tests.unit.token_by_token import expected

PATH = "/v1/completions"
LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
ASKED: dict[str, Any] = {
    "prompt": "hello there",
    "max_tokens": 4,
    "seed": 1,
    "ignore_eos": True,
    "echo": True,
}


@pytest.fixture
def server():
    return Server()


def tokens_of(server: Server, text: str) -> list[int]:
    return server.backend.vocab.tokenize(text, False, False)


async def chunks(server: Server, **body) -> list[dict]:
    response = await server.http.post(PATH, json={**ASKED, **body, "stream": True})
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line)["choices"][0] for line in lines]


async def test_the_prompt_comes_first(server):
    (plain,) = (await post(server, PATH, json={**ASKED, "echo": False}))["choices"]
    (choice,) = (await post(server, PATH, json=ASKED))["choices"]
    assert choice == {**plain, "text": "hello there" + plain["text"]}


@pytest.mark.parametrize("n", [0, 1, 3])
async def test_every_token_of_the_prompt_has_its_probability(server, n):
    answer = await post(server, PATH, json={**ASKED, "logprobs": n})
    (choice,) = answer["choices"]
    logprobs, n_prompt = choice["logprobs"], len("hello there")
    assert {len(logprobs[name]) for name in LISTS} == {n_prompt + 4}
    assert len(logprobs["content"]) == 4
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert [choice["text"][i] for i in logprobs["text_offset"]] == logprobs["tokens"]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    known = expected(tokens_of(server, "hello there"), n)
    assert logprobs["token_logprobs"][1:n_prompt] == [logprob_of(p.chosen) for p in known]
    for i, p in enumerate(known, 1):
        top = logprobs["top_logprobs"][i]
        assert top[logprobs["tokens"][i]] == logprobs["token_logprobs"][i]
        assert set(top.values()) == {logprob_of(each) for each in (p.chosen, *p.top)}
    assert answer["usage"]["completion_tokens"] == 4


async def test_a_prompt_alone(server):
    answer = await post(server, PATH, json={**ASKED, "max_tokens": 0, "logprobs": 1})
    (choice,) = answer["choices"]
    assert choice["text"] == "hello there"
    assert choice["finish_reason"] == "length"
    assert len(choice["logprobs"]["tokens"]) == len("hello there")
    assert choice["logprobs"]["content"] == []
    assert answer["usage"]["completion_tokens"] == 0


async def test_what_lm_eval_sends(server):
    """Contexts and continuations as token ids, in a batch; it reads all but the last entry."""
    prompts = [tokens_of(server, text) for text in ("the cat sat", "a", "no, dogs and cats")]
    body = {"prompt": prompts, "max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0, "seed": 1234}
    choices = (await post(server, PATH, json=body))["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    for prompt, choice in zip(prompts, choices, strict=True):
        logprobs = choice["logprobs"]
        known = [logprob_of(p.chosen) for p in expected(prompt, 1)]
        assert logprobs["token_logprobs"][:-1] == [None, *known]
        for token, top in zip(logprobs["token_logprobs"][1:-1], logprobs["top_logprobs"][1:-1], strict=True):
            assert token in top.values()


async def test_a_cached_prompt_says_the_same(server):
    long = {**ASKED, "prompt": "hello there " * 5, "logprobs": 2}
    first = await post(server, PATH, json=long)
    again = await post(server, PATH, json=long)
    assert again["choices"] == first["choices"]
    assert again["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    plain = await post(server, PATH, json={**long, "echo": False})
    assert plain["usage"]["prompt_tokens_details"] == {"cached_tokens": 52}
    assert first["choices"][0]["text"] == long["prompt"] + plain["choices"][0]["text"]


async def test_streamed_and_whole_agree(server):
    for body in ({"logprobs": 2}, {}, {"logprobs": 1, "max_tokens": 0}, {"prompt": ["ab", "cd"], "n": 2}):
        whole = (await post(server, PATH, json={**ASKED, **body}))["choices"]
        streamed = await chunks(server, **body)
        for choice in whole:
            own = [chunk for chunk in streamed if chunk["index"] == choice["index"]]
            assert "".join(chunk["text"] for chunk in own) == choice["text"]
            parts = [chunk["logprobs"] for chunk in own if chunk["logprobs"]]
            assert [part is not None for part in parts] != [] or choice["logprobs"] is None
            for name in (*LISTS, "content") if choice["logprobs"] else ():
                assert [item for part in parts for item in part[name]] == choice["logprobs"][name]


async def test_the_servers_system_prompt_is_not_repeated(server):
    await server.complete(system_prompt="be kind. ")
    (choice,) = (await post(server, PATH, json={**ASKED, "logprobs": 1}))["choices"]
    assert choice["text"].startswith("hello there")
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == choice["text"]
    known = expected(tokens_of(server, "be kind. hello there"), 1)
    assert logprobs["token_logprobs"][:11] == [logprob_of(p.chosen) for p in known][8:]


async def test_limits_and_conflicts(server):
    for n in (1025, 2**20):
        assert (await post(server, PATH, 400, json={**ASKED, "logprobs": n}))["param"] == "logprobs"
    (choice,) = (await post(server, PATH, json={**ASKED, "logprobs": 1024}))["choices"]
    assert len(choice["logprobs"]["top_logprobs"][1]) > 60
    error = await post(server, PATH, 400, json={**ASKED, "prompt": ["a" * 200] * 1000, "logprobs": 20})
    assert (error["param"], "fewer prompts" in error["message"]) == ("logprobs", True)
    error = await post(server, PATH, 400, json={**ASKED, "suffix": "x"})
    assert error["param"] == "echo"


async def test_a_lost_engine_repeats_what_it_has_said(server):
    """An engine that takes over evaluates the prompt again."""
    probs = expected(tokens_of(server, "hello there"), 0)
    choice = Choice(
        0, Task(prompt=[], params=GenerationParams()), TaskStream(lambda: None), Place(ANONYMOUS, 0)
    )
    choice.add_result(Admitted(0, 0, 0))
    for start, end in ((0, 4), (4, 8), (0, 4), (4, 8), (8, 10)):
        choice.add_result(PromptProbs(task_id=0, start=start + 1, probs=probs[start:end]))
    assert choice.prompt_probs == probs


async def test_the_openai_client_reads_it(server):
    app: Any = RecordMiddleware(server.app, server.app.observers)
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app))
    client = openai.AsyncOpenAI(base_url="http://corral/v1", api_key="none", http_client=http)
    options: dict[str, Any] = {"model": "any", "prompt": "hello", "max_tokens": 2, "seed": 1}
    answer = await client.completions.create(**options, echo=True, logprobs=2)
    logprobs: Any = answer.choices[0].logprobs
    assert logprobs.tokens[:5] == list("hello")
    assert logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in logprobs.token_logprobs[1:])
    assert logprobs.text_offset[:6] == list(range(6))
    stream = await client.completions.create(**options, echo=True, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == answer.choices[0].text


class SpacedVocab(FakeVocab):
    """Begins every text with BOS and a space, as some tokenizers do."""

    bos = 5

    def piece(self, token: int, special: bool = False) -> bytes:
        if token == self.bos:
            return b"<s>" if special else b""
        return [b" h", b"i", "é".encode()[:1], "é".encode()[1:], b""][token]


def test_what_a_tokenizer_adds_has_no_place_in_the_text():
    vocab = SpacedVocab()
    echo = echo_prompt("hié", [5, 0, 1, 2, 3], vocab)
    assert (echo.text, echo.offsets) == ("hié", [0, 0, 1, 2, 2])
    echo = echo_prompt(None, [5, 0, 1], vocab)
    assert (echo.text, echo.offsets) == ("<s> hi", [0, 3, 5])
    echo = echo_prompt("normalized away", [0, 1], vocab)
    assert (echo.text, echo.offsets) == (" hi", [0, 2])


@given(st.lists(st.integers(1, N_VOCAB - 1), max_size=40))
def test_offsets_are_where_tokens_begin(tokens):
    vocab: Any = FakeBackend().vocab
    echo = echo_prompt(None, tokens, vocab)
    assert echo.text == vocab.detokenize(tokens)
    assert len(echo.offsets) == len(tokens)
    for token, offset in zip(tokens, echo.offsets, strict=True):
        assert echo.text.startswith(vocab.piece(token).decode(), offset)
