"""Ollama's routes, field by field."""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from corral import __version__
from corral.api.ollama.digest import compute_digest
from corral.core.fim import FimTokens
from tests.contract.inline import Server
from tests.contract.messages_client import tasks
from tests.contract.scripted import ScriptedServer
from tests.tools.pictures import data_uri, png, solid
from tests.unit.fake import FakeBackend
from tests.unit.fake_projector import FakeProjector

HELLO = [{"role": "user", "content": "hello"}]
FUNCTION = {"name": "go", "description": "Go.", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": FUNCTION}
TIMES = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


@pytest.fixture
def server():
    return ScriptedServer()


async def send(server: Server, path: str, status: int = 200, **body: Any) -> Any:
    response = await server.http.post(path, json=body)
    assert response.status_code == status, response.text
    return response.json()


async def lines(server: Server, path: str, **body: Any) -> list[dict]:
    response = await server.http.post(path, json=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def join(parts: list[dict]) -> dict:
    """The answer that lines make."""
    assert [part["done"] for part in parts] == [False] * (len(parts) - 1) + [True]
    joined: dict[str, Any] = {}
    for part in parts:
        for name, value in {**part, **part.get("message", {})}.items():
            if name in ("content", "thinking", "response", "tool_calls", "logprobs") and name in joined:
                joined[name] += value
            elif name != "message":
                joined[name] = value
    return plain(joined)


def plain(answer: dict) -> dict:
    """Without what differs from answer to answer."""
    flat = {**answer, **answer.get("message", {})}
    return {k: v for k, v in flat.items() if k not in ("message", "created_at", *TIMES)}


async def both(server: Server, path: str, **body: Any) -> dict:
    whole = await send(server, path, stream=False, **body)
    assert join(await lines(server, path, **body)) == plain(whole)
    assert all(isinstance(whole[name], int) for name in TIMES)
    assert whole["total_duration"] >= whole["eval_duration"]
    return whole


async def test_a_chat(server):
    server.say("Hi there")
    answer = await both(server, "/api/chat", model="m", messages=HELLO)
    assert answer["message"] == {"role": "assistant", "content": "Hi there"}
    assert (answer["model"], answer["done"], answer["done_reason"]) == ("m", True, "stop")
    assert answer["eval_count"] == len("Hi there") + 1
    assert "warnings" not in answer


async def test_a_prompt(server):
    server.say("Hi there")
    answer = await both(server, "/api/generate", prompt="hello", system="Be kind.")
    assert answer["response"] == "Hi there"
    assert "<|im_start|>system\nBe kind.<|im_end|>" in server.prompt
    await both(server, "/api/generate", prompt="hello", raw=True)
    assert server.prompt == "hello"


async def test_options_are_mapped_or_named(server):
    server.say("Hi there")
    options = {"num_predict": 2, "top_k": 3, "num_keep": 4, "num_ctx": 100, "penalize_newline": False}
    answer = await both(server, "/api/chat", messages=HELLO, options=options)
    assert answer["done_reason"] == "length"
    params = tasks(server)[-1].params
    assert (params.n_predict, params.sampling.top_k, params.n_keep) == (2, 3, 4)
    assert not params.sampling.penalize_nl
    assert "warnings" not in answer
    more: dict[str, Any] = {"num_gpu": 99, "num_ctx": 100_000, "stop": ["th"]}
    answer = await both(server, "/api/chat", messages=HELLO, options=more, foo=1)
    assert answer["message"]["content"] == "Hi "
    named = " ".join(answer["warnings"])
    assert all(name in named for name in ("'options.num_gpu'", "'options.num_ctx'", "'foo'"))


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/api/chat", {"messages": 5}, "'messages'"),
        ("/api/chat", {"messages": [5]}, "'messages[0]'"),
        ("/api/chat", {"messages": HELLO, "options": {"temperature": "hot"}}, "'options.temperature'"),
        ("/api/chat", {"messages": HELLO, "options": {"num_predict": "x"}}, "'options.num_predict'"),
        ("/api/chat", {"messages": HELLO, "format": "xml"}, "'format'"),
        ("/api/chat", {"messages": HELLO, "tools": 5}, "'tools'"),
        ("/api/chat", {"messages": HELLO, "think": "hard"}, "'think'"),
        ("/api/generate", {"prompt": 5}, "'prompt'"),
        ("/api/generate", {"prompt": "a", "raw": True, "images": ["x"]}, "'images'"),
        ("/api/embed", {}, "'input'"),
    ],
)
async def test_what_is_wrong_is_named(server, path, body, name):
    error = await send(server, path, 400, **body)
    assert set(error) == {"error"}
    assert name in error["error"]


async def test_errors_have_this_apis_shape():
    server = ScriptedServer(api_keys=("secret",))
    assert set(await send(server, "/api/chat", 401)) == {"error"}
    headers = {"Authorization": "Bearer secret"}
    response = await server.http.post("/api/delete", headers=headers)
    assert (response.status_code, set(response.json())) == (404, {"error"})
    loading = Server(FakeBackend(), is_open=False)
    loading.engine.info = None
    assert set(await send(loading, "/api/chat", 503, messages=HELLO)) == {"error"}


async def test_reasoning(server):
    server.say("<think>\nwell\n</think>\n\nYes.")
    answer = await both(server, "/api/chat", messages=HELLO, think=True)
    assert (answer["message"]["thinking"], answer["message"]["content"]) == ("well", "Yes.")
    answer = await both(server, "/api/generate", prompt="hello", think="high")
    assert (answer["thinking"], answer["response"]) == ("well", "Yes.")
    await send(server, "/api/chat", messages=HELLO, stream=False, think=False)
    assert server.prompt.endswith("<think>\n\n</think>\n\n")


async def test_tools(server):
    server.say('I go. <tool_call>\n{"name": "go", "arguments": {"x": 1}}\n</tool_call>')
    answer = await both(server, "/api/chat", messages=HELLO, tools=[TOOL])
    message = answer["message"]
    assert message["tool_calls"] == [{"function": {"name": "go", "arguments": {"x": 1}}}]
    result = {"role": "tool", "tool_name": "go", "content": "gone"}
    await send(server, "/api/chat", messages=[*HELLO, message, result], tools=[TOOL], stream=False)
    ours = server.prompt
    arguments = {"name": "go", "arguments": '{"x": 1}'}
    calls = [{"id": "call_1", "type": "function", "function": arguments}]
    chat = [
        *HELLO,
        {"role": "assistant", "content": "I go.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_1", "content": "gone"},
    ]
    await send(server, "/v1/chat/completions", messages=chat, tools=[TOOL], max_tokens=1)
    assert server.prompt == ours


async def test_a_call_that_is_none_is_text(server):
    server.say('<tool_call>{"name": "go", "arguments": {"x"')
    answer = await both(server, "/api/chat", messages=HELLO, tools=[TOOL])
    assert "tool_calls" not in answer["message"]
    assert answer["message"]["content"].startswith("<tool_call>")
    assert answer["warnings"]


@pytest.mark.parametrize("format", ["json", {"type": "object", "properties": {"city": {"type": "string"}}}])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", {"messages": HELLO}),
        ("/api/generate", {"prompt": "x"}),
        ("/api/generate", {"prompt": "x", "raw": True}),
    ],
)
async def test_answers_that_follow_a_schema(server, format, path, body):
    await both(server, path, format=format, **body)
    constraint = tasks(server)[-1].params.constraint
    assert constraint.text
    assert ("city" in constraint.text) is isinstance(format, dict)


async def test_log_probabilities():
    server = Server(FakeBackend(n_ctx=1024))
    body = {"messages": HELLO, "options": {"num_predict": 3, "seed": 1}}
    answer = await both(server, "/api/chat", logprobs=True, top_logprobs=2, **body)
    assert len(answer["logprobs"]) == answer["eval_count"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in answer["logprobs"])
    answer = await both(server, "/api/chat", logprobs=True, **body)
    assert all(entry["top_logprobs"] == [] for entry in answer["logprobs"])


async def test_images():
    backend = FakeBackend(n_ctx=1024)
    backend.projector = FakeProjector()
    server, dot = Server(backend), solid(255, 0, 0, 8, 8)
    image = base64.b64encode(png(dot)).decode()
    options = {"num_predict": 1}
    message = {"role": "user", "content": "what?", "images": [image]}
    await send(server, "/api/chat", messages=[message], options=options, stream=False)
    await send(server, "/api/generate", prompt="what?", images=[image], options=options, stream=False)
    parts = [{"type": "image_url", "image_url": {"url": data_uri(dot)}}, {"type": "text", "text": "what?"}]
    chat = [{"role": "user", "content": parts}]
    await send(server, "/v1/chat/completions", messages=chat, max_tokens=1)
    first, second, third = (task.prompt for task in tasks(server))
    assert first == second == third


async def test_a_suffix_is_infilled(server):
    assert "error" in await send(server, "/api/generate", 400, prompt="a", suffix="b")
    server.backend.vocab.fim = FimTokens(pre=1, suf=2, mid=3)
    server.say("middle")
    answer = await both(server, "/api/generate", prompt="a", suffix="b")
    assert answer["response"] == "middle"


async def test_without_a_question_the_model_is_only_loaded(server):
    asked: list[tuple[str, dict[str, Any]]]
    asked = [("/api/chat", {}), ("/api/chat", {"messages": []}), ("/api/generate", {})]
    for path, body in asked:
        for keep_alive, reason in (("5m", "load"), (0, "unload")):
            whole = await send(server, path, stream=False, keep_alive=keep_alive, **body)
            assert (whole["done"], whole["done_reason"]) == (True, reason)
            (line,) = await lines(server, path, keep_alive=keep_alive, **body)
            assert line["done_reason"] == reason
    assert not tasks(server)


@pytest.mark.parametrize(
    ("keep_alive", "unloads_in_s"),
    [(90, 90.0), (1.5, 1.5), ("90", 90.0), ("1h1.5m", 3690.0), ("500ms", 0.5), (-1, None), ("-1m", None)],
)
async def test_the_model_stays_as_long_as_it_is_asked_to(server, keep_alive, unloads_in_s):
    server.say("Hi")
    await send(server, "/api/chat", messages=HELLO, stream=False, keep_alive=keep_alive)
    assert server.engine.unloads_in_s == unloads_in_s
    (running,) = (await server.http.get("/api/ps")).json()["models"]
    expires_at = datetime.fromisoformat(running["expires_at"].replace("Z", "+00:00"))
    left_s = (expires_at - datetime.now(timezone.utc)).total_seconds()
    assert left_s > 1e9 if unloads_in_s is None else left_s <= unloads_in_s


async def test_a_model_is_unloaded_and_loaded_again(server):
    await send(server, "/api/generate", stream=False, keep_alive=0)
    assert (await server.http.get("/api/ps")).json() == {"models": []}
    await send(server, "/api/generate", stream=False)
    assert len((await server.http.get("/api/ps")).json()["models"]) == 1
    await send(server, "/api/embed", input="a", keep_alive="0s")
    assert (await server.http.get("/api/ps")).json() == {"models": []}


@pytest.mark.parametrize("keep_alive", ["soon", "", "5 m", "1x", "m", True, [1], {}])
async def test_other_durations_are_refused(server, keep_alive):
    assert (
        "keep_alive" in (await send(server, "/api/chat", 400, messages=HELLO, keep_alive=keep_alive))["error"]
    )
    assert not tasks(server)


async def test_one_of_several_keys_unloads_nothing():
    server = ScriptedServer(api_keys=("a,b",))
    server.http.headers["Authorization"] = "Bearer a"
    answer = await send(server, "/api/chat", stream=False, keep_alive=0)
    assert "keep_alive" in answer["warnings"][0]
    assert len((await server.http.get("/api/ps")).json()["models"]) == 1


async def test_vectors():
    server = Server(FakeBackend(n_ctx=1024))
    answer = await send(server, "/api/embed", model="m", input=["hello", "you"])
    openai = await send(server, "/v1/embeddings", input=["hello", "you"])
    assert answer["embeddings"] == [entry["embedding"] for entry in openai["data"]]
    assert answer["prompt_eval_count"] == openai["usage"]["prompt_tokens"]
    one = await send(server, "/api/embeddings", prompt="hello")
    assert one["embedding"] == answer["embeddings"][0]
    assert (await send(server, "/api/embed", input="hello"))["embeddings"] == [one["embedding"]]
    short = await send(server, "/api/embed", input="hello", dimensions=2)
    assert len(short["embeddings"][0]) == 2
    long = "x" * 5000
    assert len((await send(server, "/api/embed", input=long))["embeddings"]) == 1
    await send(server, "/api/embed", 400, input=long, truncate=False)
    await send(server, "/api/embed", 400, input="x", dimensions=99)


async def test_the_digest_is_that_of_the_file(server, tmp_path):
    model = tmp_path / "model.gguf"
    model.write_bytes(b"x" * (3 << 20))
    server.services.model.path = str(model)
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    (listed,) = (await server.http.get("/api/tags")).json()["models"]
    (running,) = (await server.http.get("/api/ps")).json()["models"]
    shown = await send(server, "/api/show", model="model.gguf")
    assert listed["digest"] == running["digest"] == shown["digest"] == digest


def test_the_hubs_cache_knows_digests(tmp_path):
    blob = tmp_path / "blobs" / ("ab" * 32)
    blob.parent.mkdir()
    blob.write_bytes(b"never read")
    (tmp_path / "model.gguf").symlink_to(blob)
    assert compute_digest(tmp_path / "model.gguf") == "ab" * 32
    assert compute_digest(tmp_path / "gone.gguf") == ""


async def test_models(server):
    (listed,) = (await server.http.get("/api/tags")).json()["models"]
    assert listed["name"] == listed["model"] == "fake.gguf"
    (running,) = (await server.http.get("/api/ps")).json()["models"]
    assert (running["digest"], running["context_length"]) == (listed["digest"], 8192)
    shown = await send(server, "/api/show", model="fake.gguf")
    assert shown["details"] == listed["details"]
    assert set(shown["capabilities"]) == {"completion", "tools", "embedding", "thinking"}
    assert "im_start" in shown["template"]
    assert await send(server, "/api/show", name="any") == shown  # as in a chat
    assert await send(server, "/api/pull", model="fake.gguf", stream=False) == {"status": "success"}
    assert await lines(server, "/api/pull", model="fake.gguf") == [{"status": "success"}]
    assert await send(server, "/api/pull", model="any", stream=False) == {"status": "success"}


async def test_the_version_is_that_of_the_api(server):
    answer = (await server.http.get("/api/version")).json()
    assert Version(answer["version"]) >= Version("0.13.4")  # Codex refuses older ones
    assert answer["corral_version"] == __version__


async def test_the_root_answers_with_and_without_a_page():
    for ui in (True, False):
        assert (await Server(ui=ui).http.head("/")).status_code == 200
    assert (await Server(ui=False).http.get("/")).status_code in (404, 405)
    assert "html" in (await Server().http.get("/")).headers["content-type"]


@given(
    texts=st.lists(st.text("ab \né", min_size=1, max_size=8), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
)
async def test_the_same_conversation_gets_the_same_answer_as_in_a_chat(texts, seed):
    server = Server(FakeBackend(n_ctx=4096))
    roles = ["user" if (len(texts) - i) % 2 else "assistant" for i in range(len(texts))]
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    options = {"seed": seed, "temperature": 0.5}
    answer = await both(server, "/api/chat", messages=messages, options={**options, "num_predict": 12})
    chat = await send(server, "/v1/chat/completions", messages=messages, max_tokens=12, **options)
    first, _, second = tasks(server)
    assert first.prompt == second.prompt
    assert answer["message"]["content"] == chat["choices"][0]["message"]["content"]
    assert answer["prompt_eval_count"] == chat["usage"]["prompt_tokens"]
