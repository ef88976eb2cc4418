"""`POST /infill`, field by field."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.fim import FimTokens
from corral.schema.infill import MAX_EXTRAS, MAX_NAME_CHARS, InfillRequest
from tests.contract.fim import MID, N_CTX, PRE, REP, SUF, infill_server
from tests.contract.inline import Server
from tests.contract.wire import events_of, json_values
from tests.tools.examples import examples

GAP: dict[str, Any] = {"input_prefix": "def f", "input_suffix": "end"}
PROMPT = ".def f,end;"


@pytest.fixture
def server():
    return infill_server(FimTokens(PRE, SUF, MID))


async def infill(server: Server, **body):
    response = await server.http.post("/infill", json={**GAP, **body})
    assert response.status_code == 200, response.text
    return response.json()


async def stream(server: Server, **body) -> list[dict]:
    response = await server.http.post("/infill", json={**GAP, **body, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return events_of(response.text)


async def refused(server: Server, status: Any = 400, **body: Any) -> dict:
    response = await server.http.post("/infill", json=body)
    assert response.status_code == status, response.text
    return response.json()["error"]


def timeless(answer: dict) -> dict:
    return {key: value for key, value in answer.items() if key not in ("timings", "id_slot")}


async def test_the_answer_is_that_of_a_completion(server):
    options = {"n_predict": 5, "seed": 1, "cache_prompt": False, "return_tokens": True, "n_probs": 1}
    answer = await infill(server, prompt="ab", **options)
    assert answer["prompt"] == PROMPT + "ab"
    tokens = server.backend.vocab.tokenize(PROMPT + "ab", False, False)
    assert timeless(answer) == timeless(await server.complete(prompt=tokens, **options))
    assert "warnings" not in answer


@pytest.mark.parametrize("options", [{}, {"stop": ["e"]}, {"grammar": "a text"}, {"n_predict": 0}])
async def test_streaming_joined_equals_not_streaming(server, options):
    body = {"prompt": "ab", "n_predict": 40, "seed": 3, **options}
    whole = await infill(server, **body)
    events = await stream(server, **body)
    assert "".join(e["content"] for e in events) == whole["content"]
    assert [e["stop"] for e in events] == [False] * (len(events) - 1) + [True]
    for key in ("stop_type", "stopping_word", "tokens_predicted", "tokens_evaluated", "prompt"):
        assert events[-1][key] == whole[key]


async def test_a_grammar_is_followed(server):
    assert (await infill(server, grammar="a text"))["content"] == "a text"


async def test_several_answers_are_a_list(server):
    answers = await infill(server, n=3, n_predict=4, seed=7)
    assert [a["index"] for a in answers] == [0, 1, 2]
    assert {a["prompt"] for a in answers} == {PROMPT}


async def test_other_files_come_first():
    server = infill_server()
    extras = [{"filename": "one", "text": "first"}, {"text": "second", "time": 5}]
    answer = await infill(server, input_extra=extras, n_predict=1)
    assert answer["prompt"] == f":myproject\n!one\nfirst!tmp\nsecond!filename\n{PROMPT}"


async def test_the_suffix_comes_first_where_the_server_is_told_so():
    server = infill_server(FimTokens(PRE, SUF, MID), spm_infill=True)
    assert (await infill(server, prompt="ab", n_predict=1))["prompt"] == ",end.def f;ab"


async def test_a_system_prompt_precedes_everything(server):
    answer = await infill(server, system_prompt="be kind", n_predict=1)
    again = await infill(server, n_predict=1)
    for one in (answer, again):
        assert one["prompt"] == PROMPT
        assert one["tokens_evaluated"] == len("be kind") + len(PROMPT)
    assert server.services.defaults.system_prompt.tokens
    error = await refused(server, **GAP, system_prompt=5)
    assert error["param"] == "system_prompt"


async def test_a_request_that_only_fills_the_cache():
    """As editors send it while somebody reads: nothing is generated, nothing comes back."""
    server = infill_server()
    extras = [{"filename": "one", "text": "first" * 20}]
    body = {"input_prefix": "", "input_suffix": "", "prompt": "", "input_extra": extras}
    assert await infill(server, **body, n_predict=0, samplers=[], response_fields=[""]) == {}
    answer = await infill(server, input_extra=extras, n_predict=1)
    assert answer["timings"]["cache_n"] > 100


async def test_what_is_cut_is_said():
    """The context is smaller than a batch, and everything is longer than the context."""
    server = infill_server(n_ctx=128, n_batch=2048)
    body = {
        "input_prefix": "a" * 5000,
        "input_suffix": "b" * 5000,
        "input_extra": [{"text": "c" * 5000}],
        "n_predict": -1,
        "temprature": 1,
    }
    answer = await infill(server, **body)
    a, b, c = (answer["prompt"].count(letter) for letter in "abc")
    assert answer["prompt"].endswith(f".{'a' * a},{'b' * b};")
    assert (a, b) == (69, 21)
    assert answer["tokens_evaluated"] == 128 - 128 // 4
    assert answer["tokens_predicted"] > 0
    warnings = [
        "Field 'temprature' is unknown and was ignored",
        f"Field 'input_prefix': kept the last {a} of more than {128 * 32} tokens",
        f"Field 'input_suffix': kept the first {b} of more than {128 * 32} tokens",
    ]
    assert answer["warnings"][:3] == warnings
    assert answer["warnings"][3].startswith("Field 'input_extra': kept the last 3 of more than ")
    assert c < 5000
    events = await stream(server, **body)
    assert events[-1]["warnings"] == answer["warnings"]
    assert all("warnings" not in event for event in events[:-1])


@pytest.mark.parametrize(("n_ctx", "n_batch"), [(16, 2048), (64, 64), (256, 128)])
@pytest.mark.parametrize("n_predict", [-2, -1, 0, 1, 10_000])
async def test_no_length_is_refused(n_ctx, n_batch, n_predict):
    server = infill_server(n_ctx=n_ctx, n_batch=n_batch)
    long = "a" * 3 * n_ctx
    extras = [{"text": long}] * 3
    answer = await infill(
        server, input_prefix=long, input_suffix=long, input_extra=extras, n_predict=n_predict
    )
    assert answer["tokens_evaluated"] < n_ctx
    assert len(answer["warnings"]) == 3


async def test_a_prompt_that_cannot_fit_is_refused(server):
    error = await refused(server, **GAP, prompt="a" * N_CTX)
    assert error["type"] == "exceed_context_size_error"
    assert error["n_ctx"] == N_CTX


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"input_prefix": None}, "input_prefix"),
        ({"input_suffix": None}, "input_suffix"),
        ({"input_prefix": 5}, "input_prefix"),
        ({"input_prefix": ["a", None]}, "input_prefix"),
        ({"input_suffix": {"text": "a"}}, "input_suffix"),
        ({"input_suffix": [3, 64]}, "input_suffix"),
        ({"input_suffix": [-1]}, "input_suffix"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["a"]}, "prompt"),
        ({"input_extra": "abc"}, "input_extra"),
        ({"input_extra": {"text": "a"}}, "input_extra"),
        ({"input_extra": [{"text": ""}] * (MAX_EXTRAS + 1)}, "input_extra"),
        ({"input_extra": ["abc"]}, "input_extra[0]"),
        ({"input_extra": [{}]}, "input_extra[0].text"),
        ({"input_extra": [{"filename": "ok"}]}, "input_extra[0].text"),
        ({"input_extra": [{"text": "a"}, {"text": "b"}, {"text": 456}]}, "input_extra[2].text"),
        ({"input_extra": [{"filename": 123, "text": "abc"}]}, "input_extra[0].filename"),
        ({"input_extra": [{"filename": "a" * (MAX_NAME_CHARS + 1), "text": ""}]}, "input_extra[0].filename"),
        ({"n_predict": "x"}, "n_predict"),
        ({"samplers": ["unknown"]}, "samplers"),
    ],
)
async def test_an_error_names_the_place(server, change, place):
    error = await refused(server, **{**GAP, **change})
    assert error["param"] == place
    assert error["message"].startswith(f"Field '{place}': ")
    assert error["type"] == "invalid_request_error"


async def test_a_list_of_nonsense_is_refused_at_its_first_item(server):
    assert (await refused(server, **{**GAP, "input_prefix": [None] * 500_000}))["param"] == "input_prefix"


async def test_nulls_count_as_absent(server):
    extras = [{"filename": None, "text": "a"}]
    assert "warnings" not in await infill(server, prompt=None, input_extra=extras, n_predict=1)
    assert (await infill(server, input_extra=None, n_predict=1))["prompt"] == PROMPT


@pytest.mark.parametrize("body", [GAP, {}])
async def test_a_model_without_the_tokens_is_named(body):
    error = await refused(infill_server(FimTokens(pre=PRE, rep=REP)), 501, **body)
    assert error["type"] == "not_supported_error"
    message = "Infill is not supported by this model: it has no suffix token, no middle token"
    assert error["message"] == message


async def test_a_server_that_only_embeds_does_not_infill(server):
    server.services.engine.info = msgspec.structs.replace(server.engine.info, can_generate=False)
    assert "does not support completions" in (await refused(server, 501, **GAP))["message"]


bodies = st.dictionaries(st.sampled_from(sorted(InfillRequest.model_fields)), json_values, max_size=6)


@given(bodies)
@examples(200)
def test_no_body_gives_a_server_error(body):
    async def post() -> httpx.Response:
        return await infill_server().http.post("/infill", json={"n_predict": 2, **GAP, **body})

    assert asyncio.run(post()).status_code in (200, 400, 501)
