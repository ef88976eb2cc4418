"""What one engine does, done by two: adapters, images, embeddings, saved states, sleep, metrics.

Slots 0 and 1 are those of the first engine, 2 and 3 those of the second one.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.system.process import CorralProcess, Stream, wait_until
from tests.system.state import act, leave, look, prompt_of, restore_state, save_state, tokens_of
from tests.tools.pictures import BLUE, RED, png

N_ENGINES, N_SLOTS = 2, 2
GREEDY = {"temperature": 0, "ignore_eos": True, "return_tokens": True, "n_predict": 16}
ADAPTED, PLAIN = [{"id": 0, "scale": 1.0}], [{"id": 0, "scale": 0.0}]
FIRST, SECOND = 0, N_SLOTS  # a slot of each engine


@pytest.fixture(scope="module")
def server(modifiers, vision, tmp_path_factory):
    path = tmp_path_factory.mktemp("fleet")
    shutil.copy(modifiers / "lora-b.gguf", path)
    shape = ("-c", 4096 * N_SLOTS, "-np", N_SLOTS, "--engines", N_ENGINES, "-t", 1, "--batch-exact")
    files = ("--lora", modifiers / "lora-a.gguf", "--lora-dir", path, "--slot-save-path", path)
    routes = ("--slots", "--metrics", "--mmproj", vision / "mmproj-llava.gguf")
    with CorralProcess("-m", modifiers / "llama-bpe.gguf", *shape, *files, *routes) as server:
        yield server


@pytest.fixture(autouse=True)
def both_engines(server):
    """Every test begins with two engines without work."""
    wait_until(lambda: all(engine["state"] == "ready" for engine in look(server, "/engines")["engines"]))


def complete(server: CorralProcess, seed: int, **body: object) -> dict[str, Any]:
    return server.complete(prompt=prompt_of(seed, 40), **{**GREEDY, **body})


def tokens(server: CorralProcess, seed: int, **body: object) -> list[int]:
    return complete(server, seed, **body)["tokens"]


def shown(pixels: Any, **body: object) -> dict[str, Any]:
    image = {"id": 1, "data": base64.b64encode(png(pixels)).decode()}
    return {"prompt": "Look: [img-1] What is it?", "image_data": [image], **GREEDY, **body}


async def lose_engine_of(server: CorralProcess, **body: object) -> Stream:
    """A stream whose engine was killed in the middle."""
    pids = [engine["pid"] for engine in look(server, "/engines")["engines"]]
    stream = Stream(server.url, **body)
    await stream.reach(5)
    os.kill(pids[stream.events[0]["id_slot"] // N_SLOTS], signal.SIGKILL)
    await stream.task
    return stream


def test_every_engine_has_the_adapters(server):
    plain, adapted = tokens(server, 1, lora=PLAIN), tokens(server, 1, lora=ADAPTED)
    assert plain != adapted
    for slot in (FIRST, SECOND):
        assert tokens(server, 1, lora=ADAPTED, id_slot=slot) == adapted
        assert tokens(server, 1, lora=PLAIN, id_slot=slot) == plain


async def test_an_adapter_comes_while_it_runs_and_survives_a_lost_engine(server):
    id = act(server, "/lora-adapters/load", name="lora-b", scale=0)["id"]
    own = [{"id": id, "scale": 1.0}]
    first = tokens(server, 2, lora=own, id_slot=FIRST)
    assert first == tokens(server, 2, lora=own, id_slot=SECOND) != tokens(server, 2, lora=PLAIN)
    body = {"prompt": prompt_of(3, 40), "lora": own, **GREEDY, "n_predict": 700}
    expected = server.complete(**body)["tokens"]
    stream = await lose_engine_of(server, **body)
    assert stream.tokens == expected
    assert server.post("/lora-adapters/unload", id=id).status_code == 200
    assert server.post("/completion", prompt="x", lora=own).status_code == 400


async def test_images_are_seen_by_every_engine_and_after_a_lost_one(server):
    red = [server.complete(**shown(RED, id_slot=slot))["tokens"] for slot in (FIRST, SECOND)]
    assert red[0] == red[1] != server.complete(**shown(BLUE))["tokens"]
    expected = server.complete(**shown(RED, n_predict=700))["tokens"]
    stream = await lose_engine_of(server, **shown(RED, n_predict=700))
    assert stream.tokens == expected


def test_embeddings_of_many_requests_are_those_of_one(server):
    texts = [f"Sentence {i} of many" for i in range(12)]
    one = np.array([row["embedding"] for row in act(server, "/v1/embeddings", input=texts)["data"]])
    with ThreadPoolExecutor(6) as pool:
        many = list(pool.map(lambda text: act(server, "/v1/embeddings", input=text)["data"][0], texts))
    # Which of them are evaluated together changes how they are rounded.
    assert np.array([row["embedding"] for row in many]) == pytest.approx(one, abs=1e-6)


def test_a_state_continues_in_another_engine(server):
    tokens(server, 4, id_slot=FIRST)
    said, blob = tokens_of(server, FIRST), save_state(server, FIRST)
    expected = server.complete(prompt=[*said, 7, 8, 9], id_slot=FIRST, **GREEDY)
    assert restore_state(server, SECOND, blob).status_code == 200
    assert tokens_of(server, SECOND) == said
    again = server.complete(prompt=[*said, 7, 8, 9], id_slot=SECOND, **GREEDY)
    assert again["tokens"] == expected["tokens"]
    assert again["timings"]["cache_n"] == expected["timings"]["cache_n"] > 0


def test_files_sessions_and_forks_cross_engines(server):
    tokens(server, 5, id_slot=FIRST)
    said = tokens_of(server, FIRST)
    act(server, f"/slots/{FIRST}?action=save", filename="five.bin")
    act(server, f"/sessions/five?action=save&slot={FIRST}")
    act(server, f"/slots/{SECOND}?action=restore", filename="five.bin")
    act(server, f"/sessions/five?action=restore&slot={SECOND + 1}")
    act(server, f"/slots/{SECOND + 1}?action=fork&slot={FIRST + 1}")
    assert [tokens_of(server, slot) for slot in range(N_ENGINES * N_SLOTS)] == [said] * 4


def test_a_slot_can_be_erased_and_edited_in_every_engine(server):
    for slot in range(N_ENGINES * N_SLOTS):
        tokens(server, 6 + slot, id_slot=slot, n_predict=1)
        assert tokens_of(server, slot)[:40] == prompt_of(6 + slot, 40)
        act(server, f"/slots/{slot}?action=erase")
        assert tokens_of(server, slot) == []


async def test_slots_show_the_work_of_all_engines(server):
    body = {**GREEDY, "n_predict": 4000}
    streams = [
        Stream(server.url, prompt=prompt_of(20 + slot, 40), id_slot=slot, **body) for slot in (FIRST, SECOND)
    ]
    for stream in streams:
        await stream.reach(2)
    slots = look(server, "/slots")
    assert [slot["id"] for slot in slots] == list(range(N_ENGINES * N_SLOTS))
    assert [slot["id"] for slot in slots if slot["is_processing"]] == [FIRST, SECOND]
    assert look(server, "/health")["slots_processing"] == len(streams)
    for stream in streams:
        await leave(stream)


def metric(server: CorralProcess, name: str) -> float:
    lines = (line for line in server.get("/metrics").text.splitlines() if line.startswith(name))
    return sum(float(line.rpartition(" ")[2]) for line in lines)


async def test_metrics_count_over_engines_and_their_ends(server):
    names = ("llamacpp:tokens_predicted_total", "llamacpp:n_decode_total", "corral_engine_restarts_total")
    before = [metric(server, name) for name in names]
    await lose_engine_of(server, prompt=prompt_of(30, 40), **{**GREEDY, "n_predict": 700})
    wait_until(lambda: metric(server, names[2]) == before[2] + 1)
    after = [metric(server, name) for name in names[:2]]
    assert after[0] - before[0] == 700
    assert after[1] > before[1]


def test_all_engines_sleep_and_wake_together(server):
    expected = tokens(server, 40, lora=ADAPTED)
    act(server, "/api/generate", model="any", keep_alive=0)
    wait_until(lambda: look(server, "/props")["is_sleeping"] and not server.engines)
    assert {engine["state"] for engine in look(server, "/engines")["engines"]} == {"sleeping"}
    assert tokens(server, 40, lora=ADAPTED, id_slot=SECOND) == expected
    wait_until(lambda: len(server.engines) == N_ENGINES)
