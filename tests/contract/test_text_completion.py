"""`POST /v1/completions`: the best of several answers, answers before a suffix, options of streams."""

from __future__ import annotations

import json
from typing import Any

import pytest

from corral.api.openai.best import best_choices
from corral.core.client import ANONYMOUS
from corral.core.fim import FimTokens
from corral.core.params import GenerationParams
from corral.core.result import TokenProb, TokenProbs
from corral.core.task import Task
from corral.core.top_probs import TopProbs
from corral.generate.choice import Choice
from corral.generate.key_limits import Place
from corral.link.stream import TaskStream
from tests.contract.fim import MID, PRE, SUF, infill_server
from tests.contract.inline import Server, post

PATH = "/v1/completions"
ASKED: dict[str, Any] = {"prompt": "hello", "max_tokens": 4, "seed": 7, "ignore_eos": True}


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def infiller():
    return infill_server(FimTokens(PRE, SUF, MID))


def choice_of(index: int, *probs: float) -> Choice:
    choice = Choice(
        index, Task(prompt=[], params=GenerationParams()), TaskStream(lambda: None), Place(ANONYMOUS, 0)
    )
    choice.probs = [TokenProbs(TokenProb(0, prob), TopProbs()) for prob in probs]
    return choice


def test_the_best_answers_are_the_most_probable_per_token():
    first = [choice_of(0, 0.1), choice_of(1, 0.5, 0.5, 0.5), choice_of(2, 0.9, 0.1)]
    then = [choice_of(3, 0.0), choice_of(4, 0.2), choice_of(5, 0.1)]
    best = best_choices([*first, *then], 3, 2)
    assert [choice.probs for choice in best] == [c.probs for c in (first[1], first[2], then[1], then[2])]
    assert [choice.index for choice in best] == [0, 1, 2, 3]
    assert [choice.index for choice in first] == [0, 1, 2]


async def test_the_best_of_several(server):
    answer = await post(server, PATH, json={**ASKED, "prompt": ["ab", "cd"], "n": 2, "best_of": 5})
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["completion_tokens"] == 2 * 5 * 4
    assert answer["usage"]["prompt_tokens"] == 4
    assert all(choice["logprobs"] is None for choice in answer["choices"])
    drawn = await post(server, PATH, json={**ASKED, "prompt": "ab", "n": 5})
    assert answer["choices"][0]["text"] in [choice["text"] for choice in drawn["choices"]]
    (shown,) = (await post(server, PATH, json={**ASKED, "best_of": 3, "logprobs": 2, "echo": True}))[
        "choices"
    ]
    assert "".join(shown["logprobs"]["tokens"]) == shown["text"]
    assert shown["text"].startswith("hello")


async def test_as_many_as_there_are_is_all_of_them(server):
    plain = await post(server, PATH, json={**ASKED, "n": 2})
    assert (await post(server, PATH, json={**ASKED, "n": 2, "best_of": 2}))["choices"] == plain["choices"]
    response = await server.http.post(PATH, json={**ASKED, "n": 2, "best_of": 2, "stream": True})
    assert response.status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"n": 3, "best_of": 2},
        {"best_of": 2, "stream": True},
        {"best_of": 0},
        {"best_of": 129},
        {"best_of": "2"},
    ],
)
async def test_what_best_of_cannot_be(server, body):
    assert (await post(server, PATH, 400, json={**ASKED, **body}))["param"] == "best_of"


async def test_too_many_answers_in_all(server):
    body = {**ASKED, "prompt": ["a"] * 20, "best_of": 100}
    assert (await post(server, PATH, 400, json=body))["param"] == "best_of"


async def test_a_suffix_is_infilled(infiller):
    """The same tokens as /infill, and so the same answer."""
    body = {**ASKED, "prompt": "def f", "suffix": "end"}
    (choice,) = (await post(infiller, PATH, json=body))["choices"]
    prompt = infiller.engine.submitted[-1].prompt
    assert infiller.backend.vocab.detokenize(prompt) == ".def f,end;"
    whole = {"input_prefix": "def f", "input_suffix": "end", "n_predict": 4, "seed": 7, "ignore_eos": True}
    assert (await post(infiller, "/infill", json=whole))["content"] == choice["text"]
    assert infiller.engine.submitted[-1].params == infiller.engine.submitted[-2].params


async def test_a_suffix_of_several_prompts_and_of_tokens(infiller):
    tokens = infiller.backend.vocab.tokenize("cd", False, False)
    answer = await post(infiller, PATH, json={**ASKED, "prompt": ["ab", tokens], "suffix": "end", "n": 2})
    prompts = [infiller.backend.vocab.detokenize(task.prompt) for task in infiller.engine.submitted]
    assert prompts == [".ab,end;"] * 2 + [".cd,end;"] * 2
    assert len(answer["choices"]) == 4


async def test_what_is_cut_has_the_clients_name(infiller):
    answer = await post(infiller, PATH, json={**ASKED, "prompt": "a" * 900, "suffix": "b" * 900})
    assert [warning.split("'")[1] for warning in answer["warnings"]] == ["prompt", "suffix"]
    error = await post(infiller, PATH, 400, json={**ASKED, "prompt": [[10**6]], "suffix": "b"})
    assert error["param"] == "prompt"


async def test_a_model_that_cannot_infill_says_what_it_lacks(server):
    error = await post(server, PATH, 400, json={**ASKED, "suffix": "end"})
    assert error["param"] == "suffix"
    assert "no middle token" in error["message"]
    assert (await post(server, PATH, json={**ASKED, "suffix": ""}))["choices"]


@pytest.mark.parametrize("path", [PATH, "/v1/chat/completions"])
async def test_options_of_a_stream(server, path):
    body = {**ASKED, "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    del body["messages" if path == PATH else "prompt"]
    counts = {}
    for usage in (True, False, None):
        for padding in (True, False, None):
            options = {"include_usage": usage, "include_obfuscation": padding}
            response = await server.http.post(path, json={**body, "stream_options": options})
            lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
            assert lines.pop() == "[DONE]"
            events = [json.loads(line) for line in lines]
            assert ("usage" in events[-1] and events[-1]["choices"] == []) is bool(usage)
            assert not any("warnings" in event for event in events)
            counts[usage, padding] = len(events)
    assert len(set(counts.values())) == 2
    assert (await server.http.post(path, json={**body, "stream_options": None})).status_code == 200


async def test_parameters_of_the_engine_are_not_fields(server):
    """A name that only the server uses is as unknown as any other."""
    for name, value in {"n_prompt_probs": "x", "special": True, "preserved": 5, "constraint": 1}.items():
        answer = await post(server, PATH, json={**ASKED, name: value})
        assert [warning.split("'")[1] for warning in answer["warnings"]] == [name]
        params = server.engine.submitted[-1].params
        assert getattr(params, name) == getattr(GenerationParams(), name)
