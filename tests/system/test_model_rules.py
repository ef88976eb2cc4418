"""Rules for many models: groups, contexts that fit the budget, reading the presets again, and telling clients
that wait."""

from __future__ import annotations

import concurrent.futures
import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.system.process import START_S, CorralProcess, wait_until, wait_until_busy
from tests.tools.tiny_models import llama_bpe, llama_spm

BUDGET = 640 << 20
HELLO = {"prompt": "Hello", "n_predict": 8, "temperature": 0, "ignore_eos": True}
PRESET = """[*]
cram = 16
c = 512
context-shift = true

[one]
model = {bpe}
group = rivals

[two]
model = {spm}
group = rivals, others

[wide]
model = {bpe}
c = 1000000
fit = on
fit-ctx = 256
"""


@pytest.fixture(scope="module")
def preset(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("rules")
    path = directory / "models.ini"
    path.write_text(PRESET.format(bpe=llama_bpe(directory), spm=llama_spm(directory)))
    return path


@pytest.fixture(scope="module")
def server(preset, tmp_path_factory):
    budget = ("--models-memory", BUDGET >> 20, "--batches", tmp_path_factory.mktemp("batches"))
    with CorralProcess("--models-preset", preset, *budget, "--slots") as process:
        yield process


def rows(server: CorralProcess, query: str = "") -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in server.get(f"/models{query}").json()["data"]}


def loaded(server: CorralProcess) -> set[str]:
    return {name for name, row in rows(server).items() if row["status"]["value"] == "loaded"}


def unload_all(server: CorralProcess) -> None:
    for name in loaded(server):
        assert server.post("/models/unload", model=name).is_success


def test_models_of_a_group_exclude_each_other(server):
    assert rows(server)["two"]["groups"] == ["rivals", "others"]
    for name in ("one", "two", "one"):
        server.complete(model=name, **HELLO)
        assert loaded(server) & {"one", "two"} == {name}


def test_a_busy_model_of_a_group_is_waited_for(server):
    server.complete(model="one", **HELLO)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        busy = pool.submit(server.complete, **{**HELLO, "model": "one", "n_predict": 1000})
        wait_until_busy(server, "one", busy)
        other = pool.submit(server.complete, **{**HELLO, "model": "two"})
        assert busy.result()["tokens_predicted"] == 1000
        assert other.result()["content"]


def test_a_context_is_fitted_to_the_memory_of_all_models(server):
    assert server.complete(model="wide", **HELLO)["content"]
    n_ctx = server.get("/props?model=wide").json()["default_generation_settings"]["n_ctx"]
    assert 256 <= n_ctx < 1_000_000
    needed = rows(server)["wide"]["memory"]["needed"]
    assert BUDGET * 0.9 < needed <= BUDGET


def events(text: str) -> list[dict[str, Any]]:
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def stream(server: CorralProcess, path: str, **body: Any) -> httpx.Response:
    more = {"stream": True, "return_progress": True, **body}
    return httpx.post(f"{server.url}{path}", json=more, timeout=START_S)


@pytest.mark.parametrize("path", ["/completion", "/v1/chat/completions", "/v1/completions"])
def test_a_stream_that_waits_tells_how_far_its_model_is(server, path):
    server.complete(model="two", **HELLO)
    about = {**HELLO, "messages": [{"role": "user", "content": "Hi"}]}
    told = events(stream(server, path, model="one", **about).text)
    progress = [event["model_progress"] for event in told if "model_progress" in event]
    assert (progress[0]["value"], progress[0]["progress"]["value"]) == ("loading", 0)
    assert "model_progress" not in told[-1]
    again = stream(server, path, model="one", **about)
    assert "model_progress" not in again.text
    with_text = [event for event in told if "model_progress" not in event and "prompt_progress" not in event]
    assert len(with_text) >= 8


def test_a_stream_shows_the_place_in_the_queue(server):
    url, endless = f"{server.url}/completion", {**HELLO, "model": "one", "n_predict": -1, "stream": True}
    asked = {**HELLO, "model": "two", "stream": True, "return_progress": True}
    with httpx.stream("POST", url, json=endless, timeout=START_S) as busy:
        sent = busy.iter_lines()  # the stream is closed with it
        next(sent)
        with httpx.stream("POST", url, json=asked, timeout=START_S) as waiting:
            lines = waiting.iter_lines()
            while '"queue_position":1' not in next(lines):
                pass
            busy.close()
            assert events("\n".join(lines))[-1]["tokens_predicted"] == 8


def test_a_client_that_leaves_the_queue_costs_no_model_its_place(server):
    server.complete(model="one", **HELLO)
    url, endless = f"{server.url}/completion", {**HELLO, "model": "one", "n_predict": -1, "stream": True}
    with httpx.stream("POST", url, json=endless, timeout=START_S) as busy:
        sent = busy.iter_lines()  # the stream is closed with it
        next(sent)
        asked = {**HELLO, "model": "two", "stream": True, "return_progress": True}
        with httpx.stream("POST", url, json=asked, timeout=START_S) as waiting:
            lines = waiting.iter_lines()
            while '"queue_position":1' not in next(lines):
                pass
        wait_until(lambda: rows(server)["two"]["status"]["value"] != "loading")
        assert "one" in loaded(server)
    assert "two" not in loaded(server)
    assert server.complete(model="two", **HELLO)["content"]


def test_each_line_of_a_batch_has_its_model_and_those_of_one_follow_each_other(server):
    unload_all(server)
    n_lines = len(server.lines)
    names = ["one", "two", "one", "nobody", "two", "one"]
    lines = [
        {"custom_id": str(i), "url": "/v1/completions", "body": {**HELLO, "model": name}}
        for i, name in enumerate(names)
    ]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", timeout=START_S) as client:
        text = "".join(json.dumps(line) + "\n" for line in lines)
        file = client.files.create(file=("in.jsonl", text.encode()), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        wait_until(lambda: client.batches.retrieve(batch.id).status == "completed", 0.05)
        batch = client.batches.retrieve(batch.id)
        found = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
        wrong = client.files.content(batch.error_file_id).text
    said = [(int(row["custom_id"]), row["response"]["body"]["model"]) for row in found]
    assert sorted(said) == [(0, "one"), (1, "two"), (2, "one"), (4, "two"), (5, "one")]
    assert sum("to make room for" in line for line in server.lines[n_lines:]) == 1, "loaded once each"
    assert json.loads(wrong)["response"]["status_code"] == 400


def test_errors_before_and_after_the_first_event(server, preset):
    large = f"\n[large]\nmodel = {preset.parent}/llama-bpe.gguf\nc = 1000000\n"
    preset.write_text(preset.read_text() + large)
    assert "large" in rows(server, "?reload=1")
    unknown = stream(server, "/completion", model="unknown", **HELLO)
    assert (unknown.status_code, unknown.headers["content-type"].split(";")[0]) == (400, "application/json")
    late = stream(server, "/completion", model="large", **HELLO)
    assert late.status_code == 200
    assert events(late.text)[-1]["error"]["code"] == 507
    assert stream(server, "/completion", model="large", **HELLO).status_code == 507, "known by now"
    unload_all(server)
    bad = stream(server, "/completion", model="two", prompt="Hello", temperature="hot")
    assert events(bad.text)[-1]["error"]["code"] == 400


def test_presets_are_read_again(server, preset):
    server.complete(model="one", **HELLO)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        last = pool.submit(server.complete, **{**HELLO, "model": "one", "n_predict": 1000})
        wait_until_busy(server, "one", last)
        text = PRESET.format(bpe=preset.parent / "llama-bpe.gguf", spm=preset.parent / "llama-spm.gguf")
        changed = text.replace("[wide]", "[new]").replace("[one]\n", "[one]\nalias = first\n")
        preset.write_text(changed)
        now = rows(server, "?reload=1")
        assert now.keys() == {"one", "two", "new"}
        assert now["one"]["aliases"] == ["first"]
        assert last.result()["tokens_predicted"] == 1000, "what runs is not interrupted"
    assert server.complete(model="first", **HELLO)["model"] == "one"
    assert len(server.engines) <= 2
    preset.write_text("[one]\nmodel = x\nno-such-option = 1\n")
    refused = server.get("/v1/models?reload=1")
    assert refused.status_code == 400
    assert rows(server).keys() == now.keys()
