"""Many models at one address: chosen by name, loaded on request, unloaded to make room."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import random
import re
import shutil
import threading

import httpx
import psutil
import pytest

from tests.system.process import START_S, CorralProcess, children, run_corral, wait_until, wait_until_busy
from tests.tools.tiny_encoders import bert_embed, bert_rerank
from tests.tools.tiny_models import llama_bpe, llama_spm

N_MIXED = 24
HELLO = {"prompt": "Hello", "n_predict": 8, "temperature": 0, "ignore_eos": True}
LONG = "Once upon a time there was a horse that lived in a corral. " * 4
# Each of the tiny models needs a little more than 272 MiB, of which 256 are for its interpreters.
FOR_TWO = ("--models-memory", 700, "-cram", 16, "-c", 512)


@pytest.fixture(scope="session")
def shelf(tmp_path_factory):
    """Two models that chat, one that embeds, one that ranks."""
    directory = tmp_path_factory.mktemp("shelf")
    for write in (llama_bpe, llama_spm, bert_embed, bert_rerank):
        write(directory)
    return directory


@pytest.fixture(scope="module")
def shared(shelf):
    with CorralProcess("--models-dir", shelf, *FOR_TWO, "--metrics", "--slots") as server:
        yield server


def test_a_prefix_and_vertex(shelf):
    environment = {"AIP_MODE": "PREDICTION", "AIP_HEALTH_ROUTE": "/alive"}
    with CorralProcess(
        "--models-dir", shelf, *FOR_TWO, "--api-prefix", "/deep/in", env=environment
    ) as server:
        assert server.get("/models").status_code == 404
        assert server.get("/deep/in/models").status_code == 200
        assert server.get("/deep/in/").headers["content-type"].startswith("text/html")
        assert server.get("/deep/in").headers["location"] == "/deep/in/"
        assert server.get("/deep/in/alive").json()["status"] == "ok"
        formats = {"@requestFormat": "completion", "model": "llama-bpe", **HELLO}
        instances = [formats, {**formats, "model": "none"}, {"@requestFormat": "models"}]
        answer = server.post("/deep/in/predict", instances=instances)
        completion, *failed = answer.json()["predictions"]
        assert (completion["model"], completion["tokens_predicted"]) == ("llama-bpe", 8)
        assert ["error" in each for each in failed] == [True, True]


@pytest.fixture
def many(shared):
    """A server of which no model is loaded."""
    for name in loaded(shared):
        shared.post("/models/unload", model=name)
    return shared


def statuses(server: CorralProcess) -> dict[str, str]:
    return {row["id"]: row["status"]["value"] for row in server.get("/models").json()["data"]}


def loaded(server: CorralProcess) -> set[str]:
    return {name for name, status in statuses(server).items() if status == "loaded"}


def message(response: httpx.Response) -> str:
    return response.json()["error"]["message"]


def test_models_are_loaded_on_request_and_the_least_recently_used_makes_room(many):
    assert set(statuses(many).values()) == {"unloaded"}
    assert many.engines == []
    answer = many.complete(model="llama-bpe", **HELLO)
    assert answer["model"] == "llama-bpe"
    embedding = many.post("/v1/embeddings", input="Hello")
    assert embedding.json()["model"] == "bert-embed"
    assert loaded(many) == {"llama-bpe", "bert-embed"}
    ranking = many.post("/v1/rerank", query="horse", documents=["a", "b"])
    assert ranking.json()["model"] == "bert-rerank"
    assert loaded(many) == {"bert-embed", "bert-rerank"}
    assert len(many.engines) == 2
    assert many.complete(model="llama-bpe", **HELLO)["content"] == answer["content"]
    assert loaded(many) == {"bert-rerank", "llama-bpe"}
    for name in ("bert-embed", "bert-rerank"):
        assert many.post("/tokenize", model=name, content="x").status_code == 200
    assert loaded(many) == {"bert-rerank", "llama-bpe"}, "tokens are counted without an engine"
    assert many.post("/v1/embeddings", input="Hello").status_code == 200
    assert loaded(many) == {"bert-rerank", "bert-embed"}, "the model whose tokens were counted is in use"


def test_kinds_are_known_without_loading(many):
    rows = {row["id"]: row["kind"] for row in many.get("/v1/models").json()["data"]}
    chat = {"llama-bpe": "chat", "llama-spm": "chat"}
    assert rows == {"bert-embed": "embedding", "bert-rerank": "reranker", **chat}
    assert many.get("/v1/models/bert-embed").json()["kind"] == "embedding"
    listed = {row["name"]: row["capabilities"] for row in many.get("/v1/models").json()["models"]}
    tags = {row["name"]: row["capabilities"] for row in many.get("/api/tags").json()["models"]}
    assert listed == tags
    assert tags == {name: ["completion" if kind == "chat" else "embedding"] for name, kind in rows.items()}
    assert many.post("/api/show", model="bert-embed").json()["capabilities"] == ["embedding"]
    assert many.engines == []


def test_requests_that_name_no_model_or_an_unknown_one(many):
    for path, body in (
        ("/completion", HELLO),
        ("/tokenize", {"content": "x"}),
        ("/slots/0?action=erase", {}),
    ):
        response = many.post(path, **body)
        assert (response.status_code, message(response)) == (400, "model name is missing from the request")
    unknown = many.post("/v1/chat/completions", model="gpt", messages=[])
    assert (unknown.status_code, message(unknown)) == (400, "model 'gpt' not found")
    assert many.get("/props?model=gpt").status_code == 400
    assert many.get("/v1/models/gpt").status_code == 404
    no_load = many.post("/completion?autoload=false", model="llama-bpe", **HELLO)
    assert (no_load.status_code, message(no_load)) == (400, "model is not loaded")
    assert many.engines == []
    for path in ("chat", "generate", "show", "pull", "embed", "embeddings"):
        unknown = many.post(f"/api/{path}", model="nope", messages=[], prompt="a", input="a")
        assert (unknown.status_code, unknown.json()) == (404, {"error": "model 'nope' not found"}), path


def test_every_api_names_its_model(many):
    chat = {"model": "llama-spm", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    assert many.post("/v1/chat/completions", **chat).json()["model"] == "llama-spm"
    assert many.post("/v1/messages", **chat).json()["model"] == "llama-spm"
    ollama = many.post("/api/chat", **{**chat, "model": "llama-spm:latest"}, stream=False)
    assert ollama.status_code == 200, ollama.text
    padded = {**chat, "metadata": {"model": "other"}, "padding": '{"model": "x"}' * 9000}
    long = many.post("/v1/chat/completions?model=llama-bpe", **padded)
    assert long.json()["model"] == "llama-spm", "clients get the name they sent"
    assert loaded(many) == {"llama-spm", "llama-bpe"}
    last = {name: value for name, value in padded.items() if name != "model"} | {"model": "llama-spm"}
    assert many.post("/v1/chat/completions", **last).status_code == 200
    assert many.get("/props?model=llama-spm").json()["model_alias"] == "llama-spm"
    assert many.get("/slots?model=llama-spm").json()[0]["id"] == 0
    response = many.post("/v1/responses", model="llama-spm", input="Hello", max_output_tokens=4).json()
    assert many.get(f"/v1/responses/{response['id']}").json()["id"] == response["id"]
    follow = {"previous_response_id": response["id"], "input": "And?", "max_output_tokens": 4}
    assert many.post("/v1/responses", model="llama-bpe", **follow).status_code == 200
    assert {row["name"] for row in many.get("/api/tags").json()["models"]} == statuses(many).keys()
    assert {row["name"] for row in many.get("/api/ps").json()["models"]} == loaded(many)
    assert many.post("/api/show", model="bert-embed").json()["details"]["family"] == "bert"
    versioned = httpx.get(
        f"{many.url}/v1/models", headers={"anthropic-version": "2023-06-01"}, timeout=START_S
    )
    assert [row["id"] for row in versioned.json()["data"]] == sorted(statuses(many))


def predicted(text: str) -> dict[str, float]:
    """The tokens that each model has generated."""
    found = re.findall(r'^llamacpp:tokens_predicted_total{model="(.+)"} (\S+)$', text, re.M)
    return {name: float(value) for name, value in found}


def test_one_scrape_has_all_models(many):
    before = predicted(many.get("/metrics").text)
    many.complete(model="llama-bpe", **HELLO)
    many.post("/v1/embeddings", input="Hello")
    text = many.get("/metrics").text
    after = predicted(text)
    assert after["llama-bpe"] == before.get("llama-bpe", 0) + 8
    assert after["bert-embed"] == 0
    assert text.count("\nprocess_open_fds ") == 1
    assert (
        f"llamacpp:tokens_predicted_total {after['llama-bpe']}" in many.get("/metrics?model=llama-bpe").text
    )


def test_load_and_unload_leave_nothing_behind(many):
    front = psutil.Process(many.process.pid)
    counts = []
    for i in range(4):
        assert many.post("/models/load", model="llama-bpe").json() == {"success": True}
        wait_until(lambda: loaded(many) == {"llama-bpe"})
        assert many.post("/models/load", model="llama-bpe").status_code == 400
        if i % 2:
            many.complete(model="llama-bpe", **HELLO)
        assert many.post("/models/unload", model="llama-bpe").json() == {"success": True}
        assert many.engines == []
        assert many.post("/models/unload", model="llama-bpe").status_code == 400
        wait_until(lambda: not children(many.process.pid, "corral.link.tokenizer_worker"))
        wait_until(lambda: not renderers(many))
        counts.append((front.num_fds(), len(front.children())))
    # The connections of the last requests may be closed a little later.
    wait_until(lambda: (front.num_fds(), len(front.children())) <= counts[1])


def renderers(server: CorralProcess) -> list[psutil.Process]:
    return children(server.process.pid, "corral.link.renderer_worker")


def test_all_models_share_one_renderer(many):
    names = ("llama-bpe", "llama-spm")

    def chat(name: str) -> int:
        messages = [{"role": "user", "content": "Hello"}]
        return many.post("/v1/chat/completions", model=name, messages=messages, max_tokens=1).status_code

    assert [chat(name) for name in names] == [200, 200]
    (renderer,) = renderers(many)
    renderer.kill()
    assert [chat(name) for name in names] == [200, 200]
    many.post("/models/unload", model=names[0])
    assert len(renderers(many)) == 1
    many.post("/models/unload", model=names[1])
    wait_until(lambda: not renderers(many))
    assert chat(names[0]) == 200


def test_changes_are_events(many):
    with httpx.stream("GET", f"{many.url}/models/sse", timeout=START_S) as stream:
        lines = (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: "))
        first = [next(lines) for _ in range(4)]
        assert {event["data"]["status"] for event in first} == {"unloaded"}, "each model once, then changes"
        many.post("/models/load", model="bert-embed")
        seen = []
        while not seen or seen[-1]["data"]["status"] != "loaded":
            seen.append(next(lines))
        assert {event["model"] for event in seen} == {"bert-embed"}
        assert seen[0]["data"]["status"] == "loading"
        assert seen[0]["data"]["progress"]["stages"][0] == "text_model"


def test_prompts_survive_that_another_model_took_the_memory(shelf, tmp_path):
    with CorralProcess("--models-dir", shelf, *FOR_TWO, "--cache-disk", tmp_path) as server:
        fresh = server.complete(**{**HELLO, "prompt": LONG}, model="llama-bpe")
        server.post("/v1/embeddings", input="Hello")
        server.complete(model="llama-spm", **HELLO)
        assert "llama-bpe" not in loaded(server)
        again = server.complete(**{**HELLO, "prompt": LONG}, model="llama-bpe")
        assert again["content"] == fresh["content"]
        assert again["timings"]["cache_n"] > again["timings"]["prompt_n"]


def test_a_broken_file_fails_with_the_reason_and_is_not_tried_in_a_loop(shelf, tmp_path):
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    shutil.copy(shelf / "llama-bpe.gguf", tmp_path)
    with CorralProcess("--models-dir", tmp_path, *FOR_TWO) as server:
        first = server.post("/completion", model="broken", **HELLO)
        assert (first.status_code, first.headers["retry-after"]) == (503, "5")
        assert "GGUF" in message(first)
        server.wait_for("POST /completion 503")
        n = len(server.lines)
        again = server.post("/completion", model="broken", **HELLO)
        assert (again.status_code, message(again)) == (503, message(first))
        server.wait_for("POST /completion 503")
        assert not any("engine:" in line for line in server.lines[n:]), "no process was started"
        row = next(row for row in server.get("/models").json()["data"] if row["id"] == "broken")
        assert (row["status"]["value"], row["status"]["failed"]) == ("unloaded", True)
        shutil.copy(shelf / "llama-bpe.gguf", tmp_path / "broken.gguf")
        assert server.post("/models/load", model="broken").status_code == 200
        wait_until(lambda: "broken" in loaded(server))
        assert server.complete(model="broken", **HELLO)["content"]


def test_what_can_never_fit_is_refused_with_the_numbers(shelf, tmp_path):
    preset = tmp_path / "models.ini"
    preset.write_text(
        f"[small]\nmodel = {shelf}/llama-bpe.gguf\n[large]\nmodel = {shelf}/llama-bpe.gguf\ncram = 900\n"
    )
    with CorralProcess("--models-preset", preset, "--models-memory", 700, "-c", 512) as server:
        for _ in range(2):
            refused = server.post("/completion", model="large", **HELLO)
            assert refused.status_code == 507
            assert refused.json()["error"]["n_limit"] == 700 << 20
            assert refused.json()["error"]["n_needed"] > 1100 << 20
        assert server.complete(model="small", **HELLO)["content"]


def test_a_busy_model_is_never_unloaded_and_the_other_waits(shelf):
    with CorralProcess("--models-dir", shelf, "--models-max", 1, "-c", 4096, "--slots") as server:
        server.complete(model="llama-bpe", **HELLO)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            body = {**HELLO, "n_predict": 1500}
            busy = pool.submit(server.complete, model="llama-bpe", **body)
            wait_until_busy(server, "llama-bpe", busy)
            other = pool.submit(server.complete, model="llama-spm", **HELLO)
            assert busy.result()["tokens_predicted"] == 1500
            assert other.result()["content"]
        assert loaded(server) == {"llama-spm"}


def test_llama_servers_documented_preset_works(shelf, tmp_path):
    preset = tmp_path / "models.ini"
    preset.write_text(
        f"""version = 1

; (Optional) This section provides global settings shared across all presets.
[*]
c = 512
n-gpu-layers = 8

; default config of a model of --models-dir
[llama-spm]
; string value
chat-template = chatml
; numeric value
n-gpu-layers = 123
; flag value
jinja = true
; shorthand argument
c = 256
; environment variable name
LLAMA_ARG_CACHE_RAM = 0
; written twice: the last one counts
model-draft = /nowhere/draft.gguf
model-draft = {shelf}/llama-spm.gguf
no-mmap = true
stop-timeout = 3

[custom_model]
model = {shelf}/llama-bpe.gguf
alias = mine, other
tags = fast
load-on-startup = true
pin = true
"""
    )
    directory = tmp_path / "dir"
    (directory / "parts").mkdir(parents=True)
    shutil.copy(shelf / "llama-spm.gguf", directory)
    shutil.copy(shelf / "bert-embed.gguf", directory / "parts")
    with CorralProcess("--models-dir", directory, "--models-preset", preset, "-cram", 16) as server:
        wait_until(lambda: loaded(server) == {"custom_model"})
        assert statuses(server).keys() == {"llama-spm", "custom_model", "parts"}
        assert server.complete(model="mine", **HELLO)["model"] == "custom_model"
        assert server.get("/props?model=other").json()["default_generation_settings"]["n_ctx"] == 512
        assert server.get("/props?model=llama-spm").json()["default_generation_settings"]["n_ctx"] == 256
        row = next(row for row in server.get("/v1/models").json()["data"] if row["id"] == "custom_model")
        assert (row["aliases"], row["tags"], row["memory"]["is_pinned"]) == (
            ["mine", "other"],
            ["fast"],
            True,
        )
        assert server.post("/v1/embeddings", input="x").json()["model"] == "parts"


def test_models_of_the_configuration_file_and_keys_that_may_use_them(shelf, tmp_path):
    keys, config = tmp_path / "keys", tmp_path / "corral.toml"
    keys.write_text("alice:sk-a\nbob:sk-b\n")
    config.write_text(
        f"""ctx-size = 512
[models.open]
model = "{shelf}/llama-bpe.gguf"
ttl = 1
[models.closed]
model = "{shelf}/llama-bpe.gguf"
allowed-keys = ["alice"]
"""
    )
    with CorralProcess("--config", config, "--api-key-file", keys) as server:

        def ask(key: str, name: str) -> httpx.Response:
            headers = {"authorization": f"Bearer {key}"}
            return httpx.post(
                f"{server.url}/completion", json={**HELLO, "model": name}, headers=headers, timeout=START_S
            )

        assert ask("sk-a", "closed").status_code == 200
        assert message(ask("sk-b", "closed")) == "model 'closed' not found"
        assert ask("sk-b", "open").status_code == 200
        assert ask("wrong", "open").status_code == 401
        assert [row["id"] for row in server.get("/models").json()["data"]] == ["open"]
        assert "path" not in server.get("/models").json()["data"][0]
        wait_until(lambda: statuses(server) == {"open": "sleeping"})
        assert httpx.options(f"{server.url}/slots/0?model=open", timeout=START_S).status_code >= 400
        assert statuses(server) == {"open": "sleeping"}, "nothing without a key wakes a model"
        assert ask("sk-b", "open").status_code == 200


def test_roles_of_keys_hold_for_models(shelf, tmp_path):
    keys, config = tmp_path / "keys", tmp_path / "corral.toml"
    roles = {"chief": "admin", "alice": "user", "app": "inference-only", "grafana": "read-only"}
    keys.write_text("".join(f"{name},{role}:sk-{name}\n" for name, role in roles.items()))
    config.write_text(
        f"""ctx-size = 512
metrics = true
slots = true
[models.open]
model = "{shelf}/llama-bpe.gguf"
[models.closed]
model = "{shelf}/llama-bpe.gguf"
allowed-keys = ["app", "chief"]
"""
    )
    with contextlib.ExitStack() as servers:

        def start(*options: object) -> CorralProcess:
            return servers.enter_context(CorralProcess("--config", config, "--api-key-file", keys, *options))

        def ask(key: str, path: str, **body: object) -> httpx.Response:
            method, headers = "POST" if body else "GET", {"x-api-key": f"sk-{key}"}
            url = server.url + path
            return httpx.request(method, url, json=body or None, headers=headers, timeout=START_S)

        def states() -> dict[str, str]:
            return {row["id"]: row["status"]["value"] for row in ask("chief", "/v1/models").json()["data"]}

        server = start()
        for path in ("/props?model=open", "/v1/slots/0/info?model=open", "/props?model=open&autoload=true"):
            assert message(ask("grafana", path)) == "model is not loaded", path
        assert ask("grafana", "/api/pull", model="open").json() == {"error": "model is not loaded"}
        assert states() == {"open": "unloaded", "closed": "unloaded"}
        assert ask("app", "/completion", **HELLO, model="closed").status_code == 200
        for key in ("alice", "grafana"):
            for path in ("/monitor/events?limit=1", "/slots?", "/metrics?", "/props?"):
                assert message(ask(key, f"{path}&model=closed")) == "model 'closed' not found", path
            assert "closed" not in ask(key, "/metrics").text + ask(key, "/monitor/day").text
        assert ask("app", "/slots?model=closed").status_code == 403
        for key in ("alice", "app", "grafana"):
            for path in ("/v1/models?reload=1", "/models?reload=true"):
                assert "'admin'" in message(ask(key, path))
        assert ask("chief", "/v1/models?reload=1").status_code == 200
        server = start("--no-models-autoload")
        body = {**HELLO, "model": "open"}
        assert message(ask("alice", "/completion", **body)) == "model is not loaded"
        refused = ask("alice", "/completion?autoload=true", **body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (403, "autoload")
        assert states() == {"open": "unloaded", "closed": "unloaded"}
        assert ask("chief", "/completion?autoload=1", **body).status_code == 200


def test_mixed_requests_while_engines_are_killed_lose_nothing_and_stay_within_the_budget(shelf):
    bodies: list[tuple[str, dict]] = [
        ("/completion", {**HELLO, "model": "llama-bpe"}),
        ("/v1/completions", {**HELLO, "model": "llama-spm"}),
        ("/v1/embeddings", {"input": "Hello"}),
        ("/rerank", {"query": "x", "documents": ["a", "b"]}),
    ]
    with CorralProcess("--models-dir", shelf, *FOR_TWO) as server:
        rng, lock, sizes = random.Random(3), threading.Lock(), [0]

        def look(n: int) -> None:
            """Measure the engines, and kill one now and then."""
            engines = server.engines
            with contextlib.suppress(psutil.Error):
                sizes.append(sum(engine.memory_info().rss for engine in engines))
                if n % 5 == 0 and engines:
                    rng.choice(engines).kill()

        def ask(n: int) -> tuple[int, str]:
            path, body = bodies[rng.randrange(4)]
            response = server.post(path, **body)
            with lock:
                look(n)
            return response.status_code, "" if response.is_success else response.text

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(ask, range(N_MIXED)))
        assert answers == [(200, "")] * N_MIXED
        assert 0 < max(sizes) <= 700 << 20
        assert len(loaded(server)) <= 2
        assert server.stop() == 0
        assert "Traceback" not in "".join(server.lines)


def test_a_model_whose_engine_is_killed_while_it_loads_is_loaded_again(shelf):
    with CorralProcess("--models-dir", shelf, *FOR_TWO, "--engine-restarts", 4) as server:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(server.post, "/completion", **HELLO, model="llama-bpe")
            lost: set[psutil.Process] = set()
            for _ in range(4):
                wait_until(lambda: not lost.issuperset(server.engines))
                for engine in set(server.engines) - lost:
                    engine.kill()
                    lost.add(engine)
            assert answer.result().status_code == 200
        wait_until(lambda: statuses(server)["llama-bpe"] == "loaded")


def test_the_command_lists_them(many):
    many.complete(model="llama-bpe", **HELLO)
    result = run_corral("models", "--server", many.url)
    rows = {line.split()[0]: line.split()[-1] for line in result.stdout.splitlines()[1:]}
    assert rows == statuses(many)
    assert "llama-bpe" in result.stdout
    assert run_corral("models", "--server", "http://127.0.0.1:1").returncode == 1


def test_usage_and_resumable_streams_belong_to_the_server(shelf, tmp_path):
    with CorralProcess("--models-dir", shelf, *FOR_TWO, "--ledger", tmp_path / "usage.db") as server:
        body = {"model": "llama-bpe", "stream": True, **HELLO}
        headers = {"X-Conversation-Id": "c1"}
        sent = httpx.post(f"{server.url}/completion", json=body, headers=headers, timeout=START_S)
        assert sent.status_code == 200
        assert server.get("/v1/stream?conv_id=c1").text == sent.text
        (day,) = server.get("/v1/usage").json()["data"]
        assert (day["requests"], day["output_tokens"]) == (1, 8)
