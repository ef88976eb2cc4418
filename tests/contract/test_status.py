"""Health, slots, props, tokens, and one error shape on every route."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import jsonschema
import pytest

from corral import __version__
from corral.api.error_shape import LLAMA_ERRORS
from corral.cli.configuration import configure
from corral.core.result import Loading, Stage
from corral.core.settings import EngineSettings, ServerSettings, Settings
from corral.link.engine_state import EngineState
from tests.contract.inline import Server
from tests.contract.wire import ask
from tests.unit.fake import FakeBackend, FakeVocab

COMPATIBLE: dict[str, Any] = {
    "code": 503,
    "message": "Loading model",
    "type": "unavailable_error",
}  # llama-server's
LOADING: dict[str, Any] = {"error": {**COMPATIBLE, "stage": "loading", "progress": 0.0, "detail": ""}}


async def test_health():
    server = Server()
    for path in ("/health", "/v1/health"):
        response = await server.http.get(path)
        assert response.status_code == 200
        assert response.json() == {"status": "ok", "slots_idle": 4, "slots_processing": 0}


async def test_everything_says_so_while_the_model_loads():
    server = Server(is_open=False, slots=True)
    assert (await server.http.get("/health")).json() == LOADING
    for path in ("/props", "/slots"):
        response = await server.http.get(path)
        assert (response.status_code, response.json()) == (503, LOADING)
    for path in ("/completion", "/tokenize", "/detokenize"):
        response = await server.http.post(path, json={"prompt": "a"})
        assert (response.status_code, response.json()) == (503, LOADING)


@pytest.mark.parametrize("path", ["/health", "/ready", "/props"])
async def test_the_stage_of_a_start_is_told_also_without_a_key(path):
    server = Server(is_open=False, api_keys=("secret",))
    server.engine.loading = Loading(Stage.RE_ENCODING, 0.41666, "the weights from Q4_1 to Q8_0: faster")
    response = await server.http.get(path)
    stage = {"stage": "re-encoding", "progress": 0.417, "detail": "the weights from Q4_1 to Q8_0: faster"}
    assert (response.status_code, response.json()) == (503, {"error": {**COMPATIBLE, **stage}})


async def test_health_tells_of_a_lost_engine():
    server = Server()
    server.engine.state = EngineState.RESTARTING
    server.engine.down_because = "the engine process ended with code -11"
    response = await server.http.get("/health")
    assert response.status_code == 503
    assert response.json()["error"]["type"] == "unavailable_error"
    assert server.engine.down_because in response.json()["error"]["message"]


async def test_a_failed_engine_is_told_with_its_reason_and_what_needs_none_still_answers():
    server = Server(metrics=True)
    server.engine.state = EngineState.FAILED
    server.engine.down_because = "model '/srv/x.gguf' cannot be opened"
    for path in ("/health", "/ready"):
        response = await server.http.get(path)
        assert response.status_code == 503
        assert server.engine.down_because in response.json()["error"]["message"]
    for path in ("/metrics", "/props", "/v1/models"):
        assert (await server.http.get(path)).status_code == 200
    assert (await server.http.post("/tokenize", json={"content": "hello"})).status_code == 200


@pytest.mark.parametrize("state", [EngineState.FAILED, EngineState.RESTARTING])
async def test_strangers_are_not_told_why(state):
    server = Server(api_keys=("secret",))
    server.engine.state = state
    server.engine.down_because = "model '/srv/x.gguf' cannot be opened"
    for path in ("/health", "/ready"):
        response = await server.http.get(path)
        assert response.status_code == 503
        assert "x.gguf" not in response.text
        response = await server.http.get(path, headers={"authorization": "Bearer secret"})
        assert "/srv/x.gguf" in response.text


async def test_an_engine_that_is_not_heard_is_not_healthy():
    server = Server(slots=True)
    server.engine.is_silent = True
    for path in ("/health", "/ready"):
        response = await server.http.get(path)
        assert response.status_code == 503
        assert response.json()["error"]["message"] == "The engine does not respond"
    assert (await server.http.get("/slots")).status_code == 200


@pytest.mark.parametrize("state", EngineState)
async def test_who_sleeps_or_wakes_up_is_healthy_and_ready(state):
    server = Server(slots=True)
    server.engine.state = state
    is_good = state in (EngineState.READY, EngineState.SLEEPING, EngineState.WAKING)
    for path in ("/health", "/ready", "/slots", "/lora-adapters"):
        assert (await server.http.get(path)).status_code == (200 if is_good else 503), path
    assert (await server.http.get("/props")).json()["is_sleeping"] is (state is EngineState.SLEEPING)


async def test_ready():
    response = await Server().http.get("/ready")
    assert (response.status_code, response.json()) == (200, {"status": "ready"})
    response = await Server(is_open=False).http.get("/ready")
    assert (response.status_code, response.json()) == (503, LOADING)


async def test_who_drains_is_alive_but_not_ready():
    server = Server()
    server.app.drain()
    assert (await server.http.get("/health")).status_code == 200
    response = await server.http.get("/ready")
    assert response.status_code == 503
    assert response.json()["error"]["message"] == "The server is shutting down"


@pytest.mark.parametrize(("queue_size", "n_busy"), [(0, 4), (2, 6)])
async def test_who_would_refuse_a_request_is_not_ready(queue_size, n_busy):
    server = Server(queue_size=queue_size)
    requests: list[asyncio.Task] = []
    for n in range(n_busy):
        assert (await server.http.get("/ready")).status_code == 200, n
        requests += await busy(server, 1)
    response = await server.http.get("/ready")
    assert response.status_code == 503
    assert "--queue-size" in response.json()["error"]["message"]
    assert (await server.http.get("/health")).status_code == 200
    server.engine.is_paused = False
    await asyncio.gather(*requests)
    assert (await server.http.get("/ready")).status_code == 200


async def busy(server: Server, n: int) -> list[asyncio.Task]:
    """So many requests that have a slot, in an engine that stands still."""
    server.engine.is_paused = True
    n_before = server.engine.n_tasks
    requests = [
        asyncio.create_task(
            server.http.post("/completion", json={"prompt": "hello", "n_predict": 50, "ignore_eos": True})
        )
        for _ in range(n)
    ]
    while server.engine.n_tasks < n_before + n:
        await asyncio.sleep(0)
    server.engine.step()
    return requests


async def test_no_slot_available():
    server = Server(slots=True)
    requests = await busy(server, 4)
    assert (await server.http.get("/health")).status_code == 200
    response = await server.http.get("/health?fail_on_no_slot")
    assert response.status_code == 503
    assert response.json()["status"] == "no slot available"
    assert (response.json()["slots_idle"], response.json()["slots_processing"]) == (0, 4)
    asked = await server.http.get("/health?include_slots")
    assert (asked.status_code, asked.json()["status"]) == (200, "no slot available")
    assert [slot["is_processing"] for slot in asked.json()["slots"]] == [True] * 4
    both = await server.http.get("/v1/health?include_slots=1&fail_on_no_slot=1")
    assert (both.status_code, both.json()["status"], len(both.json()["slots"])) == (
        503,
        "no slot available",
        4,
    )
    assert (await server.http.get("/health")).json()["status"] == "ok", "newer clients know no other"
    response = await server.http.get("/slots?fail_on_no_slot=1")
    assert response.json()["error"] == {
        "code": 503,
        "message": "no slot available",
        "type": "unavailable_error",
    }
    for request in requests:
        request.cancel()


async def test_slots_show_what_is_going_on():
    server = Server(slots=True)
    (request,) = await busy(server, 1)
    first, second, *_ = (await server.http.get("/slots")).json()
    assert first["is_processing"] is True
    assert first["state"] == 1
    assert first["id_task"] == 0
    assert first["prompt"] == "hello"
    assert first["params"]["n_predict"] == 50
    assert first["stream"] is first["params"]["stream"] is False
    token = first["next_token"]
    assert token["n_remain"] == 50 - token["n_decoded"]
    assert second["is_processing"] is False
    assert second["id_task"] == -1
    token = second["next_token"]
    assert (token["has_next_token"], token["n_remain"], token["n_decoded"]) == (False, -1, 0)
    assert second["params"]["n_predict"] == -1, "it has served no request: the defaults"
    assert (await server.http.get("/health?include_slots")).json()["slots"][0]["id_task"] == 0
    server.engine.is_paused = False
    await request
    first, *_ = (await server.http.get("/slots")).json()
    assert first["is_processing"] is False
    token = first["next_token"]
    assert (token["has_next_token"], token["n_remain"], token["n_decoded"]) == (False, -1, 0)
    assert (first["n_prompt_tokens_processed"], first["n_prompt_tokens_cache"]) == (0, 0)
    assert first["n_prompt_tokens"] > 0


async def test_slots_are_off_unless_asked_for():
    server = Server()
    response = await server.http.get("/slots")
    assert response.status_code == 501
    assert response.json()["error"]["type"] == "not_supported_error"
    assert "slots" not in (await server.http.get("/health?include_slots")).json()


async def test_a_model_has_several_names():
    settings = configure(
        ["-m", "fake.gguf", "--alias", "tiny, fim,code,", "--tags", "chat,small"], {}
    ).settings
    server = Server(settings=settings)
    (model,) = (await server.http.get("/v1/models")).json()["data"]
    assert (model["id"], model["aliases"]) == ("code", ["code", "fim", "tiny"])
    assert model["tags"] == ["chat", "small"]
    for name in ("code", "fim", "tiny"):
        assert (await server.http.get(f"/v1/models/{name}")).status_code == 200


async def test_props():
    settings = configure(["-m", "fake.gguf", "--alias", "pet", "-s", "42", "-n", "7"], {}).settings
    server = Server(settings=settings)
    props = (await server.http.get("/props")).json()
    assert props["total_slots"] == 4
    assert props["model_path"] == "fake.gguf"
    assert props["model_alias"] == "pet"
    assert "<|im_start|>" in props["chat_template"]
    assert re.fullmatch(r"b\d+-[0-9a-f]{7,}", props["build_info"])
    assert props["server_version"] == __version__
    assert props["is_sleeping"] is False
    assert props["batch_exact"] == {"enabled": False, "n_streams": 0, "limits": {}, "reason": ""}
    defaults = props["default_generation_settings"]
    assert (defaults["id"], defaults["id_task"], defaults["n_ctx"]) == (0, -1, 256)
    assert defaults["params"]["seed"] == 42
    assert defaults["params"]["n_predict"] == 7
    answer = await server.complete(prompt="a", ignore_eos=True)
    assert answer["tokens_predicted"] == 7
    assert answer["generation_settings"]["seed"] == 42


@pytest.mark.parametrize("keys", [(), ("key",)])
async def test_props_have_the_table_of_schema_keywords_only_for_who_asks(keys):
    server = Server(api_keys=keys)
    assert "json_schema" not in (await server.http.get("/props")).json()
    assert "keywords" in (await server.http.get("/props?json_schema")).json()["json_schema"]


async def test_slots_tell_whether_a_request_streams():
    server = Server(slots=True)
    await server.http.post("/completion", json={"prompt": "hello", "n_predict": 2, "stream": True})
    (await server.http.get("/slots")).json()
    assert [s["stream"] for s in (await server.http.get("/slots")).json() if s["id_task"] >= 0] == [True]


async def test_props_change_only_where_allowed():
    assert (await Server().http.post("/props", json={})).status_code == 501
    server = Server(props=True)
    assert (await server.http.post("/props", json={})).json() == {"success": True}
    assert (await server.http.post("/props")).json() == {"success": True}, "llama-server reads no body"


async def test_props_name_fields_that_cannot_be_changed():
    server = Server(props=True)
    answer = (await server.http.post("/props", json={"n_ctx": 5, "temprature": 1, "x": None})).json()
    assert answer["success"] is True
    assert [name for name in ("'n_ctx'", "'temprature'") if name in " ".join(answer["warnings"])] == [
        "'n_ctx'",
        "'temprature'",
    ]
    for body in (b"[]", b"{", b"5"):
        assert (await server.http.post("/props", content=body)).status_code == 400


async def test_answers_name_the_model_and_not_its_directory():
    engine = EngineSettings(model="/home/me/models/m.gguf")
    server = Server(settings=Settings(engine=engine, server=ServerSettings(slots=True, metrics=True)))
    messages = [{"role": "user", "content": "a"}]
    posts: dict[str, Any] = {
        "/completion": {"prompt": "a", "n_predict": 1},
        "/v1/completions": {"prompt": "a", "max_tokens": 1},
        "/v1/chat/completions": {"messages": messages, "max_tokens": 1},
        "/embedding": {"content": "a"},
        "/v1/embeddings": {"input": "a"},
        "/apply-template": {"messages": messages},
        "/infill": {"input_prefix": "a", "n_predict": 1},
    }
    answers = [await server.http.post(path, json=body) for path, body in posts.items()]
    answers += [
        await server.http.post(path, json={**posts[path], "stream": True}) for path in list(posts)[:3]
    ]
    paths = ("/v1/models", "/models", "/slots", "/health?include_slots", "/metrics", "/v1/models/m.gguf")
    answers += [await server.http.get(path) for path in paths]
    answers.append(await server.http.get("/monitor/events?limit=1"))
    for answer in answers:
        assert "/home" not in answer.text, answer.request.url
    named = [a for a in answers if '"model":' in a.text]
    assert len(named) >= 8
    assert all('"model":"m.gguf"' in answer.text for answer in named)
    props = (await server.http.get("/props")).json()
    assert (props["model_alias"], props["model_path"]) == ("m.gguf", engine.model)
    body = {**posts["/v1/chat/completions"], "model": "gpt-4"}
    assert (await server.http.post("/v1/chat/completions", json=body)).json()["model"] == "gpt-4"


@pytest.mark.parametrize("is_open", [True, False])
async def test_head_is_get_without_its_body(is_open):
    server = Server(is_open=is_open, is_watched=True, slots=True, metrics=True)
    described = (await server.http.get("/openapi.json")).json()["paths"]
    paths = [re.sub(r"\{.*?\}", "0", path) for path, methods in described.items() if "get" in methods]
    assert {"/health", "/v1/models", "/slots", "/monitor/events", "/v1/slots/0/info"} <= set(paths)
    paths += ["/", "/docs", "/openapi.json", "/monitor", "/none"]
    for path in paths:
        got = await server.http.get(path + "?limit=1")
        head = await server.http.head(path)
        assert head.status_code == got.status_code, path
        assert head.headers.get("content-type") == got.headers.get("content-type"), path
        assert head.content == b""
    assert (await server.http.head("/completion")).status_code == 405


async def test_head_of_a_stream_ends_at_once():
    server = Server(is_watched=True)
    sent = await ask(server.app, ("host", "x"), method="HEAD", path="/monitor/events")
    assert (sent.status, sent.body) == (200, b"")
    assert sent.get("content-type").startswith("text/event-stream")
    assert server.services.monitor._n_watchers == 0


async def test_tokens_there_and_back():
    server = Server()
    tokens = (await server.http.post("/tokenize", json={"content": "hello"})).json()["tokens"]
    back = (await server.http.post("/detokenize", json={"tokens": tokens})).json()
    assert back["content"] == "hello"
    mixed = (await server.http.post("/tokenize", json={"content": ["he", 5, "lo"]})).json()["tokens"]
    assert mixed == [*tokens[:2], 5, *tokens[3:]]
    pieces = (await server.http.post("/tokenize", json={"content": "h", "with_pieces": True})).json()
    assert pieces == {"tokens": [{"id": tokens[0], "piece": "h"}]}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/tokenize", {"content": 5}, "content"),
        ("/tokenize", {"content": [99]}, "content"),
        ("/tokenize", {"content": "a", "add_special": 1}, "add_special"),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [99]}, "tokens"),
    ],
)
async def test_bad_tokens(path, body, field):
    response = await Server().http.post(path, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field


async def test_one_error_shape_on_every_route():
    server = Server()
    paths = list((await server.http.get("/openapi.json")).json()["paths"])
    assert "/completion" in paths
    for path in [*paths, "/no/such", "/completion/"]:
        for method in ("PATCH", "DELETE"):
            response = await server.http.request(method, path)
            error, shape = response.json()["error"], server.error_shape(method, path)
            if shape is LLAMA_ERRORS:
                assert response.status_code == error["code"]
                assert set(error) >= {"code", "message", "type"}
            else:
                jsonschema.validate(response.json(), shape.schema)


async def test_a_bug_is_a_500_in_the_same_shape(monkeypatch, caplog):
    server = Server()
    monkeypatch.setattr(server.engine, "submit", lambda *_: 1 / 0)
    response = await server.http.post("/completion", json={"prompt": "a"})
    assert response.status_code == response.json()["error"]["code"] == 500
    assert response.json()["error"]["type"] == "server_error"
    assert "division" not in response.text


async def test_remote_tokenizers_of_lm_eval_find_what_they_need():
    server = Server()
    info = (await server.http.get("/tokenizer_info")).json()
    assert (info["bos_token"], info["eos_token"]) == ("<s>", "</s>")
    assert "im_start" in info["chat_template"]
    ours = (await server.http.post("/tokenize", json={"content": "hello"})).json()["tokens"]
    body = {"prompt": "hello", "add_special_tokens": False, "return_token_strs": True}
    theirs = (await server.http.post("/tokenize", json=body)).json()
    assert theirs == {"count": 5, "max_model_len": 256, "tokens": ours, "token_strs": list("hello")}
    back = (await server.http.post("/detokenize", json={"tokens": ours})).json()
    assert back["prompt"] == back["content"] == "hello"


async def test_special_tokens_are_added_to_a_prompt_but_not_to_content():
    class BosVocab(FakeVocab):
        def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
            return [self.bos] * add_special + super().tokenize(text, add_special, parse_special)

    backend = FakeBackend()
    backend.vocab = BosVocab()
    server, added = Server(backend), []
    for body in ({"prompt": "a"}, {"prompt": "a", "add_special_tokens": False}, {"content": "a"}):
        added.append(len((await server.http.post("/tokenize", json=body)).json()["tokens"]) - 1)
    assert added == [1, 0, 0]


async def test_there_must_be_something_to_tokenize():
    response = await Server().http.post("/tokenize", json={})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "content")
