"""A system prompt for everybody: changed by one request, seen by all that come after it."""

from __future__ import annotations

import asyncio

import pytest

from tests.contract.inline import Server
from tests.unit.fake import FakeBackend

SYSTEM = "You are a horse that answers whoever asks. "
NAMES = {"anti_prompt": "User:", "assistant_name": "Horse:"}
PROMPT = "hello world"
MESSAGES = [{"role": "user", "content": "hello"}]
BODY = {"n_predict": 20, "seed": 1, "ignore_eos": True}


@pytest.fixture
def server():
    return Server(FakeBackend(n_ctx=512), slots=True)


async def plain(**body) -> dict:
    """The answer of a server that has no system prompt."""
    return await Server(FakeBackend(n_ctx=512)).complete(**{**BODY, **body})


async def refused(server: Server, path: str = "/completion", **body) -> dict:
    response = await server.http.post(path, json=body)
    assert response.status_code == 400, response.text
    return response.json()["error"]


async def names(server: Server) -> tuple[str, str]:
    props = (await server.http.get("/props")).json()
    return props["assistant_name"], props["user_name"]


@pytest.mark.parametrize("given", [SYSTEM, {"prompt": SYSTEM}, {"prompt": SYSTEM, "anti_prompt": None}])
async def test_it_is_what_all_prompts_begin_with(server, given):
    expected = await plain(prompt=SYSTEM + PROMPT)
    first = await server.complete(prompt=PROMPT, system_prompt=given, **BODY)
    second = await server.complete(prompt=PROMPT, **BODY)
    for answer in (first, second):
        assert answer["content"] == expected["content"]
        assert answer["tokens_evaluated"] == len(SYSTEM + PROMPT)
        assert answer["prompt"] == PROMPT
        assert "warnings" not in answer
    other = await server.complete(prompt="other", **BODY)
    assert other["content"] == (await plain(prompt=SYSTEM + "other"))["content"]


async def test_a_list_of_prompts_and_several_answers(server):
    answers = await server.complete(prompt=[PROMPT, "other"], n=2, system_prompt=SYSTEM, **BODY)
    assert [a["prompt"] for a in answers] == [PROMPT, PROMPT, "other", "other"]
    assert answers[0]["content"] == (await plain(prompt=SYSTEM + PROMPT))["content"]
    assert answers[2]["content"] == (await plain(prompt=SYSTEM + "other"))["content"]


async def test_another_slot_does_not_evaluate_it_again(server):
    first = await server.complete(prompt=PROMPT, system_prompt=SYSTEM, id_slot=0, **BODY)
    assert (first["timings"]["cache_n"], first["timings"]["prompt_n"]) == (0, len(SYSTEM + PROMPT))
    second = await server.complete(prompt="quite another", id_slot=1, **BODY)
    assert second["timings"]["cache_n"] > len(SYSTEM) - 4
    assert second["timings"]["prompt_n"] < len("quite another") + 4


async def test_removal(server):
    await server.complete(prompt=PROMPT, system_prompt={"prompt": SYSTEM, **NAMES}, **BODY)
    for nothing in (None, [], {}):  # null is no change; the others are no system prompts
        response = await server.http.post(
            "/completion", json={"prompt": PROMPT, **BODY, "system_prompt": nothing}
        )
        assert response.status_code == (200 if nothing is None else 400)
        assert await names(server) == ("Horse:", "User:")
    for given in ("", {"prompt": ""}):
        await server.complete(prompt=PROMPT, system_prompt={"prompt": SYSTEM, **NAMES}, n_predict=1)
        answer = await server.complete(prompt=PROMPT, system_prompt=given, **BODY)
        assert answer["content"] == (await plain(prompt=PROMPT))["content"]
        assert answer["tokens_evaluated"] == len(PROMPT)
        assert await names(server) == ("", "")


async def test_a_change_alone(server):
    alone = await server.complete(system_prompt={"prompt": SYSTEM, **NAMES})
    assert (alone["content"], alone["prompt"]) == ("", "")
    assert alone["tokens_evaluated"] == alone["timings"]["prompt_n"] == len(SYSTEM)
    answer = await server.complete(prompt=PROMPT, **BODY)
    assert answer["timings"]["cache_n"] > len(SYSTEM) - 4
    assert (await refused(server, n_predict=1))["param"] == "prompt"


async def test_an_empty_prompt_is_answered_by_nothing(server):
    await server.complete(prompt=PROMPT, system_prompt=SYSTEM, **BODY)
    assert (await server.complete(prompt="", **BODY))["content"] == ""


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": "hot"},
        {"prompt": 5},
        {"prompt": "a" * 512},
        {"stop": [1]},
        {"samplers": ["nonsense"]},
        {"logit_bias": [[10**9, 1]]},
        {"id_slot": 99},
        {"n": 128, "prompt": [PROMPT] * 100},
        {"grammar": "wrong"},
        {"grammar": "wrong", "system_prompt": ""},
        {"grammar": "a", "json_schema": {}},
        {"system_prompt": 5},
        {"system_prompt": {"prompt": ["x"]}},
        {"system_prompt": {"prompt": "x", "anti_prompt": 5}},
        {"system_prompt": {"anti_prompt": "x"}},
        {"system_prompt": "a" * 511},
        {"system_prompt": "a" * 510},
        {"system_prompt": "a" * 100_000},
    ],
    ids=lambda change: str(change)[:50],
)
async def test_a_request_that_is_wrong_changes_nothing(server, change):
    await server.complete(prompt=PROMPT, system_prompt={"prompt": SYSTEM, **NAMES}, **BODY)
    before = server.services.defaults.system_prompt
    await refused(server, **{"prompt": PROMPT, "system_prompt": "new", **change})
    assert server.services.defaults.system_prompt is before
    answer = await server.complete(prompt=PROMPT, **BODY)
    assert answer["content"] == (await plain(prompt=SYSTEM + PROMPT))["content"]


async def test_the_error_names_the_field(server):
    error = await refused(server, prompt=PROMPT, system_prompt={"prompt": "x", "assistant_name": 5})
    assert error["param"] == "system_prompt"
    assert "assistant_name" in error["message"]


async def test_one_that_does_not_fit(server):
    for n in (511, 5000):
        error = await refused(server, prompt=PROMPT, system_prompt="a" * n)
        assert error["type"] == "exceed_context_size_error"
        assert error["n_ctx"] == 512
    await server.complete(prompt="x", system_prompt="a" * 510, n_predict=1)
    error = await refused(server, prompt="xy")
    assert (error["type"], error["n_prompt_tokens"]) == ("exceed_context_size_error", 512)


async def test_a_grammar_is_checked_and_followed(server):
    answer = await server.complete(prompt=PROMPT, system_prompt=SYSTEM, grammar="hello")
    assert answer["content"] == "hello"
    assert answer["tokens_evaluated"] == len(SYSTEM + PROMPT)
    answer = await server.complete(prompt=PROMPT, system_prompt="", grammar="hello")
    assert answer["content"] == "hello"
    assert answer["tokens_evaluated"] == len(PROMPT)


async def test_requests_in_flight_finish_with_the_old_one(server):
    await server.complete(prompt=PROMPT, system_prompt=SYSTEM, n_predict=1)
    server.engine.is_paused = True

    async def start(**body) -> asyncio.Task:
        n_tasks = server.engine.n_tasks
        request = asyncio.create_task(server.complete(**{**BODY, **body}))
        while server.engine.n_tasks == n_tasks:
            await asyncio.sleep(0)
        return request

    early = await start(prompt=PROMPT)
    for _ in range(3):
        server.engine.step()
    change = await start(prompt="other", system_prompt="Now you are a cow. ")
    late = await start(prompt=PROMPT)
    server.engine.is_paused = False
    assert (await early)["content"] == (await plain(prompt=SYSTEM + PROMPT))["content"]
    assert (await change)["content"] == (await plain(prompt="Now you are a cow. other"))["content"]
    assert (await late)["content"] == (await plain(prompt="Now you are a cow. " + PROMPT))["content"]


async def test_a_client_that_leaves_while_its_grammar_is_checked_changes_nothing(server):
    server.engine.is_paused = True
    body = {"prompt": PROMPT, "system_prompt": SYSTEM, "grammar": "hello"}
    request = asyncio.create_task(server.http.post("/completion", json=body))
    while not server.engine.n_tasks:
        await asyncio.sleep(0)
    request.cancel()
    await asyncio.wait({request})
    server.engine.is_paused = False
    assert server.engine.n_tasks == 0
    assert server.services.defaults.system_prompt.is_empty


async def test_the_anti_prompt_ends_every_answer(server):
    whole = (await plain(prompt=SYSTEM + PROMPT))["content"]
    word = whole[8:11]
    given = {"prompt": SYSTEM, "anti_prompt": word}
    await server.complete(prompt=PROMPT, system_prompt=given, n_predict=1)
    answer = await server.complete(prompt=PROMPT, **BODY)
    assert answer["content"] == whole[: whole.index(word)]
    assert (answer["stop_type"], answer["stopping_word"]) == ("word", word)
    own = await server.complete(prompt=PROMPT, stop=[whole[3:5]], **BODY)
    assert own["stopping_word"] == whole[3:5]
    assert own["generation_settings"]["stop"] == [whole[3:5], word]
    await server.complete(prompt=PROMPT, system_prompt=SYSTEM, n_predict=1)
    assert (await server.complete(prompt=PROMPT, **BODY))["content"] == whole


async def test_props_tell_the_names(server):
    assert await names(server) == ("", "")
    await server.complete(prompt=PROMPT, system_prompt={"prompt": SYSTEM, **NAMES}, n_predict=1)
    assert await names(server) == ("Horse:", "User:")


async def test_clients_see_their_own_prompt_and_settings(server):
    await server.complete(prompt=PROMPT, system_prompt=SYSTEM, n_predict=1)
    answer = await server.complete(prompt=PROMPT, n_keep=3, id_slot=0, **BODY)
    assert answer["prompt"] == PROMPT
    assert answer["generation_settings"]["n_keep"] == 3
    slot = (await server.http.get("/slots")).json()[0]
    assert slot["prompt"] == PROMPT
    assert slot["n_prompt_tokens"] == len(SYSTEM + PROMPT) + answer["tokens_predicted"] - 1
    assert slot["params"]["n_keep"] == 3
    body = {"prompt": PROMPT, "verbose": True, "max_tokens": 2}
    openai = (await server.http.post("/v1/completions", json=body)).json()
    assert openai["__verbose"]["prompt"] == PROMPT
    assert openai["usage"]["prompt_tokens"] == len(SYSTEM + PROMPT)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_chat_comes_behind_it(server, is_streamed):
    template = (await server.http.post("/apply-template", json={"messages": MESSAGES})).json()["prompt"]
    whole = await plain(prompt=SYSTEM + template)
    body = {"messages": MESSAGES, "system_prompt": SYSTEM, **BODY}
    if is_streamed:
        assert (await server.http.post("/chat/completions", json={**body, "stream": True})).status_code == 200
        del body["system_prompt"]
    answer = (await server.http.post("/v1/chat/completions", json={**body, "verbose": True})).json()
    assert answer["__verbose"]["content"] == whole["content"]
    assert answer["__verbose"]["prompt"] == (await plain(prompt=template))["prompt"]
    assert answer["usage"]["prompt_tokens"] == whole["tokens_evaluated"]
    counted = await server.http.post("/v1/chat/completions/input_tokens", json={"messages": MESSAGES})
    assert counted.json()["input_tokens"] == whole["tokens_evaluated"]


async def test_a_chat_that_is_wrong_changes_nothing(server):
    for change in (
        {"messages": []},
        {"top_logprobs": 2},
        {"response_format": 5},
        {"grammar": "wrong"},
        {"system_prompt": 5},
        {"system_prompt": "a" * 512},
    ):
        body = {"messages": MESSAGES, "system_prompt": SYSTEM, **change}
        await refused(server, "/v1/chat/completions", **body)
        assert server.services.defaults.system_prompt.is_empty


async def test_counting_tokens_changes_nothing(server):
    body = {"messages": MESSAGES}
    url = "/v1/chat/completions/input_tokens"
    n = (await server.http.post(url, json=body)).json()["input_tokens"]
    with_own = (await server.http.post(url, json={**body, "system_prompt": SYSTEM})).json()["input_tokens"]
    assert with_own == n + len(SYSTEM)
    assert server.services.defaults.system_prompt.is_empty


async def test_vectors_and_tokens_know_nothing_of_it(server):
    vector = (await server.http.post("/embedding", json={"content": PROMPT})).json()
    tokens = (await server.http.post("/tokenize", json={"content": PROMPT})).json()
    await server.complete(prompt=PROMPT, system_prompt=SYSTEM, n_predict=1)
    assert (await server.http.post("/embedding", json={"content": PROMPT})).json() == vector
    assert (await server.http.post("/tokenize", json={"content": PROMPT})).json() == tokens
