"""A model of a catalog has what the only model of a server may have: several engines, adapters, drafts, a
projector; also after it was unloaded."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import numpy as np
import pytest

from tests.system.fleet_answer import Answer
from tests.system.process import CorralProcess, wait_until
from tests.tools.pictures import BLUE, RED, data_uri

MARGIN = 256 << 20  # of each engine
BUDGET = 700  # MiB: enough for `pair` or for two others
GREEDY = {"temperature": 0, "ignore_eos": True, "return_tokens": True}
OFF = [{"id": 0, "scale": 0.0}]
PRESET = """[*]
c = 2048
cram = 16
threads = 1
model = {bpe}

[pair]
engines = 2
parallel = 2
batch-exact = on
lora = {adapter}

[drafted]
model-draft = {draft}
lookup = off
draft-p-min = 0
draft-exact = off

[seeing]
mmproj = {projector}
"""


@pytest.fixture(scope="module")
def server(modifiers, vision, tmp_path_factory):
    preset = tmp_path_factory.mktemp("catalog") / "models.ini"
    files = {"adapter": modifiers / "lora-a.gguf", "draft": modifiers / "draft.gguf"}
    bpe, projector = modifiers / "llama-bpe.gguf", vision / "mmproj-llava.gguf"
    preset.write_text(PRESET.format(bpe=bpe, projector=projector, **files))
    options = ("--models-preset", preset, "--models-memory", BUDGET, "--metrics", "--slots")
    with CorralProcess(*options) as server:
        yield server


def row(server: CorralProcess, name: str) -> dict[str, Any]:
    return server.get(f"/v1/models/{name}").json()


def state(server: CorralProcess, name: str) -> str:
    return row(server, name)["status"]["value"]


def engines(server: CorralProcess) -> list[dict[str, Any]]:
    return server.get("/engines?model=pair").json()["engines"]


def wait_whole(server: CorralProcess) -> None:
    wait_until(lambda: [each["state"] for each in engines(server)] == ["ready"] * 2)


def tokens(server: CorralProcess, **body: Any) -> list[int]:
    return server.complete(prompt="Hello world", n_predict=16, **GREEDY, **body)["tokens"]


def unload_and_load_again(server: CorralProcess, name: str) -> None:
    assert server.post("/models/unload", model=name).json() == {"success": True}
    assert state(server, name) == "unloaded"
    assert server.post("/models/load", model=name).json() == {"success": True}
    wait_until(lambda: state(server, name) == "loaded")


async def test_streams_go_on_when_an_engine_of_a_model_is_lost(server):
    def ask() -> list[Answer]:
        body = {"model": "pair", "n_predict": 120, **GREEDY}
        return [Answer(server.url, "/completion", {"prompt": f"Story {i}", **body}) for i in range(4)]

    async def finish(answers: list[Answer]) -> list[Any]:
        await asyncio.gather(*(answer.task for answer in answers))
        return [answer.said for answer in answers]

    undisturbed = await finish(ask())
    assert {engine["slots"][0] for engine in engines(server)} == {0, 2}
    answers = ask()
    for answer in answers:
        await answer.reach(10)
    assert {answer.events[0]["id_slot"] // 2 for answer in answers} == {0, 1}
    server.engines[0].send_signal(signal.SIGKILL)
    assert await finish(answers) == undisturbed
    wait_whole(server)
    assert sum(engine["n_restarts"] for engine in engines(server)) == 1


def test_engines_of_a_model_are_unloaded_and_loaded_together(server):
    said = tokens(server, model="pair")
    before = {engine.pid for engine in server.engines}
    unload_and_load_again(server, "pair")
    wait_whole(server)
    after = {engine.pid for engine in server.engines}
    assert len(after) == 2
    assert not before & after
    assert tokens(server, model="pair") == said


def test_all_engines_of_a_model_make_room(server):
    tokens(server, model="pair")
    memory = row(server, "pair")["memory"]
    assert 2 * MARGIN < memory["needed"] < 3 * MARGIN
    assert 0 < memory["used"] < memory["needed"]
    tokens(server, model="drafted")
    assert state(server, "pair") == "unloaded"
    assert len(server.engines) == 1
    assert [engine["state"] for engine in engines(server)] == ["sleeping"] * 2
    tokens(server, model="pair")
    assert state(server, "drafted") == "unloaded"


def test_an_engine_of_a_model_is_replaced(server):
    tokens(server, model="pair")
    wait_whole(server)
    before = [engine["pid"] for engine in engines(server)]
    assert server.post("/engines/1/drain?model=pair").json() == {"success": True}
    wait_whole(server)
    first, second = (engine["pid"] for engine in engines(server))
    assert first == before[0]
    assert second != before[1]
    assert server.post("/engines/update?model=pair", model="llama-bpe.gguf").json() == {"success": True}
    ready = 'corral_engine_ready{engine="1",model="pair",node=""} 1.0'
    assert ready in server.get("/metrics").text
    unnamed = server.get("/engines")
    assert (unnamed.status_code, "model name is missing" in unnamed.text) == (400, True)


def test_an_adapter_of_a_model(server):
    (adapter,) = server.get("/lora-adapters?model=pair").json()
    assert adapter["path"].endswith("lora-a.gguf")
    assert tokens(server, model="pair") != tokens(server, model="pair", lora=OFF)


def test_a_draft_model_of_a_model(server):
    tokens(server, model="drafted")
    unload_and_load_again(server, "drafted")
    said = tokens(server, model="drafted")
    assert [slot["speculative"] for slot in server.get("/slots?model=drafted").json()] == [True]
    assert tokens(server, model="pair", lora=OFF) == said


def test_a_projector_of_a_model(server):
    def look(pixels: np.ndarray) -> str:
        parts = [{"type": "image_url", "image_url": {"url": data_uri(pixels)}}]
        messages = [{"role": "user", "content": parts}]
        answer = server.post(
            "/v1/chat/completions", model="seeing", messages=messages, max_tokens=8, **GREEDY
        )
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["message"]["content"]

    assert row(server, "seeing")["architecture"]["input_modalities"] == ["text", "image"]
    red = look(RED)
    assert look(BLUE) != red
    unload_and_load_again(server, "seeing")
    assert look(RED) == red
