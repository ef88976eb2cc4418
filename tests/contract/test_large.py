"""Requests that ask for much: refused before anything is generated, or answered as short ones are."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import orjson
import pytest

from corral.api.render.native import MAX_ECHO_CHARS, MAX_ECHO_ITEMS
from corral.schema.nested import MAX_BIASES
from corral.text.json_depth import MAX_FIELDS, SLICE_BYTES
from tests.contract.inline import Server, post
from tests.contract.wire import events_of
from tests.unit.fake import FakeBackend


def many_keys(n: int, before: bytes = b"") -> bytes:
    return b'{"prompt":"a",' + before + b",".join(b'"k%d":0' % i for i in range(n)) + b"}"


@pytest.mark.parametrize("route", ["/completion", "/v1/chat/completions", "/tokenize", "/embedding"])
@pytest.mark.parametrize("n", [MAX_FIELDS + 1, 100_000])
async def test_too_many_fields_are_a_400_that_names_the_first(route, n):
    error = await post(Server(), route, 400, content=many_keys(n).replace(b'"prompt":"a",', b""))
    assert str(MAX_FIELDS) in error["message"]
    assert "'k0', 'k1', 'k2'" in error["message"]
    assert "k3" not in error["message"]


async def test_as_many_fields_as_may_be_are_ignored_with_warnings():
    answer = await post(Server(), "/completion", content=many_keys(MAX_FIELDS - 1))
    assert len(answer["warnings"]) < 40


async def test_the_first_fields_may_be_long():
    body = many_keys(5000, before=b'"stop":"' + b"x" * (2 << 20) + b'",')
    error = await post(Server(), "/completion", 400, content=body)
    assert str(MAX_FIELDS) in error["message"]


async def test_a_long_array_is_no_object():
    for body in (b"[" + b"1," * 2000 + b"1]", b"[" + b"1," * 200_000 + b"1]"):
        error = await post(Server(), "/completion", 400, content=body)
        assert "object" in error["message"]


@pytest.mark.parametrize("route", ["/completion", "/tokenize", "/detokenize"])
async def test_a_long_body_is_read_as_a_short_one(route):
    """White space alone makes it long."""
    server = Server()
    fields = {"prompt": "abc", "content": "abc", "tokens": [1, 2, 3], "n_predict": 3, "seed": 1, "top_k": 1}
    short = orjson.dumps(fields)
    long = short[:-1] + b" " * (2 * SLICE_BYTES) + b"}"
    answers = [await post(server, route, content=body) for body in (short, long)]
    for answer in answers:
        for name in ("timings", "id_slot", "tokens_cached"):
            answer.pop(name, None)
    assert answers[0] == answers[1]


@pytest.mark.parametrize("broken", [b"", b",}", b"]", b'"', b"}}", b"\\"])
async def test_a_long_body_that_is_broken_is_a_400(broken):
    body = b'{"prompt":"' + b"a" * SLICE_BYTES + b'","x":[' + b"1," * SLICE_BYTES + b"1]" + broken
    error = await post(Server(), "/completion", 400, content=body)
    assert "not valid JSON" in error["message"]


async def test_long_lists_are_checked_to_their_end():
    server = Server()
    tokens = [1] * 100_000
    assert len((await post(server, "/detokenize", json={"tokens": tokens}))["content"]) > 0
    for wrong in ("x", -1, 1.5, True, 2**31):
        error = await post(server, "/detokenize", 400, json={"tokens": [*tokens, wrong]})
        assert error["param"] == "tokens"
        error = await post(server, "/tokenize", 400, json={"content": [*tokens, wrong, None]})
        assert error["param"] == "content"


def refused_size(error: dict) -> str:
    assert "--max-response-mb" in error["message"]
    return error["param"]


async def test_probabilities_are_counted_before_anything_is_generated():
    server = Server(max_response_mib=1)
    asked = {"prompt": "a", "n_predict": 20, "n_probs": 10, "ignore_eos": True}
    assert (await post(server, "/completion", json={**asked, "n": 2}))[1]["completion_probabilities"]
    for more in ({"n": 100}, {"n_predict": 2000}, {"n_probs": 1000}, {"prompt": ["a"] * 100}):
        error = await post(server, "/completion", 400, json={**asked, **more})
        assert refused_size(error) == "n_probs"
        assert all(f"'{name}'" in error["message"] for name in ("n_probs", "n_predict"))
    error = await post(server, "/v1/completions", 400, json={**asked, "n_probs": 0, "logprobs": 1000})
    assert refused_size(error) == "logprobs"
    messages = [{"role": "user", "content": "a"}]
    chat = {"messages": messages, "max_tokens": 4000, "logprobs": True}
    assert refused_size(await post(server, "/v1/chat/completions", 400, json=chat)) == "logprobs"
    assert not server.engine.submitted[2:], "nothing was generated for them"


async def test_of_a_stream_only_an_event_counts():
    server = Server(max_response_mib=1)
    body = {"prompt": "a", "n_predict": 3000, "n_probs": 10, "stream": True, "stop": ["a", "e"]}
    response = await server.http.post("/completion", json=body)
    assert response.status_code == 200
    assert refused_size(await post(server, "/completion", 400, json={**body, "n_probs": 9000})) == "n_probs"


async def test_what_is_repeated_of_a_request_counts():
    server = Server(FakeBackend(n_ctx=4096), max_response_mib=1)
    asked = {"prompt": "ab" * 1000, "n_predict": 1}
    assert await post(server, "/completion", json={**asked, "n": 2})
    assert refused_size(await post(server, "/completion", 400, json={**asked, "n": 128})) == "n"
    assert await post(server, "/v1/completions", json={**asked, "n": 128}), "it repeats nothing"


async def test_so_do_pieces_of_tokens_and_vectors():
    server = Server(max_response_mib=1)
    text = {"content": "a" * 40_000}
    assert len((await post(server, "/tokenize", json=text))["tokens"]) == 40_000
    error = await post(server, "/tokenize", 400, json={**text, "with_pieces": True})
    assert refused_size(error) == "content"
    assert refused_size(await post(server, "/embedding", 400, json={"content": ["a"] * 60_000})) == "content"


async def test_settings_are_shown_in_part_where_they_are_long():
    server = Server(FakeBackend(n_ctx=8192))
    few = [[i % 50, 0.5] for i in range(MAX_ECHO_ITEMS)]
    settings = (await server.complete(prompt="a", n_predict=1, logit_bias=few))["generation_settings"]
    assert len(settings["logit_bias"]) == MAX_ECHO_ITEMS
    assert "abbreviated" not in settings
    long = {
        "logit_bias": few * 2,
        "penalty_prompt": [1] * 5000,
        "stop": ["x" * 4000] * 20,
        "dry_sequence_breakers": ["y" * 4000] * 20,
        "grammar": 'root ::= "a"' + " " * 20_000,
    }
    settings = (await server.complete(prompt="a", n_predict=1, **long))["generation_settings"]
    assert len(settings["logit_bias"]) == len(settings["penalty_prompt_tokens"]) == MAX_ECHO_ITEMS
    assert len(settings["stop"]) == len(settings["dry_sequence_breakers"]) == MAX_ECHO_CHARS // 4000
    assert len(settings["grammar"]) == MAX_ECHO_CHARS
    cut = settings["abbreviated"]
    assert cut["logit_bias"] == 2 * MAX_ECHO_ITEMS
    assert set(cut) == {*long, "penalty_prompt_tokens"} - {"penalty_prompt"}


async def test_texts_with_a_bias_may_not_have_any_number_of_tokens():
    texts = [["a" * 1000, 0.5]] * (MAX_BIASES // 1000 + 1)
    error = await post(Server(), "/completion", 400, json={"prompt": "a", "logit_bias": texts})
    assert error["param"] == "logit_bias"


OTHER_DIALECTS = ["/v1/messages", "/v1/messages/count_tokens", "/api/chat", "/api/generate", "/api/embed"]


@pytest.mark.parametrize("route", OTHER_DIALECTS)
async def test_other_dialects_refuse_too_many_fields(route):
    response = await Server().http.post(route, content=many_keys(100_000))
    assert response.status_code == 400
    assert str(MAX_FIELDS) in response.text


@pytest.mark.parametrize("route", ["/v1/messages", "/api/chat"])
async def test_other_dialects_read_long_bodies_in_the_shared_threads(route, monkeypatch):
    server = Server(n_threads_http=4)
    asked = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 3, "stream": False}
    names = []
    run_text = server.services.pools.run_text

    async def run(client, function, *args):
        names.append(function.__name__)
        return await run_text(client, function, *args)

    monkeypatch.setattr(server.services.pools, "run_text", run)
    short = orjson.dumps(asked)
    for body in (short, short[:-1] + b" " * (2 * SLICE_BYTES) + b"}"):
        response = await server.http.post(route, content=body)
        assert response.status_code == 200, response.text
    assert names == ["_parse_long"]


async def test_answers_of_other_dialects_are_bounded():
    server = Server(max_response_mib=1)
    asked = {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "stream": False}
    body = {**asked, "top_logprobs": 100, "options": {"num_predict": 200}}
    response = await server.http.post("/api/chat", json=body)
    assert response.status_code == 400
    assert "--max-response-mb" in response.text
    response = await server.http.post("/api/embed", json={"input": ["a"] * 60_000})
    assert response.status_code == 400
    assert "--max-response-mb" in response.text


async def test_a_long_answer_of_lines_says_the_same_as_a_stream():
    server = Server()
    asked = {"messages": [{"role": "user", "content": "abc"}], "logprobs": True, "top_logprobs": 1000}
    body = {**asked, "options": {"num_predict": 10, "seed": 1, "top_k": 1}}
    whole = await server.http.post("/api/chat", json={**body, "stream": False})
    assert "content-length" not in whole.headers, "it is sent in pieces"
    streamed = await server.http.post("/api/chat", json=body)
    lines = [orjson.loads(line) for line in streamed.text.splitlines()]
    assert whole.json()["logprobs"] == [prob for line in lines for prob in line.get("logprobs", [])]
    assert len(whole.json()["logprobs"][0]["top_logprobs"]) == 1000


@pytest.mark.parametrize("dialect", ["/completion", "/v1/completions", "/v1/chat/completions"])
async def test_a_long_answer_says_the_same_as_a_stream(dialect):
    server = Server()
    asked = {"n_predict": 40, "n_probs": 300, "logprobs": 300, "ignore_eos": True, "seed": 1, "top_k": 1}
    body = {"prompt": "abc", **asked}
    if "chat" in dialect:
        body = {
            "messages": [{"role": "user", "content": "abc"}],
            **asked,
            "logprobs": True,
            "top_logprobs": 300,
        }
    whole = await server.http.post(dialect, json=body)
    assert whole.status_code == 200
    assert "content-length" not in whole.headers, "it is sent in pieces"
    streamed = await server.http.post(dialect, json={**body, "stream": True})
    events = events_of(streamed.text.removesuffix("data: [DONE]\n\n"))
    assert probs_of(whole.json()) == [p for event in events for p in probs_of(event)]
    assert len(probs_of(whole.json())) == 40


def probs_of(answer: dict) -> list[dict]:
    if "choices" not in answer:
        return answer.get("completion_probabilities") or []
    choices = answer["choices"]
    return [p for choice in choices for p in (choice.get("logprobs") or {}).get("content", [])]


async def test_a_long_answer_ends_with_its_client():
    server = Server()
    left, body = asyncio.Event(), orjson.dumps({"content": "a" * 500_000, "with_pieces": True})

    async def receive() -> dict:
        if not sent:
            return {"type": "http.request", "body": body}
        left.set()
        return {"type": "http.disconnect"}

    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)
        await asyncio.sleep(0)

    scope = {
        **{"type": "http", "method": "POST", "path": "/tokenize", "raw_path": b"/tokenize", "headers": []},
        **{"query_string": b"", "root_path": "", "scheme": "http", "http_version": "1.1"},
        **{"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "asgi": {"version": "3.0"}, "state": {}},
    }
    await server.app(scope, receive, send)
    assert left.is_set()
    assert sum(len(message.get("body", b"")) for message in sent) < 8_000_000
