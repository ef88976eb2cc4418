"""LoRA adapters on the real command: every flag, for everybody and for one, across lost engines."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import threading
from collections.abc import Sequence

import httpx
import numpy as np
import pytest

from corral.llama import library
from tests.model import decoder_reference
from tests.model.raw import raw_greedy
from tests.system.process import START_S, CorralProcess, Stream

PROMPT = [ord(c) for c in "Hello world, that is it, and the hill is not for you"]
N_PREDICT = 16
LONG = 900  # tokens that take a while
CLOSE = 1e-2  # the server keeps keys and values in half precision
OFF: list[dict] = []
A, HALF, B = [{"id": 0, "scale": 1.0}], [{"id": 0, "scale": 0.5}], [{"id": 1, "scale": 1.0}]
BOTH = [{"id": 0, "scale": 1.0}, {"id": 1, "scale": 0.5}]
NONE = [{"id": 0, "scale": 0.0}]
MERGED = {"merged-a": A, "merged-a-half": HALF, "merged-b": B, "merged-ab": BOTH, "llama-bpe": NONE}


@pytest.fixture(scope="module")
def expected(modifiers):
    """What the models with their adapters merged into them write."""
    library.start(False)
    names = [*MERGED, "merged-embd"]
    return {name: raw_greedy(modifiers / f"{name}.gguf", PROMPT, N_PREDICT) for name in names}


@pytest.fixture(scope="module")
def directory(modifiers, tmp_path_factory):
    """The `--lora-dir` of the server."""
    path = tmp_path_factory.mktemp("lora")
    for name, source in {
        "poem": "lora-embd",
        "broken": "lora-broken",
        "other": "lora-other",
        "shape": "lora-shape",
        "model": "not-lora",
    }.items():
        shutil.copy(modifiers / f"{source}.gguf", path / f"{name}.gguf")
    (path / "link.gguf").symlink_to(modifiers / "lora-a.gguf")
    return path


@pytest.fixture(scope="module")
def running(modifiers, directory):
    files = [modifiers / f"lora-{name}.gguf" for name in "ab"]
    options = ["-c", 4096, "-np", 4, "-t", 1, "-fa", "off", "--slots", "--lora-dir", directory]
    options += ["--lora", files[0], "--lora-scaled", files[1], 0.5]
    with CorralProcess("-m", modifiers / "llama-bpe.gguf", *options) as server:
        yield server


@pytest.fixture
def server(running):
    """As it was at the start."""
    post(running, "/lora-adapters", BOTH)
    for adapter in listed(running)[2:]:
        post(running, "/lora-adapters/unload", {"id": adapter["id"]})
    return running


def post(server: CorralProcess, path: str, body: object, status: int = 200) -> dict:
    # Without certificates, which nobody needs here and which take long to load.
    response = httpx.post(server.url + path, json=body, timeout=START_S, verify=False)
    assert response.status_code == status, response.text
    return response.json() if status == 200 else response.json()["error"]


def get(server: CorralProcess, path: str) -> httpx.Response:
    return httpx.get(server.url + path, timeout=START_S, verify=False)


def listed(server: CorralProcess) -> list[dict]:
    return get(server, "/lora-adapters").json()


def scales(server: CorralProcess) -> dict[int, float]:
    return {adapter["id"]: adapter["scale"] for adapter in listed(server)}


def request(lora: object = None, **body: object) -> dict:
    body = {"prompt": PROMPT, "n_predict": N_PREDICT, "temperature": 0, "ignore_eos": True, **body}
    return {**body, "return_tokens": True, "lora": lora}


def complete(server: CorralProcess, lora: object = None, **body: object) -> dict:
    return post(server, "/completion", request(lora, **body))


def tokens(server: CorralProcess, lora: object = None, **body: object) -> list[int]:
    return complete(server, lora, **body)["tokens"]


def load(server: CorralProcess, name: str = "poem", **body: object) -> int:
    return post(server, "/lora-adapters/load", {"name": name, **body})["id"]


def kill(server: CorralProcess) -> None:
    """The engine is gone, and noticed to be."""
    lost = server.engine
    lost.send_signal(signal.SIGKILL)
    server.next_engine(lost)


# --- for everybody, and for one


def test_both_flags_are_in_effect_from_the_start(running, modifiers, expected):
    assert [(a["id"], a["name"], a["path"], a["scale"]) for a in listed(running)] == [
        (0, "lora-a", str(modifiers / "lora-a.gguf"), 1.0),
        (1, "lora-b", str(modifiers / "lora-b.gguf"), 0.5),
    ]
    answer = complete(running)
    assert answer["tokens"] == expected["merged-ab"]
    assert answer["generation_settings"]["lora"] == BOTH


@pytest.mark.parametrize("name", MERGED)
def test_scales_of_the_server(server, expected, name):
    assert post(server, "/lora-adapters", MERGED[name]) == {"success": True}
    assert tokens(server) == expected[name]
    assert tokens(server, NONE) == tokens(server, OFF) == expected["llama-bpe"]


def test_scales_of_requests_that_run_together(server, expected):
    post(server, "/lora-adapters", OFF)
    names = [*MERGED, *MERGED]
    found: dict[int, list[int]] = {}

    def ask(i: int, name: str) -> None:
        found[i] = tokens(server, MERGED[name])

    threads = [threading.Thread(target=ask, args=pair) for pair in enumerate(names)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(len(names))] == [expected[name] for name in names]
    assert scales(server) == {0: 0.0, 1: 0.0}


def test_a_chat_has_the_adapters_it_asks_for(server):
    messages = [{"role": "user", "content": "Hello"}]
    body = {"messages": messages, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    answers = [
        post(server, "/v1/chat/completions", {**body, "lora": lora})["choices"][0]["message"]["content"]
        for lora in (A, B, NONE, A)
    ]
    assert len(set(answers)) == 3
    assert answers[0] == answers[3]


def test_embeddings_have_the_adapters_of_the_server(server, modifiers):
    for name, lora in MERGED.items():
        post(server, "/lora-adapters", lora)
        row = post(server, "/v1/embeddings", {"input": PROMPT})["data"][0]["embedding"]
        mean = decoder_reference.token_rows(
            decoder_reference.read_decoder(modifiers / f"{name}.gguf"), PROMPT
        ).mean(axis=0)
        assert np.abs(np.array(row) - mean / np.linalg.norm(mean)).max() < CLOSE


def test_a_restored_slot_is_of_its_configuration(server):
    prompt = PROMPT[::-1]
    tokens(server, A, prompt=prompt, id_slot=0)
    state = post(server, "/slots/0?action=save-state", {})["state"]
    tokens(server, A, id_slot=0, cache_prompt=False)
    post(server, "/slots/1?action=restore-state", {"state": state})
    for lora, is_cached in ((B, False), (NONE, False), (A, True)):
        answer = complete(server, lora, prompt=[*prompt, *PROMPT], id_slot=2, n_predict=1)
        assert (answer["timings"]["cache_n"] > 0) == is_cached


# --- while it runs


async def test_an_adapter_comes_and_goes_while_streams_run(server, expected):
    undisturbed = Stream(server.url, **request(A, n_predict=LONG))
    await undisturbed.task
    stream = Stream(server.url, **request(A, n_predict=LONG))
    await stream.reach(10)
    async with httpx.AsyncClient(timeout=START_S, base_url=server.url, verify=False) as http:
        id = (await http.post("/lora-adapters/load", json={"name": "poem", "scale": 0})).json()["id"]
        own = [{"id": id, "scale": 1.0}]
        assert not stream.task.done(), "it was too short to tell"
        poem = Stream(server.url, **request(own, n_predict=LONG))
        await poem.reach(10)
        assert (await http.post("/lora-adapters/unload", json={"name": "poem"})).json()["id"] == id
        assert not poem.task.done(), "it was too short to tell"
        assert (await http.post("/completion", json=request(own))).status_code == 400
        bad = {"broken": 400, "other": 400, "shape": 400, "model": 400, "link": 404, "no": 404}
        for name, status in bad.items():
            assert (await http.post("/lora-adapters/load", json={"name": name})).status_code == status
    await asyncio.gather(stream.task, poem.task)
    assert stream.tokens == undisturbed.tokens
    assert poem.tokens[:N_PREDICT] == expected["merged-embd"]
    assert len(poem.tokens) == LONG
    assert tokens(server, A) == expected["merged-a"]


def test_what_is_wrong_with_a_file_is_told_and_nothing_has_changed(server, expected):
    post(server, "/lora-adapters", B)
    before = listed(server)
    engine = server.engine.pid
    for name, reason in {
        "broken": "the file is incomplete",
        "other": "is for 'gemma3' models",
        "shape": "do not match the model's shape",
        "model": "not a LoRA adapter",
    }.items():
        error = post(server, "/lora-adapters/load", {"name": name}, 400)
        assert reason in error["message"]
        assert "/" not in error["message"]
    assert listed(server) == before
    assert tokens(server) == expected["merged-b"]
    assert server.engine.pid == engine


# --- lost engines


async def finish(streams: Sequence[Stream]) -> list[list[int]]:
    await asyncio.gather(*(stream.task for stream in streams))
    return [stream.tokens for stream in streams]


async def test_streams_with_adapters_go_on_token_exact(server):
    """With those of the command line, and with one that was loaded later."""
    id = load(server, scale=0)
    wishes = [A, BOTH, NONE, [{"id": id, "scale": 1.0}]]
    bodies = [request(lora, n_predict=60) for lora in wishes]
    undisturbed = await finish([Stream(server.url, **body) for body in bodies])
    streams = [Stream(server.url, **body) for body in bodies]
    for stream in streams:
        await stream.reach(10)
    lost = server.engine
    kill(server)
    assert await finish(streams) == undisturbed
    assert len({tuple(each) for each in undisturbed}) == 4
    server.next_engine(lost)
    assert scales(server) == {0: 1.0, 1: 0.5, id: 0.0}


def test_an_adapter_that_is_gone_stays_gone_and_the_others_keep_their_numbers(server, expected):
    gone = load(server)
    post(server, "/lora-adapters/unload", {"id": gone})
    stays = load(server, scale=0)
    assert stays == gone + 1
    kill(server)
    assert tokens(server, [{"id": stays, "scale": 1.0}]) == expected["merged-embd"]
    assert tokens(server, A) == expected["merged-a"]
    error = post(server, "/completion", request([{"id": gone, "scale": 1.0}]), 400)
    assert f"adapter {gone} does not exist" in error["message"]
    post(server, "/lora-adapters/unload", {"id": stays})
    assert load(server) == stays + 1


def test_the_engine_comes_back_without_a_file_that_is_gone(server, directory, modifiers, expected):
    """Who wants it gets an error, the others their answers, and nobody takes the engine down with them."""
    shutil.copy(modifiers / "lora-embd.gguf", directory / "brief.gguf")
    id = load(server, "brief", scale=0)
    own = [{"id": id, "scale": 1.0}]
    assert tokens(server, own) == expected["merged-embd"]
    (directory / "brief.gguf").unlink()
    kill(server)
    assert tokens(server) == expected["merged-ab"]
    engine = server.engine.pid
    assert f"adapter {id} does not exist" in post(server, "/completion", request(own), 400)["message"]
    post(server, "/lora-adapters", own)
    post(server, "/completion", request(), 400)
    post(server, "/v1/embeddings", {"input": PROMPT}, 400)
    post(server, "/lora-adapters", A)
    assert post(server, "/v1/embeddings", {"input": PROMPT})["data"]
    assert post(server, "/lora-adapters/unload", {"id": id})["id"] == id
    assert tokens(server) == expected["merged-a"]
    assert server.engine.pid == engine


async def test_a_stream_whose_file_is_gone_ends_with_an_error_and_the_others_go_on(
    server, directory, modifiers
):
    shutil.copy(modifiers / "lora-embd.gguf", directory / "short.gguf")
    bodies = [request([{"id": load(server, "short", scale=0), "scale": 1.0}], n_predict=LONG)]
    bodies.append(request(A, n_predict=60))
    undisturbed = Stream(server.url, **bodies[1])
    await undisturbed.task
    streams = [Stream(server.url, **body) for body in bodies]
    for stream in streams:
        await stream.reach(5)
    (directory / "short.gguf").unlink()
    kill(server)
    await streams[1].task
    assert streams[1].tokens == undisturbed.tokens
    with pytest.raises(KeyError, match="tokens"):  # its last event is no token
        await finish(streams[:1])
    assert streams[0].events[-1]["error"]["code"] == 400


async def test_a_stream_goes_on_with_an_adapter_that_was_unloaded_meanwhile(server):
    id = load(server, scale=0)
    body = request([{"id": id, "scale": 1.0}], n_predict=LONG)
    undisturbed = Stream(server.url, **body)
    await undisturbed.task
    stream = Stream(server.url, **body)
    await stream.reach(5)
    post(server, "/lora-adapters/unload", {"id": id})
    assert not stream.task.done(), "it was too short to tell"
    kill(server)
    await stream.task
    assert stream.tokens == undisturbed.tokens


# --- flags


def test_adapters_may_begin_without_effect(modifiers, directory, expected):
    files = ",".join(f"{modifiers}/lora-{name}.gguf:{scale}" for name, scale in (("a", 1), ("b", 0.5)))
    options = ["-c", 512, "-t", 1, "--lora-init-without-apply", "--lora-dir", directory]
    with CorralProcess("-m", modifiers / "llama-bpe.gguf", "--lora-scaled", files, *options) as server:
        assert scales(server) == {0: 0.0, 1: 0.0}
        assert tokens(server) == expected["llama-bpe"]
        assert tokens(server, BOTH) == expected["merged-ab"]
        assert post(server, "/lora-adapters/load", {"name": "poem"})["scale"] == 0.0
        assert tokens(server) == expected["llama-bpe"]
        assert server.stop() == 0


def test_a_server_that_only_embeds_has_adapters_too(modifiers, directory):
    options = [
        "-c",
        512,
        "-t",
        1,
        "--embedding",
        "--lora",
        modifiers / "lora-a.gguf",
        "--lora-dir",
        directory,
    ]

    def vector(server: CorralProcess) -> np.ndarray:
        return np.array(post(server, "/v1/embeddings", {"input": PROMPT})["data"][0]["embedding"])

    with CorralProcess("-m", modifiers / "llama-bpe.gguf", *options) as server:
        first = vector(server)
        post(server, "/lora-adapters", OFF)
        plain = vector(server)
        for found, name in ((first, "merged-a"), (plain, "llama-bpe")):
            decoder = decoder_reference.read_decoder(modifiers / f"{name}.gguf")
            mean = decoder_reference.token_rows(decoder, PROMPT).mean(axis=0)
            assert np.abs(found - mean / np.linalg.norm(mean)).max() < CLOSE
        post(server, "/lora-adapters", A)
        id = load(server, scale=0)
        kill(server)
        assert np.array_equal(vector(server), first)
        post(server, "/lora-adapters", [{"id": id, "scale": 1.0}])
        assert not np.array_equal(vector(server), first)
        post(server, "/lora-adapters/unload", {"id": id})
        post(server, "/lora-adapters/load", {"name": "broken"}, 400)
        assert np.array_equal(vector(server), plain)


def test_a_wrong_file_ends_the_start_with_a_reason(refused, modifiers):
    good, other = modifiers / "lora-a.gguf", modifiers / "lora-other.gguf"
    status, said = refused("-m", modifiers / "llama-bpe.gguf", "--lora", good, "--lora-scaled", other, 0.5)
    assert status == 2
    assert re.search(f"--lora-scaled '{other}': .*gemma3", said)
