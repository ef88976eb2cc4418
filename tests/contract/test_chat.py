"""`POST /v1/chat/completions` and its neighbours, field by field, on the fake backend."""

from __future__ import annotations

import json

import pytest

from tests.contract.inline import Server
from tests.contract.wire import events_of
from tests.unit.fake import FakeBackend

HELLO = [{"role": "user", "content": "hello"}]
CHATML_HELLO = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture
def server():
    return Server(FakeBackend(n_ctx=1024))


async def chat(server: Server, path: str = "/v1/chat/completions", **body) -> dict:
    response = await server.http.post(path, json={"messages": HELLO, **body})
    assert response.status_code == 200, response.text
    return response.json()


async def stream(server: Server, **body) -> list[dict]:
    body = {"messages": HELLO, "stream": True, **body}
    response = await server.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    *lines, done, end = response.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def refusal(server: Server, **body) -> dict:
    response = await server.http.post("/v1/chat/completions", json={"messages": HELLO, **body})
    assert response.status_code == 400, response.text
    return response.json()["error"]


async def test_the_answer_has_openais_shape(server):
    answer = await chat(server, max_tokens=5, seed=1, ignore_eos=True, model="mine")
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "mine"
    assert answer["system_fingerprint"].startswith("b")
    (choice,) = answer["choices"]
    assert choice["index"] == 0
    assert choice["finish_reason"] == "length"
    assert choice["message"]["role"] == "assistant"
    assert len(choice["message"]["content"]) == 5
    assert choice["logprobs"] is None
    assert answer["usage"] == {
        "prompt_tokens": len(CHATML_HELLO),
        "completion_tokens": 5,
        "total_tokens": len(CHATML_HELLO) + 5,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert answer["timings"]["predicted_n"] == 5
    assert "warnings" not in answer
    assert (await chat(server, "/chat/completions", max_tokens=1))["object"] == "chat.completion"


@pytest.mark.parametrize("options", [{}, {"stop": ["e"]}, {"logprobs": True}, {"n": 3}, {"max_tokens": 0}])
async def test_deltas_joined_are_the_message(server, options):
    body = {"max_tokens": 30, "seed": 3, **options}
    whole = await chat(server, **body)
    chunks = await stream(server, **body)
    for choice in whole["choices"]:
        own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        assert own[0]["delta"] == {"role": "assistant", "content": None}
        assert all("role" not in c["delta"] for c in own[1:])
        assert "".join(c["delta"].get("content") or "" for c in own) == choice["message"]["content"]
        assert own[-1]["delta"] == {}
        assert own[-1]["finish_reason"] == choice["finish_reason"]
        assert all(c["finish_reason"] is None for c in own[:-1])
    assert len({c["id"] for c in chunks}) == 1
    assert all(c["object"] == "chat.completion.chunk" for c in chunks)


async def test_usage_comes_exactly_when_asked_for(server):
    assert all("usage" not in chunk for chunk in await stream(server, max_tokens=3))
    asked = await stream(server, max_tokens=3, ignore_eos=True, stream_options={"include_usage": True})
    assert asked[-1]["choices"] == []
    assert asked[-1]["usage"]["completion_tokens"] == 3
    assert all("usage" not in chunk for chunk in asked[:-1])


async def test_the_second_answer_reports_what_was_cached(server):
    await chat(server, max_tokens=1)
    usage = (await chat(server, max_tokens=1))["usage"]
    assert 0 < usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]


async def test_several_answers_share_one_prefill(server):
    answer = await chat(server, n=3, max_tokens=8, seed=7, ignore_eos=True)
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2]
    texts = [c["message"]["content"] for c in answer["choices"]]
    assert len(set(texts)) == 3
    assert server.backend.n_prompt_tokens_evaluated == len(CHATML_HELLO)
    assert answer["usage"]["prompt_tokens"] == len(CHATML_HELLO)
    assert answer["usage"]["completion_tokens"] == 24
    for i, text in enumerate(texts):
        alone = await chat(server, max_tokens=8, seed=7 + i, ignore_eos=True)
        assert alone["choices"][0]["message"]["content"] == text


async def test_log_probabilities(server):
    answer = await chat(server, logprobs=True, top_logprobs=3, max_tokens=4, ignore_eos=True)
    content = answer["choices"][0]["logprobs"]["content"]
    assert len(content) == 4
    assert all(len(entry["top_logprobs"]) == 3 and entry["logprob"] <= 0 for entry in content)
    answer = await chat(server, logprobs=True, top_logprobs=0, max_tokens=1, ignore_eos=True)
    assert answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
    assert (await refusal(server, top_logprobs=3))["param"] == "top_logprobs"


async def test_every_option_of_completion_works_here(server):
    answer = await chat(server, max_tokens=2, mirostat=2, id_slot=3, n_probs=1, cache_prompt=False)
    assert "warnings" not in answer
    assert answer["choices"][0]["logprobs"]
    assert server.engine.telemetry.slots.views[3].task is not None


async def test_progress_starts_with_what_is_cached(server):
    chunks = await stream(server, max_tokens=2, return_progress=True, timings_per_token=True)
    progress = [c["prompt_progress"] for c in chunks if "prompt_progress" in c]
    assert progress[0] == {"total": len(CHATML_HELLO), "cache": 0, "processed": 0, "time_ms": 0}
    assert progress[-1]["processed"] == len(CHATML_HELLO)
    timings = [c["timings"] for c in chunks if "prompt_progress" in c]
    assert [t["prompt_n"] for t in timings] == [p["processed"] for p in progress]
    assert (timings[0]["prompt_ms"], timings[-1]["predicted_n"]) == (0, 0)
    assert "timings" in chunks[-1]
    plain = await stream(server, max_tokens=2, return_progress=True)
    assert not any("timings" in c for c in plain if "prompt_progress" in c)


async def test_the_rate_of_an_answer_leaves_out_its_first_token(server):
    for n in (1, 4):
        answer = await server.complete(prompt="hello", n_predict=n, ignore_eos=True)
        timings, n_steps = answer["timings"], n - 1
        assert timings["predicted_n"] == n
        assert timings["predicted_per_second"] * timings["predicted_ms"] == pytest.approx(1e3 * n_steps)
        assert timings["predicted_per_token_ms"] * n_steps == pytest.approx(
            timings["predicted_ms"] * bool(n_steps)
        )


LAST = "data: [DONE]\n\n"


async def test_text_completions_report_progress_and_timings_too(server):
    body = {"prompt": "hello", "max_tokens": 2, "stream": True, "ignore_eos": True}
    response = await server.http.post(
        "/v1/completions", json={**body, "return_progress": True, "timings_per_token": True}
    )
    events = events_of(response.text.removesuffix(LAST))
    assert events[0]["prompt_progress"]["total"] == 5
    assert all("timings" in event for event in events if event["choices"])
    response = await server.http.post("/v1/completions", json=body)
    assert not any("prompt_progress" in event for event in events_of(response.text.removesuffix(LAST)))


async def prompt_of(server: Server, messages: list, **body) -> str:
    response = await server.http.post("/apply-template", json={"messages": messages, **body})
    assert response.status_code == 200, response.text
    return response.json()["prompt"]


async def test_apply_template_shows_the_prompt(server):
    assert await prompt_of(server, HELLO) == CHATML_HELLO
    assert (
        await prompt_of(server, HELLO, add_generation_prompt=False)
        == CHATML_HELLO[: -len("<|im_start|>assistant\n")]
    )
    system = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    ]
    assert (await prompt_of(server, system + HELLO)).startswith("<|im_start|>system\na\nb<|im_end|>\n")


async def test_an_assistant_message_at_the_end_is_continued(server):
    messages = [*HELLO, {"role": "assistant", "content": "I th"}]
    assert await prompt_of(server, messages) == CHATML_HELLO + "I th"
    same = {"continue_final_message": True, "add_generation_prompt": False}
    assert await prompt_of(server, messages, **same) == CHATML_HELLO + "I th"
    both = {"continue_final_message": True, "add_generation_prompt": True}
    assert (await refusal(server, messages=messages, **both))["param"] == "continue_final_message"
    assert (await refusal(server, messages=[*messages, messages[-1]]))["param"] == "messages"
    plain = Server(FakeBackend(n_ctx=1024), prefill_assistant=False)
    assert (await prompt_of(plain, messages)).endswith("I th<|im_end|>\n<|im_start|>assistant\n")


async def test_input_tokens_counts_the_prompt(server):
    for path in ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"):
        response = await server.http.post(path, json={"messages": HELLO})
        assert response.json()["input_tokens"] == len(CHATML_HELLO)


async def test_models(server):
    for path in ("/v1/models", "/models"):
        answer = (await server.http.get(path)).json()
        assert answer["object"] == "list"
        (model,) = answer["data"]
        assert model["id"] == "fake.gguf"
        assert model["owned_by"] == "llamacpp"
        meta = {"vocab_type", "n_vocab", "n_ctx", "n_ctx_train", "n_embd", "n_params", "size", "ftype"}
        assert set(model["meta"]) == meta
    assert (await server.http.get("/v1/models/fake.gguf")).json() == model
    assert (await server.http.get("/v1/models/other")).status_code == 404
    named = Server(alias="mine")
    assert (await named.http.get("/v1/models")).json()["data"][0]["id"] == "mine"


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ("text", "messages"),
        ([], "messages"),
        ([123], "messages[0]"),
        ([{}], "messages[0].role"),
        ([{"role": 1, "content": ""}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 1}], "messages[0].content"),
        ([*HELLO, {"role": "assistant"}, *HELLO], "messages[1]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "smell"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"text": "a"}]}], "messages[0].content[0]"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0]"),
        ([{"role": "assistant", "tool_calls": 5}], "messages[0].tool_calls"),
    ],
)
async def test_errors_name_the_place_in_the_messages(server, messages, field):
    error = await refusal(server, messages=messages)
    assert error["param"] == field
    assert error["type"] == "invalid_request_error"


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"tools": "x"}, "tools"),
        ({"tools": [1]}, "tools[0]"),
        ({"tools": [{"function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"function": {"name": "a", "parameters": 5}}]}, "tools[0].function.parameters"),
        ({"tools": [TOOL], "tool_choice": "perhaps"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"function": {"name": "other"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "grammar": 'root ::= "a"'}, "grammar"),
        ({"response_format": {"type": "sound"}}, "response_format"),
        ({"response_format": {"type": "json_object", "schema": 123}}, "response_format"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "json_object"}, "grammar": 'root ::= "a"'}, "grammar"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"enable_thinking": "no"}}, "chat_template_kwargs"),
        ({"reasoning_format": "loud"}, "reasoning_format"),
        ({"max_tokens": -7}, "max_tokens"),
        ({"n": 0}, "n"),
    ],
)
async def test_errors_name_the_field(server, body, field):
    assert (await refusal(server, **body))["param"] == field


async def test_too_long_a_chat_says_how_long_in_both_dialects(server):
    error = await refusal(server, messages=HELLO * 100)
    assert error["type"] == "exceed_context_size_error"
    assert error["code"] == "context_length_exceeded"
    assert error["n_prompt_tokens"] > error["n_ctx"] == 1024
    response = await server.http.post("/completion", json={"prompt": "x" * 2000})
    assert response.json()["error"]["code"] == 400


async def test_a_wrong_grammar_is_refused_before_the_stream_begins(server):
    error = await refusal(server, grammar="wrong", stream=True)
    assert error["message"].startswith("Failed to parse grammar")


async def test_a_grammar_ends_the_answer_and_says_where_it_was_cut(server):
    whole = await chat(server, grammar="abcd")
    assert whole["choices"][0]["message"]["content"] == "abcd"
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert "truncated_grammar" not in whole["choices"][0]
    cut = await chat(server, grammar="abcd", max_tokens=2)
    assert cut["choices"][0]["truncated_grammar"] is True
    chunks = await stream(server, grammar="abcd", max_tokens=2)
    assert chunks[-1]["choices"][0]["truncated_grammar"] is True


async def test_without_jinja_there_are_no_tools():
    error = await refusal(Server(FakeBackend(n_ctx=1024), jinja=False), tools=[TOOL])
    assert error["param"] == "tools"


@pytest.mark.parametrize("response_format", ["auto", {"type": "text"}, {}])
async def test_formats_that_mean_any_text(server, response_format):
    answer = await chat(server, max_tokens=3, response_format=response_format, ignore_eos=True)
    assert len(answer["choices"][0]["message"]["content"]) == 3
    assert server.engine.telemetry.slots.views[0].task.params.constraint is None


async def test_an_error_after_the_first_byte_is_an_event(server):
    open_sampler = server.backend.open_sampler

    def open_bad(params, prompt, grammar=None):
        sampler = open_sampler(params, prompt, grammar)
        sample = sampler.sample
        sampler.sample = lambda logits, index: sample(logits, index) if index < 3 else 1 / 0
        return sampler

    server.backend.open_sampler = open_bad
    events = await stream(server, max_tokens=9, ignore_eos=True)
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert events[-1]["error"]["code"] == 500
    assert all("error" not in event for event in events[:-1])


async def test_the_field_that_was_used_is_the_one_that_is_named(server):
    both = {"response_format": {"type": "json_object", "schema": {"minimum": 2**60}}, "json_schema": {}}
    assert (await refusal(server, **both))["param"] == "response_format"
    assert (await refusal(server, json_schema={"minimum": 2**60}))["param"] == "json_schema"


async def test_images_are_refused_not_ignored(server):
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    body = {"messages": [{"role": "user", "content": parts}]}
    response = await server.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages[0].content[1].image_url"
    assert "--mmproj" in response.json()["error"]["message"]


async def test_unknown_fields_come_back_as_warnings(server):
    assert (await chat(server, max_tokens=1, foo=1))["warnings"] == ["Field 'foo' is unknown and was ignored"]
