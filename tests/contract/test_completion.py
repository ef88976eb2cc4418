"""`POST /completion`, field by field."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.schema.completion import CompletionRequest
from tests.contract.inline import Server
from tests.contract.scripted import CharVocab, ScriptedServer
from tests.contract.wire import events_of, json_values
from tests.tools.examples import examples
from tests.unit.fake import EOG, FakeBackend

PROMPT = "hello world"


@pytest.fixture
def server():
    return Server()


async def stream(server: Server, **body) -> list[dict]:
    response = await server.http.post("/completion", json={**body, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return events_of(response.text)


async def test_the_answer_has_every_field_of_the_contract(server):
    answer = await server.complete(prompt=PROMPT, n_predict=5, seed=1, ignore_eos=True)
    assert answer["content"]
    assert answer["tokens"] == []
    assert answer["stop"] is True
    assert answer["model"] == "fake.gguf"
    assert answer["prompt"] == PROMPT
    assert answer["stop_type"] == "limit"
    assert (answer["stopped_eos"], answer["stopped_limit"], answer["stopped_word"]) == (False, True, False)
    assert answer["stopping_word"] == ""
    assert answer["tokens_predicted"] == answer["timings"]["predicted_n"] == 5
    assert answer["tokens_evaluated"] == len(PROMPT)
    assert answer["tokens_cached"] == len(PROMPT) + 4
    assert answer["truncated"] is False
    assert answer["has_new_line"] == ("\n" in answer["content"])
    assert answer["id_slot"] == 0
    assert answer["index"] == 0
    assert set(answer["timings"]) == {
        "cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second",
        "predicted_n", "predicted_ms", "predicted_per_token_ms", "predicted_per_second",
    }  # fmt: skip
    settings = answer["generation_settings"]
    assert settings["n_ctx"] == 256
    assert settings["model"] == "fake.gguf"
    assert settings["n_predict"] == settings["max_tokens"] == 5
    assert settings["seed"] == 1
    assert settings["logit_bias"] == [{"bias": None, "token": EOG}]
    assert "warnings" not in answer


@pytest.mark.parametrize("options", [{}, {"stop": ["e"]}, {"stop": "xyz"}, {"n_probs": 2}, {"n_predict": 0}])
async def test_streaming_joined_equals_not_streaming(server, options):
    body = {"prompt": PROMPT, "n_predict": 40, "seed": 3, **options}
    whole = await server.complete(**body)
    events = await stream(server, **body)
    assert "".join(e["content"] for e in events) == whole["content"]
    assert [e["stop"] for e in events] == [False] * (len(events) - 1) + [True]
    for key in ("stop_type", "stopping_word", "tokens_predicted", "tokens_evaluated", "truncated"):
        assert events[-1][key] == whole[key]
    for event in events[:-1]:
        assert set(event) >= {"content", "tokens", "stop", "index"}
        assert event["tokens"]


async def test_a_list_of_prompts_is_answered_by_a_list(server):
    answers = await server.complete(prompt=["one", [5, 6, 7]], n_predict=3, seed=1)
    assert [a["index"] for a in answers] == [0, 1]
    assert [a["prompt"] for a in answers] == ["one", server.backend.vocab.detokenize([5, 6, 7])]
    events = await stream(server, prompt=["one", [5, 6, 7]], n_predict=3, seed=1)
    for answer in answers:
        pieces = [e["content"] for e in events if e["index"] == answer["index"]]
        assert "".join(pieces) == answer["content"]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", "ab"),
        ([3, 4], "ab"),
        ([3, "bc", 6], "abcd"),
        ({"prompt_string": "ab"}, "ab"),
    ],
)
async def test_prompt_shapes(server, prompt, expected):
    assert (await server.complete(prompt=prompt, n_predict=1))["prompt"] == expected


@pytest.mark.parametrize("prompt", [["ab"], [[3, 4]], [[3, "b"]], [{"prompt_string": "ab"}]])
async def test_a_list_with_one_prompt_is_answered_by_one_object(server, prompt):
    body = {"prompt": prompt, "n_predict": 2, "seed": 1, "ignore_eos": True}
    answer = await server.complete(**body)
    assert (answer["prompt"], answer["index"], answer["stop"]) == ("ab", 0, True)
    events = await stream(server, **body)
    assert "".join(event["content"] for event in events) == answer["content"]
    assert {event["index"] for event in events} == {0}
    assert len(await server.complete(**body, n=2)) == 2


async def test_random_seeds_are_reported_and_reproduce(server):
    first = await server.complete(prompt=PROMPT, n_predict=10)
    second = await server.complete(prompt=PROMPT, n_predict=10, seed=first["generation_settings"]["seed"])
    assert first["content"] == second["content"]
    other = await server.complete(prompt=PROMPT, n_predict=10)
    assert first["generation_settings"]["seed"] != other["generation_settings"]["seed"]


async def test_return_tokens(server):
    answer = await server.complete(prompt=PROMPT, n_predict=4, return_tokens=True, ignore_eos=True)
    assert server.backend.vocab.detokenize(answer["tokens"]) == answer["content"]


async def test_probabilities_before_and_after_sampling(server):
    answer = await server.complete(prompt=PROMPT, n_predict=3, n_probs=2, ignore_eos=True)
    assert len(answer["completion_probabilities"]) == 3
    first = answer["completion_probabilities"][0]
    assert set(first) == {"id", "token", "bytes", "logprob", "top_logprobs", "content", "probs"}
    assert len(first["top_logprobs"]) == 2
    answer = await server.complete(prompt=PROMPT, n_predict=3, n_probs=2, post_sampling_probs=True)
    after = answer["completion_probabilities"][0]
    assert set(after) == {"id", "token", "bytes", "prob", "top_probs", "content", "probs"}
    events = await stream(server, prompt=PROMPT, n_predict=3, n_probs=2, ignore_eos=True)
    assert all(len(e["completion_probabilities"]) == 1 for e in events[:-1])
    assert "completion_probabilities" not in events[-1]


async def test_response_fields(server):
    fields = ["content", "generation_settings/n_predict", "absent", "timings/absent"]
    answer = await server.complete(prompt=PROMPT, n_predict=3, response_fields=fields)
    assert set(answer) == {"content", "generation_settings/n_predict"}


async def test_timings_and_progress_on_request():
    server = Server(FakeBackend(n_ubatch=16))
    plain = await stream(server, prompt=PROMPT, n_predict=2)
    assert all("timings" not in e for e in plain[:-1])
    events = await stream(server, prompt="x" * 40, n_predict=2, timings_per_token=True, return_progress=True)
    progress = [e["prompt_progress"] for e in events if "prompt_progress" in e]
    assert [p["processed"] for p in progress] == [0, 16, 32, 40]
    assert all("timings" in e for e in events[:-1] if "prompt_progress" not in e)


async def test_clamped_and_unknown_fields_come_back_as_warnings(server):
    answer = await server.complete(prompt=PROMPT, n_predict=1, top_p=7, foo=1, top_k=-3)
    assert answer["warnings"] == [
        "Field 'top_k': -3 was clamped to 0",
        "Field 'top_p': 7 was clamped to 1",
        "Field 'foo' is unknown and was ignored",
    ]
    assert answer["generation_settings"]["top_p"] == 1


async def test_null_means_the_default(server):
    answer = await server.complete(prompt=PROMPT, n_predict=1, temperature=None, stop=None, grammar=None)
    assert answer["generation_settings"]["temperature"] == 0.8


@pytest.mark.parametrize(
    ("samplers", "names"),
    [
        (["top_k", "typical_p", "temp", "top_k"], ["top_k", "typ_p", "temperature", "top_k"]),
        (["typ", "nucleus", "top-k"], ["typ_p", "top_p", "top_k"]),
        ("kfypmt", ["top_k", "tfs_z", "typ_p", "top_p", "min_p", "temperature"]),
        ([], []),
    ],
)
async def test_samplers_by_name_and_letter(server, samplers, names):
    answer = await server.complete(prompt=PROMPT, n_predict=1, samplers=samplers)
    assert answer["generation_settings"]["samplers"] == names


@pytest.mark.parametrize(
    ("bias", "expected"),
    [
        ([[5, 1.5]], [(5, 1.5)]),
        ([[5, False]], [(5, None)]),
        ([["ab", -1]], [(3, -1), (4, -1)]),
        ({"5": 2, "ab": False}, [(5, 2), (3, None), (4, None)]),
    ],
)
async def test_logit_bias_in_all_its_forms(server, bias, expected):
    answer = await server.complete(prompt=PROMPT, n_predict=1, logit_bias=bias)
    assert [(b["token"], b["bias"]) for b in answer["generation_settings"]["logit_bias"]] == expected


BAD = [
    ({}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": 5.5}, "prompt"),
    ({"prompt": [64]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [1, True]}, "prompt"),
    ({"prompt": [1.5]}, "prompt"),
    ({"prompt": [[1], {}]}, "prompt"),
    ({"prompt": {"x": 1}}, "prompt"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_k": 1.5}, "top_k"),
    ({"n_predict": -3}, "n_predict"),
    ({"n_predict": 2**31}, "n_predict"),
    ({"n_predict": "8"}, "n_predict"),
    ({"n_discard": -1}, "n_discard"),
    ({"dry_allowed_length": -1}, "dry_allowed_length"),
    ({"repeat_penalty": 0}, "repeat_penalty"),
    ({"stream": "yes"}, "stream"),
    ({"stop": [1]}, "stop"),
    ({"stop": ["a"] * 257}, "stop"),
    ({"samplers": ["no_such"]}, "samplers"),
    ({"samplers": "k?"}, "samplers"),
    ({"logit_bias": [[1]]}, "logit_bias"),
    ({"logit_bias": [[64, 1]]}, "logit_bias"),
    ({"logit_bias": [[1, "x"]]}, "logit_bias"),
    ({"logit_bias": 5}, "logit_bias"),
    ({"id_slot": 4}, "id_slot"),
    ({"id_slot": -2}, "id_slot"),
    ({"n_probs": 2**30}, "n_probs"),
    ({"penalty_prompt": [99]}, "penalty_prompt"),
    ({"response_fields": "content"}, "response_fields"),
]


@pytest.mark.parametrize(("change", "field"), BAD, ids=lambda v: json.dumps(v)[:40])
async def test_bad_input_names_the_field_and_the_reason(server, change, field):
    body = {**({} if field == "prompt" else {"prompt": PROMPT}), "n_predict": 1, **change}
    response = await server.http.post("/completion", json=body)
    error = response.json()["error"]
    assert response.status_code == error["code"] == 400
    assert error["type"] == "invalid_request_error"
    assert error["param"] == field
    assert f"'{field}'" in error["message"]
    assert not server.engine.has_work


async def test_several_answers_for_several_prompts(server):
    answers = await server.complete(prompt=["a" * 20, "b" * 20], n=2, n_predict=6, seed=5, ignore_eos=True)
    assert [answer["index"] for answer in answers] == [0, 1, 2, 3]
    assert [answer["prompt"][0] for answer in answers] == ["a", "a", "b", "b"]
    assert [answer["generation_settings"]["seed"] for answer in answers] == [5, 6, 5, 6]
    assert server.backend.n_prompt_tokens_evaluated == 40
    response = await server.http.post("/completion", json={"prompt": ["a"] * 100, "n": 20})
    assert response.json()["error"]["param"] == "n"


async def test_an_answer_in_a_grammar(server):
    answer = await server.complete(prompt=PROMPT, grammar="hello")
    assert (answer["content"], answer["stop_type"]) == ("hello", "eos")
    assert answer["generation_settings"]["grammar"] == "hello"
    cut = await server.complete(prompt=PROMPT, grammar="hello", n_predict=2)
    assert (cut["content"], cut["stop_type"], cut["truncated_grammar"]) == ("he", "limit", True)
    both = {"prompt": PROMPT, "grammar": "hello", "json_schema": {}}
    response = await server.http.post("/completion", json=both)
    assert response.json()["error"]["param"] == "grammar"


@pytest.mark.parametrize(
    "change",
    [
        {"image_data": [{"id": 1, "data": ""}]},
        {"prompt": {"prompt_string": "a<__media__>", "multimodal_data": ["x"]}},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_what_is_not_possible_here_is_refused_not_ignored(server, change):
    response = await server.http.post("/completion", json={"prompt": PROMPT, **change})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("change", [{"grammar": ""}, {"image_data": []}, {"lora": []}, {"system_prompt": ""}])
async def test_empty_values_are_fine(server, change):
    await server.complete(prompt=PROMPT, n_predict=1, **change)


@pytest.mark.parametrize("prompt", ["a" * 256, [1] * 256, "a" * 5000])
async def test_a_prompt_longer_than_the_context(server, prompt):
    response = await server.http.post("/completion", json={"prompt": prompt})
    error = response.json()["error"]
    assert response.status_code == error["code"] == 400
    assert error["type"] == "exceed_context_size_error"
    assert error["n_ctx"] == 256
    assert error["n_prompt_tokens"] >= 256
    assert "exceeds the available context size" in error["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'"x"', b"\xff", b'{"prompt": NaN}', b"[" * 100_000])
async def test_a_body_that_is_no_request(server, body):
    response = await server.http.post("/completion", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_any_content_type_is_read_as_json(server):
    for headers in (
        {},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
    ):
        body = json.dumps({"prompt": PROMPT, "n_predict": 1})
        assert (await server.http.post("/completion", content=body, headers=headers)).status_code == 200


async def test_a_body_over_the_limit_is_cut_off():
    server = Server(max_body_mib=1)

    async def endless():
        for _ in range(64):
            yield b" " * 65536

    response = await server.http.post("/completion", content=endless())
    assert response.status_code == response.json()["error"]["code"] == 413


NUMERIC = [
    name
    for name, field in CompletionRequest.model_fields.items()
    if field.annotation in (int, float) and name != "n"
]
VALUES = [-(2**63), -1, 0, 2**31, 2**53 + 1, 1e308, "1", True, None, [], {}]


@pytest.mark.parametrize("field", NUMERIC)
async def test_no_number_breaks_the_server(field):
    server = Server()
    for value in VALUES:
        response = await server.http.post("/completion", json={"prompt": "a", "n_predict": 2, field: value})
        assert response.status_code in (200, 400, 501), response.text
    response = await server.http.post("/completion", content=b'{"prompt": "a", "%s": NaN}' % field.encode())
    assert response.status_code == 400


bodies = st.dictionaries(st.sampled_from(sorted(CompletionRequest.model_fields)), json_values, max_size=6)


@given(bodies)
@examples(200)
def test_no_body_gives_a_server_error(body):
    async def post() -> httpx.Response:
        return await Server().http.post("/completion", json={"n_predict": 2, **body})

    assert asyncio.run(post()).status_code in (200, 400, 501)


async def test_a_client_that_leaves_frees_its_slot(server):
    request = asyncio.create_task(
        server.http.post("/completion", json={"prompt": PROMPT, "n_predict": -1, "ignore_eos": True})
    )
    while not server.engine.has_work:
        await asyncio.sleep(0)
    server.engine.is_paused = True
    request.cancel()
    while server.engine.has_work:
        await asyncio.sleep(0)
    assert server.engine.telemetry.slots.n_idle == 4


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"prompt": [1] * 100_000}, "exceed_context_size_error"),
        ({"penalty_prompt": "a" * 100_000}, "exceed_context_size_error"),
        ({"logit_bias": [["a" * 2000, 1]]}, "invalid_request_error"),
        ({"prompt": ["a"] * 2000}, "invalid_request_error"),
    ],
)
async def test_hopeless_sizes_are_refused_before_any_work(server, change, kind):
    response = await server.http.post("/completion", json={"prompt": PROMPT, **change})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == kind


async def test_an_empty_prompt_gives_an_empty_answer(server):
    answer = await server.complete(prompt="")
    assert (answer["content"], answer["tokens_predicted"], answer["stop_type"]) == ("", 0, "none")
    (event,) = await stream(server, prompt="")
    assert event["stop"] is True


class ByteVocab(CharVocab):
    """Tokens are bytes, as in a model that has no token for a character."""

    def piece(self, token: int, special: bool = False) -> bytes:
        return bytes([token - 1]) if token != EOG else super().piece(token, special)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("stop", [[], ["zz"]])  # with a stop word, another path ends the answer
@pytest.mark.parametrize(
    ("n_predict", "text"), [(1, "a"), (2, "a€"), (3, "a€"), (4, "a€"), (5, "a€😀"), (8, "a€😀"), (9, "a€😀b")]
)
async def test_a_character_that_has_begun_is_completed(n_predict, text, stop, is_stream):
    server = ScriptedServer()
    server.scripted.vocab = ByteVocab()
    server.say("a€😀bc".encode().decode("latin-1"))
    body = {"prompt": "x", "n_predict": n_predict, "stop": stop, "stream": is_stream}
    answer = await server.http.post("/completion", json=body)
    parts = events_of(answer.text) if is_stream else [answer.json()]
    assert "".join(part["content"] for part in parts) == text
    assert parts[-1]["stop_type"] == "limit"
    assert parts[-1]["tokens_predicted"] == len(text.encode())


async def test_bytes_that_complete_nothing_end_soon():
    server = ScriptedServer()
    server.scripted.vocab = ByteVocab()
    server.say("\xf0" * 20)
    assert (await server.complete(prompt="x", n_predict=2))["tokens_predicted"] <= 5


PIECES = (b"a", b" \xf0\x9f\x98", b"\x80", b" \xe2", b"\x82\xac! \xe2\x82", b"\xac")


class PieceVocab(CharVocab):
    """Tokens are texts and parts of characters at the same time, as of any model that merges bytes."""

    def piece(self, token: int, special: bool = False) -> bytes:
        return PIECES[token - 1] if token != EOG else super().piece(token, special)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("options", [{}, {"stop": ["zz"]}, {"n_probs": 1}, {"t_max_predict_ms": 100_000}])
async def test_text_before_the_part_of_a_character_is_kept(options, is_stream):
    server = ScriptedServer()
    server.scripted.vocab = PieceVocab()
    server.say("".join(map(chr, range(len(PIECES)))))
    body = {"prompt": "x", "n_predict": len(PIECES), "stream": is_stream, **options}
    answer = await server.http.post("/completion", json=body)
    parts = events_of(answer.text) if is_stream else [answer.json()]
    assert "".join(part["content"] for part in parts) == "a 😀 €! €"
    if is_stream:
        assert [token for part in parts for token in part["tokens"]] == [1, 2, 3, 4, 5, 6]
